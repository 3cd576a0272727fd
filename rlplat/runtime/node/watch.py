"""The node's eye on workers in use: asks for signs of life, reads memory, ends those that hang or hold too much.

The zygote is watched beside them, and when a worker is to start or to end: one that hangs is killed, which ends all.

The judgement is in two pure rooms (`liveness`, `memory_policy`); this reads /proc and carries the verdicts out. It
costs a few file reads four times a second while somebody is in use, and nothing at all else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlplat.runtime.core.node import memory_policy
from rlplat.runtime.core.node.liveness import Ask, Liveness
from rlplat.runtime.core.node.memory_policy import Holding, MachinePolicy
from rlplat.runtime.core.scheduler.views import InUse
from rlplat.runtime.machine import proc_files
from rlplat.runtime.node.processes import Processes

_MEMORY_PERIOD_S = 0.25
_ZYGOTE = "zygote"


class Watch:
    def __init__(
        self,
        processes: Processes,
        in_use: Callable[[], Mapping[str, InUse]],
        ask: Callable[[str], None],
        hang_timeout_s: float,
        memory_threshold: float,
    ) -> None:
        self._processes, self._in_use, self._ask = processes, in_use, ask
        self._liveness = Liveness(hang_timeout_s)
        self._memory = MachinePolicy(memory_threshold)
        self._life_due = self._memory_due = 0.0
        self._is_watching = False

    def answered(self, worker: str, now: float) -> None:
        self._liveness.answered(worker, now)

    def next_deadline(self) -> float | None:
        return min(self._life_due, self._memory_due) if self._is_watching else None

    def keep_house(self, now: float) -> None:
        if now < self._life_due and now < self._memory_due:
            return
        pids = {worker: (pid, use) for worker, use in self._in_use().items() if (pid := self._processes.pid(worker))}
        self._is_watching = bool(pids) or self._processes.waits_for_zygote
        if not self._is_watching:
            self._life_due = self._memory_due = 0.0  # look again as soon as anything happens
            self._liveness.look({}, now)
            return
        if now >= self._life_due:
            self._life_due = now + self._liveness.period_s
            self._look_at_life({worker: pid for worker, (pid, _) in pids.items()}, now)
        if now >= self._memory_due:
            self._memory_due = now + _MEMORY_PERIOD_S
            self._look_at_memory(pids, now)

    def _look_at_life(self, pids: dict[str, int], now: float) -> None:
        if self._processes.has_zygote_spoken():
            self._liveness.answered(_ZYGOTE, now)
        pids[_ZYGOTE] = self._processes.zygote
        found = {w: proc_files.reading(pid, self._liveness.is_silent(w)) for w, pid in pids.items()}
        readings = {w: reading for w, reading in found.items() if reading is not None}
        for verdict in self._liveness.look(readings, now):
            is_zygote = verdict.worker == _ZYGOTE
            if isinstance(verdict, Ask):
                if is_zygote:
                    self._processes.ask_zygote()
                else:
                    self._ask(verdict.worker)
            else:
                cause = "a module of `preload`" if is_zygote else "blocked in native code that holds the GIL"
                how = (
                    "it was stopped (SIGSTOP)"
                    if verdict.is_stopped
                    else f"it neither answered nor used any CPU time ({cause}?)"
                )
                reason = (
                    f"hung for {verdict.silent_s:.0f} s and was killed: {how}; the limit is "
                    f"rlplat.init(hang_timeout_s={self._liveness.timeout_s:g})"
                )
                if is_zygote:
                    self._processes.kill_zygote(reason)
                else:
                    self._processes.kill(verdict.worker, reason)

    def _look_at_memory(self, pids: dict[str, tuple[int, InUse]], now: float) -> None:
        machine = proc_files.machine_memory()
        is_short = machine.used > self._memory.threshold * machine.total
        holdings = [
            Holding(
                worker,
                use.name,
                proc_files.own_bytes(pid, use.memory),
                use.memory,
                use.is_actor,
                use.can_run_again,
            )
            for worker, (pid, use) in pids.items()
            if use.memory or is_short
        ]
        victims = memory_policy.over_their_limits(holdings)
        if is_short and not victims:
            victim = self._memory.look(holdings, machine, now)
            victims = [victim] if victim is not None else []
        for victim in victims:
            self._processes.kill(victim.worker, victim.reason, "OutOfMemory")
