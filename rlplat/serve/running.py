"""`run`: an application behind a port, or for handles only; `Running`: what its caller holds of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import rlplat
from rlplat.errors import ConfigError
from rlplat.given.say import say as line_on_stderr
from rlplat.serve.controller import Controller
from rlplat.serve.deployments import Application, parts_of
from rlplat.serve.handle import Handle, all_routes
from rlplat.serve.listening import ListeningSocket


class Running:
    """What `serve.run` returns: an application that is up; a context manager that stops it."""

    def __init__(self, controller: Controller, owns_cluster: bool) -> None:
        self._controller = controller
        self._owns_cluster = owns_cluster
        self.is_stopped = threading.Event()

    @property
    def handle(self) -> Handle:
        """Of the ingress, the deployment that was given to `serve.run`."""
        return Handle(self._controller.ingress)

    @property
    def url(self) -> str:
        """Where it takes requests; empty where `port=None`."""
        listening = self._controller.listening
        return "" if listening is None else listening.url

    def update(self, app: Application, *, canary: float = 0.0, timeout_s: float | None = 120.0) -> None:
        """Roll over to another version of it; RlplatError where that does not start: then all of the old one goes on.

        canary: give it that share of the connections, beside the version that runs. The next update ends the canary,
        whichever version it rolls over to; `end_canary` goes back."""
        if not canary:
            versions = self._controller.deploy(app)
            self._controller.wait_until_settled(timeout_s, versions)
            self.end_canary(timeout_s=timeout_s)
            return
        versions = self._controller.deploy_canary(app, canary)
        try:
            self._controller.wait_until_settled(timeout_s, versions)
        except BaseException:
            self._controller.end_canary()
            raise

    def end_canary(self, *, timeout_s: float | None = 120.0) -> None:
        """All connections go to the version that ran before it."""
        self._controller.end_canary()
        self._controller.wait_until_settled(timeout_s)

    def scale(self, deployment: str, num_replicas: int, *, timeout_s: float | None = 120.0) -> None:
        self._controller.scale(deployment, num_replicas)
        self._controller.wait_until_settled(timeout_s)

    def reconfigure(self, deployment: str, user_config: Any, *, timeout_s: float | None = 120.0) -> None:
        """Give `reconfigure(user_config)` of every replica something new, and wait for it; nothing restarts.

        RlplatError where it raises in a replica, or kills it: then all get the one before again, where there was
        one. TimeoutError.
        """
        self._controller.reconfigure(deployment, user_config, timeout_s)

    def status(self) -> dict[str, Any]:
        return self._controller.status()

    def stop(self, drain_s: float = 30.0) -> None:
        """Finish the requests that run, for up to `drain_s`; then nothing is left. Again, it does nothing."""
        self.is_stopped.set()
        self._controller.stop(drain_s)
        owns_cluster, self._owns_cluster = self._owns_cluster, False
        if owns_cluster and rlplat.is_initialized():
            rlplat.shutdown()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop(0.0 if kind is KeyboardInterrupt else 30.0)


def run(
    app: Application,
    *,
    host: str = "127.0.0.1",
    port: int | None = 8000,
    token: str = "",
    start_timeout_s: float | None = 120.0,
    say: Callable[[str], None] | None = None,
) -> Running:
    """Start an application and wait until it is ready.

    port: 0 takes a free one; None: it is called by handles only. token: what callers must show; needed beyond loopback.
    say: told of deaths and of failed updates (default: a line on stderr). A cluster is started where there is none, and
    ends with the application. UsageError where the address cannot be had; RlplatError where a deployment cannot start.
    """
    for part in parts_of(app):  # what is wrong with it is said before anything starts
        if part.name in all_routes():
            raise ConfigError(
                f"a deployment named {part.name} runs in this process already: stop it, update it "
                f"(running.update), or name this one: .options(name=...)"
            )
    listening = None if port is None else ListeningSocket(host, port, token)
    owns_cluster = not rlplat.is_initialized()
    try:
        if owns_cluster:
            rlplat.init()
        controller = Controller(listening, token, say or line_on_stderr)
    except BaseException:
        if listening is not None:
            listening.close()
        raise
    running = Running(controller, owns_cluster)
    try:
        running.update(app, timeout_s=start_timeout_s)
    except BaseException:
        running.stop(0.0)
        raise
    return running
