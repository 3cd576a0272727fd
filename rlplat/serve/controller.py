"""The controller: performs what the plan decides, in a thread of the process that called `serve.run` (running.py).

    events (user, replicas, clock) ──queue──▶ Plan.handle ──actions──▶ actors started, drained, ended; routes told

Everything in `_run` and below happens in that one thread; what others call puts an event into its queue.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import rlplat
import rlplat.serve.plan as planning
from rlplat.config import closest
from rlplat.errors import ActorDied, ConfigError, RlplatError, SerializationError
from rlplat.given.raised_at import raised_elsewhere
from rlplat.given.say import say_traceback
from rlplat.serve.autoscale import Autoscaler
from rlplat.serve.deployments import Application, Part, canary_of, parts_of
from rlplat.serve.handle import forget_routes, routes_of, set_models, set_routes
from rlplat.serve.http.sharing import CANARY
from rlplat.serve.listening import ListeningSocket
from rlplat.serve.multiplexing import loaders_of
from rlplat.serve.replica import Hung, Path, Replica, ReplicaSpec

AUTOSCALE_PERIOD_S = 0.25
MAX_HEALTH_FAILURES = 3
"""In a row: then the replica is replaced."""
_CONCURRENCY = 100_000
"""Of the actor: the gate of the replica decides how many calls run, and refuses the rest."""

STOPPED = "the application has been stopped: start it again (serve.run)"


@dataclass
class Version:
    part: Part
    is_ingress: bool
    user_config: Any
    """The newest one: of its options, or given to `reconfigure` since."""
    scaler: Autoscaler | None
    taken: Any
    """The last user_config that all replicas took."""


@dataclass
class Change:
    """A user_config that the replicas of a deployment were given."""

    config: Any
    ref: Any
    """Of it: it is pickled once for all of them."""
    versions: list[Version]
    """Those that there were."""
    waiting: list[str] = field(default_factory=list)
    """Replicas that have not answered."""
    refused: str = ""
    """By which replica, and why."""
    has_lost: bool = False
    """A replica died before it answered, and none has started with it since: it may be what kills them."""


@dataclass
class Live:
    """What the controller keeps of a deployment."""

    versions: dict[int, Version] = field(default_factory=dict)
    failure: str = ""
    """Why the last version did not start."""
    change: Change | None = None
    """The newest."""


@dataclass
class Check:
    """Of a replica's start, then of its health."""

    due: float
    """When it must have started; when it is asked, or, where it was, must have answered."""
    is_asked: bool = False
    failures: int = 0
    """In a row."""


