"""`Applications`: those of a serve.yaml, as they run in this process; `apply` changes what differs and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import rlplat
from rlplat.config import closest
from rlplat.errors import ConfigError, RlplatError, UsageError
from rlplat.given.raised_at import raised_here
from rlplat.listening import read_token
from rlplat.rl.class_path import forget_changed, load_module
from rlplat.serve.deployments import Application, Deployment, with_options
from rlplat.serve.files.settings import Adjust, ApplicationSettings, Change, Wanted, changes
from rlplat.serve.policies.serving import deployment_of, policy_application, serve_policy
from rlplat.serve.running import Running, run


class Applications:
    def __init__(self) -> None:
        self._running: dict[str, Running] = {}
        self._wanted: dict[str, Wanted] = {}
        self._lock = threading.Lock()
        self._is_ending = False

    def apply(self, wanted: dict[str, Wanted]) -> dict[str, str]:
        """What was done, by application. RlplatError (UsageError where all are) with every one that failed; an update
        that failed leaves its application as it was."""
        done: dict[str, str] = {}
        failures: list[str] = []
        kind: type[RlplatError] = UsageError
        with self._lock:
            if self._is_ending:
                raise RlplatError("the server is ending; deploy again")
            found = changes(self._wanted, wanted)
            ending = [name for name, change in found.items() if change in (Change.STOP, Change.RESTART)]
            steps: list[tuple[str, Callable[[], str]]] = []
            # Every port that gets free is free before another application takes it.
            steps += [(name, partial(self._end, name)) for name in ending]
            steps += [
                (name, partial(self._perform, name, change, wanted[name]))
                for name, change in found.items()
                if change is not Change.STOP
            ]
            failed: set[str] = set()
            for name, perform in steps:
                if name in failed:
                    continue
                try:
                    done[name] = perform()
                except (Exception, SystemExit) as error:  # also of the application's own code
                    failed.add(name)
                    done.pop(name, None)
                    failures.append(f"{name}: {_described(error)}")
                    kind = kind if isinstance(error, UsageError) else RlplatError
        if failures:
            raise kind("\n".join(failures))
        return done

    def status(self) -> dict[str, Any]:
        """JSON values."""
        return {name: running.status() for name, running in list(self._running.items())}

    def stop(self) -> None:
        with self._lock:
            self._is_ending = True
            threads = [threading.Thread(target=each.stop) for each in self._running.values()]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self._running.clear()
            self._wanted.clear()

    def _end(self, name: str) -> str:
        del self._wanted[name]
        self._running.pop(name).stop()
        return "stopped"

    def _perform(self, name: str, change: Any, wanted: Wanted) -> str:
        if change in (Change.START, Change.RESTART):
            self._running[name] = self._start(name, wanted)
        elif change is Change.UPDATE:
            self._running[name].update(_application(wanted, name))
        elif isinstance(change, Adjust):
            running = self._running[name]
            for deployment, config in change.user_configs.items():
                running.reconfigure(deployment, config)
            for deployment, number in change.num_replicas.items():
                running.scale(deployment or deployment_of(name), number)
        alone = wanted.without_canary()
        before = alone if change is Change.UPDATE else self._wanted.get(name, alone)  # it ends a canary
        self._wanted[name] = alone
        if (before.canary, before.share) != (wanted.canary, wanted.share):
            if wanted.canary is None:
                self._running[name].end_canary()
            else:
                self._running[name].update(_application(wanted.canary, name), canary=wanted.share)
        self._wanted[name] = wanted
        return str(change)

    def _start(self, name: str, wanted: Wanted) -> Running:
        settings = wanted.settings
        token = read_token(Path(settings.token_file)) if settings.token_file else ""
        if settings.run is None:
            app = _application(wanted, name)
            return run(app, host=settings.host, port=settings.port, token=token)
        return serve_policy(
            **_of_run(settings, name),
            host=settings.host, port=settings.port, token=token, follow=settings.follow,
        )  # fmt: skip

    def __enter__(self) -> Applications:
        if not rlplat.is_initialized():  # one cluster for all of them
            rlplat.init()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if rlplat.is_initialized():
            rlplat.shutdown()


def _described(error: BaseException) -> str:
    """What is wrong; of the application's own code also where."""
    if isinstance(error, RlplatError | OSError):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} (at {error.filename}:{error.lineno})"
    return f"{type(error).__name__}: {error}{raised_here(error)}"


def _application(wanted: Wanted, name: str) -> Application:
    settings = wanted.settings
    if settings.app is not None:
        return with_options(load_application(settings.app), settings.options)
    return policy_application(**_of_run(settings, name))


def _of_run(settings: ApplicationSettings, name: str) -> dict[str, Any]:
    return {
        "path": settings.run,
        "checkpoint": settings.checkpoint,
        "policy": settings.policy,
        "name": name,
        "num_replicas": settings.replicas,
        "max_rows": settings.max_rows,
    }


def load_application(where: str) -> Application:
    """`FILE.py:NAME` or `package.module:NAME`; the name is of what `bind()` returned, of a deployment that needs no
    arguments, or of a function that returns such. ConfigError otherwise."""
    home, _, name = where.rpartition(":")
    forget_changed()  # a server lives on while its files are edited
    try:
        module = load_module(home)
    except ModuleNotFoundError as error:
        raise ConfigError(f"cannot import {home}: {error}") from None
    if not hasattr(module, name):
        names = [key for key, value in vars(module).items() if isinstance(value, Application | Deployment)]
        raise ConfigError(
            f"{home} has no '{name}'{closest(name, names)}; applications in it: {', '.join(names) or 'none'}"
        )
    found: Any = getattr(module, name)
    if not isinstance(found, Application | Deployment) and callable(found):
        found = found()
    if isinstance(found, Deployment):
        found = found.bind()
    if not isinstance(found, Application):
        raise ConfigError(f"{where} is {type(found).__name__}; expected an application, what bind() returns")
    return found
