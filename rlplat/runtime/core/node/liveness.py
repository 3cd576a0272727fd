"""Which workers hang. Pure: readings and a clock in, verdicts out.

Rules
1. Only workers in use are watched. Each is asked every `period_s` (a quarter of the limit, at most 2.5 s) for a sign
   of life that its I/O thread gives, whatever its main thread does; an unanswered question is not repeated.
2. CPU time is a sign of life as well: 1 % of the limit since the last sign. So a native call that holds the GIL and
   computes lives for as long as it likes, and one that holds it and sleeps does not.
3. Silent for the limit (less half a period, so that the verdict falls before it): hung, once.
   A stopped process (state T) is such a one: it neither answers nor computes. One that a debugger holds (t) lives, and
   one that waits for a disk or a file server in the kernel (D): no signal would end that either.
4. A gap in the watcher's own clock (the whole machine, or the tree of processes, was stopped) says nothing about the
   others: all of them start anew.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_MOST_PERIOD_S = 2.5
_CPU_SHARE = 0.01
_GAP_PERIODS = 2.0


class Reading(msgspec.Struct, frozen=True):
    """What the kernel says of a process."""

    cpu_s: float
    """CPU time that its threads have used."""
    state: str
    """One letter, as in /proc/<pid>/stat; D when that is the state of any thread."""


class Ask(msgspec.Struct, frozen=True):
    """Send it a `Ping`."""

    worker: str


class Hung(msgspec.Struct, frozen=True):
    worker: str
    silent_s: float
    is_stopped: bool


Verdict = Ask | Hung


class _Watched(msgspec.Struct):
    sign_at: float
    cpu_s: float
    is_asked: bool = False
    is_hung: bool = False


class Liveness:
    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.period_s = min(_MOST_PERIOD_S, timeout_s / 4)
        self._watched: dict[str, _Watched] = {}
        self._looked_at: float | None = None

    def is_silent(self, worker: str) -> bool:
        """Whether it was asked, and has not answered yet."""
        watched = self._watched.get(worker)
        return watched is not None and watched.is_asked

    def answered(self, worker: str, now: float) -> None:
        """Its `Pong` has come."""
        watched = self._watched.get(worker)
        if watched is not None:
            watched.sign_at, watched.is_asked = now, False

    def look(self, readings: Mapping[str, Reading], now: float) -> list[Verdict]:
        """Judge the workers in use; called every `period_s`."""
        if self._looked_at is None or now - self._looked_at > _GAP_PERIODS * self.period_s:
            for known in self._watched.values():
                known.sign_at = now
        self._looked_at = now
        for worker in self._watched.keys() - readings.keys():
            del self._watched[worker]
        verdicts: list[Verdict] = []
        for worker, reading in readings.items():
            watched = self._watched.get(worker)
            if watched is None:
                watched = self._watched[worker] = _Watched(now, reading.cpu_s)
            if not watched.is_asked:
                watched.cpu_s = reading.cpu_s  # it has answered: what it used before that is no news
            if reading.state in "tD" or reading.cpu_s - watched.cpu_s >= _CPU_SHARE * self.timeout_s:
                watched.sign_at, watched.cpu_s = now, reading.cpu_s
            if watched.is_hung:
                continue
            if now - watched.sign_at >= self.timeout_s - self.period_s / 2:
                watched.is_hung = True
                verdicts.append(Hung(worker, round(now - watched.sign_at, 1), reading.state == "T"))
            elif not watched.is_asked:
                watched.is_asked = True
                verdicts.append(Ask(worker))
        return verdicts