class Controller:
    """`serve.run` makes it. Its methods may be called from any thread."""

    def __init__(self, listening: ListeningSocket | None, token: str, say: Callable[[str], None]) -> None:
        self.listening = listening
        self._token, self._tell = token, say
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._plan = planning.Plan()
        self._live: dict[str, Live] = {}
        self._actors: dict[str, Any] = {}
        self._pids: dict[str, int] = {}
        self._checks: dict[str, Check] = {}
        self._numbers = 0
        self._failures: dict[int, str] = {}
        """What was said of the versions that were given up."""
        self._changed = threading.Condition()
        self._is_stopping = False
        self.ingress = self._canary_ingress = ""
        """The first: of the application as it was last taken (plan.py, rule 4)."""
        self._canary_share = self._next_autoscale = 0.0
        self._share_told: list[Any] = []
        self._thread = threading.Thread(target=self._run, name="rlplat-serve", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- from any thread

    def deploy(self, app: Application) -> list[int]:
        """Start an application, or change the one that runs to it; the versions of its parts. Does not wait."""
        return self._ask(partial(self._deploy, parts_of(app), 0.0), wait=True)

    def deploy_canary(self, app: Application, share: float) -> list[int]:
        if self.listening is None:
            raise ConfigError("a canary has a share of the connections, and this application has no port")
        return self._ask(partial(self._deploy, canary_of(parts_of(app), share), share), wait=True)

    def end_canary(self) -> None:
        """Its connections are finished, its sessions go to the others. Does not wait."""
        self._ask(partial(self._remove, lambda name: name.endswith(CANARY)), wait=True)

    def reconfigure(self, deployment: str, user_config: Any, timeout_s: float | None) -> None:
        """Give it to every replica, those that start later too, and wait until they have it.

        RlplatError with what one of them raised: then all get the one before again, where there was one, unless a newer
        one came meanwhile. TimeoutError.
        """
        self._require(deployment)
        try:
            ref = rlplat.put(user_config)  # before anything keeps it
        except SerializationError as error:
            raise ConfigError(f"the user_config for {deployment} cannot be sent to its replicas: {error}") from error
        change: Change = self._ask(partial(self._reconfigure, deployment, user_config, ref), wait=True)
        is_over = self._wait_for(
            lambda: not change.waiting and (not change.has_lost or self._plan.is_settled(deployment)),
            timeout_s,
        )
        if change.refused:
            raise RlplatError(change.refused)
        if not is_over:
            names = ", ".join(change.waiting)
            raise TimeoutError(f"{names} did not take the user_config within {timeout_s:g} s")

    def scale(self, deployment: str, num_replicas: int) -> None:
        if num_replicas < 1:
            raise ConfigError(f"num_replicas is 1 or more, not {num_replicas}")
        self._require(deployment)
        self._ask(partial(self._scale, deployment, num_replicas), wait=True)

    def wait_until_settled(self, timeout_s: float | None, versions: Collection[int] = ()) -> None:
        """RlplatError where one of these versions is given up; TimeoutError."""

        def is_settled() -> bool:
            for version in versions:
                if version in self._failures:
                    raise RlplatError(self._failures[version])
            return bool(self._live) and all(map(self._plan.is_settled, self._live))

        if not self._wait_for(is_settled, timeout_s):
            there = self._plan.describe()
            raise TimeoutError(f"not everything is ready after {timeout_s:g} s: {there}")
        if self._share_told:
            rlplat.wait(self._share_told, num_returns=len(self._share_told), timeout=10.0)

    def status(self) -> dict[str, Any]:
        """JSON values."""
        with self._changed:
            deployments: dict[str, Any] = self._plan.describe()
            for each in deployments.values():
                each["replicas"] = {
                    name: {"state": state, "pid": self._pids.get(name)} for name, state in each["replicas"].items()
                }
            for name, live in self._live.items():
                if name in deployments and live.failure:
                    deployments[name]["update_failed"] = live.failure
        address = {} if self.listening is None else {"url": self.listening.url}
        return {**address, "deployments": deployments}

    def stop(self, drain_s: float) -> None:
        """Drain all replicas for up to `drain_s`, then end them."""
        if self._thread.is_alive():
            self._ask(partial(self._remove, lambda _: True))
            end = time.monotonic() + drain_s
            with self._changed:
                while self._actors and self._thread.is_alive() and time.monotonic() < end:
                    self._changed.wait(0.05)
            self._is_stopping = True
            self._ask(lambda: None)
            self._thread.join()
        for actor in self._actors.values():
            _kill(actor)
        self._actors.clear()
        forget_routes(list(self._live))
        self._live.clear()  # their names may be another application's when this is called again
        if self.listening is not None:
            self.listening.close()

    def _require(self, deployment: str) -> None:
        if not self._thread.is_alive():
            raise RlplatError(STOPPED)
        with self._changed:
            versions = self._plan.versions()
        if deployment not in versions:
            near, there = closest(deployment, versions), ", ".join(versions)
            raise ConfigError(f"there is no deployment '{deployment}'{near}; there are {there}")

    def _wait_for(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Whether it got done within this time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not is_done():
                if not self._thread.is_alive():
                    raise RlplatError(STOPPED)
                if end is not None and time.monotonic() > end:
                    return False
                self._changed.wait(0.1)
        return True

    def _ask(self, do: Callable[[], Any], *, wait: bool = False) -> Any:
        """Have the controller's thread do it; wait: until it has, for what it returns or raises."""
        if not wait:
            self._events.put(do)
            return None
        answer: Future[Any] = Future()

        def answered() -> None:
            try:
                answer.set_result(do())
            except Exception as error:
                answer.set_exception(error)

        self._events.put(answered)
        while not answer.done() and self._thread.is_alive():
            futures.wait([answer], timeout=0.5)
        if not answer.done():
            raise RlplatError(STOPPED)
        return answer.result()

    # ---------------------------------------------------------------- in the controller's thread

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                do = self._events.get(timeout=self._patience())
            except queue.Empty:
                do = partial(self._handle, planning.Tick())
            try:
                with self._changed:
                    do()
                    self._forget_dropped()
                    self._check_health(time.monotonic())
                    self._changed.notify_all()
                self._autoscale()
            except Exception as error:
                if self._is_stopping or not rlplat.is_initialized():
                    return
                self._say(f"warning: the controller of serve: {type(error).__name__}: {error}")

    def _say(self, text: str) -> None:
        try:
            self._tell(text)
        except Exception:  # what it would have told of is done all the same
            say_traceback()

    def _patience(self) -> float:
        now = time.monotonic()
        due = self._plan.next_tick()
        wait = 1.0 if due is None else min(1.0, max(0.0, due - now))
        if self._scalers():
            wait = min(wait, max(0.0, self._next_autoscale - now))
        return min([wait, *(max(0.0, check.due - now) for check in self._checks.values())])

    def _deploy(self, parts: list[Part], canary_share: float) -> list[int]:
        if canary_share:
            self._canary_ingress, self._canary_share = parts[-1].name, canary_share
            self._tell_share()
        deployed = []
        for part in parts:
            self._numbers += 1
            live = self._live.setdefault(part.name, Live())
            options = part.deployment.options_
            live.failure = ""
            for old in self._plan.unused(part.name, live.versions):
                del live.versions[old]
            is_ingress = part is parts[-1] and self.listening is not None
            scaler = Autoscaler(options.autoscale) if options.autoscale else None
            config = options.user_config
            live.versions[self._numbers] = Version(part, is_ingress, config, scaler, config)
            num_replicas = options.autoscale.min_replicas if options.autoscale else options.num_replicas
            deployed.append(planning.Deployed(part.name, self._numbers, num_replicas, part.calls))
        names = {part.name for part in parts}
        of_its_side = [name for name in self._live if name.endswith(CANARY) == bool(canary_share)]
        drops = tuple(name for name in of_its_side if name not in names)
        self._handle(planning.Updated(tuple(deployed), drops))
        return [each.version for each in deployed]

    def _scale(self, deployment: str, num_replicas: int) -> None:
        self._live[deployment].failure = ""
        self._handle(planning.Scaled(deployment, num_replicas))

    def _remove(self, is_to_go: Callable[[str], bool]) -> None:
        for name in filter(is_to_go, self._live):
            self._live[name].failure = ""
            self._handle(planning.Removed(name))

    def _forget_dropped(self) -> None:
        """The names are free then, for another application too."""
        for name in [each for each in self._live if not self._plan.has(each)]:
            del self._live[name]
            forget_routes([name])

    def _reconfigure(self, deployment: str, user_config: Any, ref: Any) -> Change:
        live = self._live[deployment]
        live.change = Change(user_config, ref, list(live.versions.values()))
        for version in live.change.versions:
            version.user_config = user_config
        self._give_config(deployment, live.change)
        return live.change

    def _give_config(self, deployment: str, change: Change) -> None:
        """The new one, or where that was refused what its version had, to each replica."""
        for name in self._plan.starting(deployment) + self._plan.ready(deployment):
            config = change.ref
            if change.refused:
                config = self._live[deployment].versions[self._plan.version_of(name)].user_config
            if name in self._actors and config is not None:
                change.waiting.append(name)
                answer = self._actors[name].reconfigure.remote(config)
                self._when_done(answer, partial(self._configured, deployment, change, name))

    def _configured(self, deployment: str, change: Change, name: str, answer: Future[Any]) -> None:
        error = answer.exception()
        if isinstance(error, ActorDied) and name in self._actors:
            self._ended(name, answer)
        change.waiting.remove(name)
        live = self._live.get(deployment)
        if live is None:
            return
        if error is None or isinstance(error, ActorDied) or change.refused:
            self._note_taken(change)
            return
        self._refuse(deployment, change, f"{name} does not take the user_config: {_reason(error)}")

    def _note_taken(self, change: Change) -> None:
        if not (change.waiting or change.refused or change.has_lost):
            for version in change.versions:
                version.taken = change.config

    def _refuse(self, deployment: str, change: Change, why: str) -> None:
        change.refused, change.has_lost = why, False
        if self._live[deployment].change is change:
            for version in change.versions:
                version.user_config = version.taken
            self._give_config(deployment, change)

    def _handle(self, event: planning.Event) -> None:
        for action in self._plan.handle(event, time.monotonic()):
            self._perform(action)

    def _perform(self, action: planning.Action) -> None:
        match action:
            case planning.StartReplica(deployment, version, replica):
                self._place(deployment, version, replica)
            case planning.DrainReplica(replica):
                self._when_done(self._actors[replica].drain.remote(), lambda drain: None)
            case planning.StopReplica(replica):
                actor = self._actors.pop(replica, None)
                self._pids.pop(replica, None)
                self._checks.pop(replica, None)
                if actor is not None:
                    _kill(actor)
            case planning.RoutesChanged(deployment):
                self._tell_routes(deployment)
                if deployment in (self.ingress, self._canary_ingress):
                    self._tell_share()
            case planning.UpdateTaken(deployments):
                if not deployments[-1].endswith(CANARY):
                    self.ingress = deployments[-1]
                    self._tell_share()
            case planning.UpdateFailed(deployment, version, reason):
                self._live[deployment].failure = reason
                kept = "; the version before goes on" if self.ingress else ""
                self._failures[version] = f"{deployment} does not start: {reason}{kept}"
                self._say(f"warning: {self._failures[version]}")

    def _place(self, deployment: str, version: int, replica: str) -> None:
        """Ask for its process, which may have to wait for resources."""
        options = self._live[deployment].versions[version].part.deployment.options_
        actor = (
            rlplat.remote(Replica)
            .options(
                num_cpus=options.num_cpus,
                num_gpus=options.num_gpus,
                resources=dict(options.resources),
                max_concurrency=_CONCURRENCY,
            )
            .remote()
        )
        self._actors[replica] = actor
        self._when_done(actor.pid.remote(), partial(self._placed, deployment, version, replica))

    def _placed(self, deployment: str, version: int, replica: str, pid: Future[Any]) -> None:
        if replica not in self._actors:
            return  # it was stopped meanwhile
        try:
            self._pids[replica] = pid.result()
            self._start(deployment, version, replica)
        except RlplatError as error:  # its arguments cannot be pickled, say
            if not rlplat.is_initialized():
                raise
            self._handle(planning.ReplicaDied(replica, _reason(error)))

    def _start(self, deployment: str, version: int, replica: str) -> None:
        of = self._live[deployment].versions[version]
        spec = ReplicaSpec(
            Path(of.part.deployment.target),
            replica,
            deployment,
            of.part.deployment,
            of.part.args,
            of.part.kwargs,
            of.user_config,
            {name: self._replicas(name) for name in self._live},
            self.listening.door if of.is_ingress and self.listening is not None else "",
            self._token if of.is_ingress else "",
            version,
            {name: routes_of(name).models for name in self._live},
        )
        self._checks[replica] = Check(time.monotonic() + of.part.deployment.options_.start_timeout_s)
        has_models = bool(loaders_of(of.part.deployment.target))
        start = self._actors[replica].start.remote(spec)
        self._when_done(start, partial(self._started, deployment, replica, has_models))

    def _check_health(self, now: float) -> None:
        """Ask those that are due, and replace those that did not answer, or start; also of those that drain."""
        for name, live in self._live.items():
            for replica in self._plan.starting(name):
                if replica in self._checks and now >= self._checks[replica].due:
                    options = live.versions[self._plan.version_of(replica)].part.deployment.options_
                    self._replace(replica, f"it has not started within {options.start_timeout_s:g} s")
            for replica in self._plan.ready(name) + self._plan.draining(name):
                options = live.versions[self._plan.version_of(replica)].part.deployment.options_
                check = self._checks.setdefault(replica, Check(now + options.health_check_period_s))
                if now < check.due or replica not in self._actors:
                    continue
                if check.is_asked:
                    self._replace(replica, f"it gave no answer for {options.health_check_timeout_s:g} s")
                    continue
                check.is_asked, check.due = True, now + options.health_check_timeout_s
                answer = self._actors[replica].check_health.remote()
                self._when_done(answer, partial(self._checked, replica, options.health_check_period_s))

    def _checked(self, replica: str, period_s: float, answer: Future[Any]) -> None:
        check, error = self._checks.get(replica), answer.exception()
        if check is None or isinstance(error, ActorDied):  # that is heard of elsewhere
            return
        check.is_asked, check.due = False, time.monotonic() + period_s
        check.failures = 0 if error is None else check.failures + 1
        if isinstance(getattr(error, "cause", error), Hung) or check.failures == MAX_HEALTH_FAILURES:
            assert error is not None
            self._replace(replica, _reason(error))

    def _replace(self, replica: str, reason: str) -> None:
        self._say(f"warning: replica {replica} does not work and is replaced: {reason}")
        self._handle(planning.ReplicaDied(replica, reason))

    def _watch_models(self, deployment: str, replica: str, version: int) -> None:
        answer = self._actors[replica].models_after.remote(version)
        self._when_done(answer, partial(self._models_changed, deployment, replica))

    def _models_changed(self, deployment: str, replica: str, answer: Future[Any]) -> None:
        """Tell every process, as of the routes; a replica that ends is heard of elsewhere."""
        if answer.exception() is not None or replica not in self._actors:
            return
        version, models = answer.result()
        set_models(deployment, replica, models)
        for actor in self._actors.values():
            actor.set_models.remote(deployment, replica, models)
        self._watch_models(deployment, replica, version)

    def _started(self, deployment: str, replica: str, has_models: bool, start: Future[Any]) -> None:
        error = start.exception()
        live = self._live.get(deployment)
        if live is not None and live.change is not None and live.change.has_lost:
            live.change.has_lost = False
            if error is not None:  # what takes the place of one that died starts with it
                why = f"a replica died of the user_config, or {replica} does not start with it: {_reason(error)}"
                self._refuse(deployment, live.change, why)
            self._note_taken(live.change)
        if error is not None:
            self._handle(planning.ReplicaDied(replica, _reason(error)))
        elif replica in self._actors:
            del self._checks[replica]
            self._when_done(self._actors[replica].run.remote(), partial(self._ended, replica))
            self._handle(planning.ReplicaReady(replica))
            if has_models:
                self._watch_models(deployment, replica, -1)

    def _ended(self, replica: str, run: Future[Any]) -> None:
        error = run.exception()
        if error is None:
            self._handle(planning.ReplicaDrained(replica))
        else:
            for live in self._live.values():
                if live.change is not None and replica in live.change.waiting:
                    live.change.has_lost = not live.change.refused
            if replica in self._actors:
                self._say(f"warning: replica {replica} died and is replaced: {_reason(error)}")
            self._handle(planning.ReplicaDied(replica, _reason(error)))

    def _when_done(self, ref: Any, do: Callable[[Future[Any]], None]) -> None:
        ref.future().add_done_callback(lambda future: self._ask(lambda: do(future)))

    def _replicas(self, deployment: str) -> dict[str, Any]:
        return {name: self._actors[name] for name in self._plan.ready(deployment) if name in self._actors}

    def _tell_routes(self, deployment: str) -> None:
        replicas = self._replicas(deployment)
        leaving = {name: self._actors[name] for name in self._plan.draining(deployment)}
        set_routes(deployment, replicas, leaving)
        for actor in self._actors.values():
            actor.set_routes.remote(deployment, replicas, leaving)

    def _tell_share(self) -> None:
        share = self._canary_share if self._plan.ready(self._canary_ingress) else 0.0
        replicas = self._replicas(self.ingress).values()
        self._share_told = [actor.set_canary_share.remote(share) for actor in replicas]

    def _autoscale(self) -> None:
        now = time.monotonic()
        if now < self._next_autoscale:
            return
        self._next_autoscale = now + AUTOSCALE_PERIOD_S
        for name, scaler in self._scalers().items():
            stats = [self._actors[each].stats.remote() for each in self._plan.ready(name)]
            answered, _ = rlplat.wait(stats, num_returns=len(stats), timeout=0.2) if stats else ([], [])
            ongoing = 0.0
            for ref in answered:
                try:
                    each = rlplat.get(ref)
                except RlplatError:
                    continue  # it died; the plan hears of it
                ongoing += each["running"] + each["waiting"]
            if answered:
                wanted = scaler.decide(now, ongoing, self._num_replicas(name))
                if wanted != self._num_replicas(name):
                    self._say(f"{name}: {wanted} replicas for {ongoing:g} requests")
                    with self._changed:
                        self._handle(planning.Scaled(name, wanted, self._plan.versions()[name]))

    def _scalers(self) -> dict[str, Autoscaler]:
        versions = {name: self._live[name].versions[number] for name, number in self._plan.versions().items()}
        return {name: version.scaler for name, version in versions.items() if version.scaler is not None}

    def _num_replicas(self, deployment: str) -> int:
        number: Any = self._plan.describe()[deployment]["num_replicas"]
        return int(number)


def _reason(error: BaseException) -> str:
    if isinstance(error, SerializationError):
        return str(error)  # it names what cannot be pickled
    cause = getattr(error, "cause", None) or error.__cause__ or error
    if isinstance(cause, RlplatError):
        return str(cause).strip()
    return f"{type(cause).__name__}: {cause}{raised_elsewhere(str(error))}"


def _kill(actor: Any) -> None:
    if rlplat.is_initialized():
        rlplat.kill(actor)
