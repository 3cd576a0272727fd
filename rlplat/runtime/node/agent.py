"""The agent: what one machine does for the head. Worker processes, the watch over them, what they leave in files."""

from __future__ import annotations

import os
import select
import shutil
import socket
from collections.abc import Callable, Container, Mapping
from typing import Any

from rlplat.runtime.core.scheduler.views import InUse
from rlplat.runtime.machine.session import MARK, end_workers, kill_marked, remove_session
from rlplat.runtime.machine.worker_logs import SNAPSHOTS
from rlplat.runtime.node.processes import Processes
from rlplat.runtime.node.watch import Watch
from rlplat.runtime.store.account import remove_files_of
from rlplat.runtime.wire.values import ErrorInfo


class Agent:
    def __init__(
        self,
        config: dict[str, Any],
        orders: socket.socket,
        zygote: int,
        gpus: list[str],
        poller: select.poll,
        *,
        who: Callable[[str], str],
        is_ready: Callable[[str], bool],
        in_use: Callable[[], Mapping[str, InUse]],
        ask_to_exit: Callable[[str], None],
        ask_for_life: Callable[[str], None],
        on_lost: Callable[[str, str, str], None],
        on_env_settled: Callable[[str, ErrorInfo | None], None],
        processes: type[Processes] = Processes,
        watch: type[Watch] = Watch,
    ) -> None:
        """`zygote`: its pid. `gpus`: what CUDA calls them. `processes` start and end the workers, `watch` looks at
        them; what they want to know and to tell is said there."""
        self._session, self._folder = config["session"], config["folder"]
        self.kept: Container[str] = ()
        """Files of segments that are not to go with their makers."""
        self.processes = processes(
            orders,
            zygote,
            poller,
            gpus,
            self._folder,
            config["log_to_driver"],
            who=who,
            is_ready=is_ready,
            ask_to_exit=ask_to_exit,
            on_lost=on_lost,
            on_env_settled=lambda key: on_env_settled(key, self.processes.envs.error(key)),
        )
        self._watch = watch(
            self.processes, in_use, ask_for_life, config["hang_timeout_s"], config["memory_usage_threshold"]
        )

    # -- orders of the head

    def start(self, worker: str, gpu_ids: tuple[int, ...], env: str) -> None:
        self.processes.start(worker, gpu_ids, env)

    def stop(self, worker: str, at_once: bool, is_surplus: bool, reason: str) -> None:
        self.processes.stop(worker, at_once, is_surplus, reason)

    def kill(self, worker: str, reason: str) -> None:
        self.processes.kill(worker, reason)

    def ready(self, worker: str) -> None:
        self.processes.on_ready(worker)

    def answered(self, worker: str, now: float) -> None:
        self._watch.answered(worker, now)

    def define_env(self, key: str, spec: str) -> None:
        self.processes.envs.define(key, spec)

    def remove_files(self, workers: list[str]) -> None:
        for worker in workers:  # owners that live have given names of their own to what it had made for them
            remove_files_of(self._session, worker, self.kept)

    # -- time

    def next_deadline(self) -> float | None:
        deadlines = (self.processes.next_deadline(), self._watch.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    def keep_house(self, now: float) -> None:
        self.processes.keep_house(now)
        self._watch.keep_house(now)

    def close(self) -> None:
        end_workers([pid for pid in self.processes.pids().values() if pid])
        # The zygote first: with its orders closed it would take the node for dead, and kill it before it is done here.
        kill_marked(os.environ[MARK])
        self.processes.close()
        shutil.rmtree(os.path.join(self._folder, SNAPSHOTS), ignore_errors=True)
        remove_session(self._session)
