"""What the scheduler hears (events) and what it wants done (actions), data only, and the turn that gathers these.

`scheduler` says what follows what.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import msgspec

from rlplat.runtime.wire.messages import (
    ActorGone,
    ActorRestarting,
    Granted,
    GroupNews,
    LeasesRefused,
    NameTaken,
    Placed,
)
from rlplat.runtime.wire.values import ActorInfo, ErrorInfo, Shape

Demand = tuple[tuple[str, float], ...]
"""Resources by name, sorted: hashable."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened outside. (A Struct: a hundred thousand a second are made.)"""


class Action(msgspec.Struct, frozen=True):
    """Something that the shell must do, in the order given."""


# ---------------------------------------------------------------- events: the cluster


class NodeJoined(Event, frozen=True):
    """A machine with these resources; its first spare workers are started. A node that is known already is ignored."""

    node: str
    total: dict[str, float]
    num_spares: int = 1
    """Workers that are kept ready beside those in use."""
    address: str = "127.0.0.1"
    hostname: str = ""
    """"": that of the head's machine."""


class NodeSuspected(Event, frozen=True):
    """It may be lost: nothing more is placed there. `NodeLost` follows, when its workers are dead for certain."""

    node: str


class NodeLost(Event, frozen=True):
    """All its workers are gone (the scheduler says so itself, with `TellDied`); it may join again under its name."""

    node: str
    reason: str


class WorkerReady(Event, frozen=True):
    worker: str


class WorkerLost(Event, frozen=True):
    """Its process has ended, however that came about; also what follows `StopWorker`."""

    worker: str
    reason: str
    kind: str = "WorkerCrashed"
    """Class of the error that a lost task fails with."""


class WorkerBlocked(Event, frozen=True):
    """Its task waits for others: its CPUs may be lent."""

    worker: str


class WorkerUnblocked(Event, frozen=True):
    worker: str


class Tick(Event, frozen=True):
    """The time of the last `WakeAt` has come. (Too early, too late or twice does no harm.)"""


class EnvFailed(Event, frozen=True):
    """The runtime environment with this key cannot be made: whatever waits for it fails with this error."""

    env: str
    error: ErrorInfo


# ---------------------------------------------------------------- events: leases


class LeasesRequested(Event, frozen=True):
    client: str
    shape: Shape
    count: int


class LeaseReturned(Event, frozen=True):
    client: str
    worker: str
    is_worn: bool = False
    """The worker is not to be used again."""


# ---------------------------------------------------------------- events: actors


class ActorRequested(Event, frozen=True):
    """`client` creates it. A taken name is refused (`ActorGone` with an OptionError) or, with `get_if_exists`, answered
    with `NameTaken`."""

    client: str
    actor: str
    info: ActorInfo
    shape: Shape = Shape()
    name: str = ""
    namespace: str = ""
    max_restarts: int = 0
    """-1: for ever (within the restart intensity)."""
    is_detached: bool = False
    get_if_exists: bool = False


class ActorEnded(Event, frozen=True):
    """Somebody wants it to end: at once, or by closing itself.

    `no_restart` is False for `kill(no_restart=False)` only: its process is stopped, and it has another if it may.
    """

    actor: str
    reason: str
    at_once: bool
    no_restart: bool = True


class ActorSought(Event, frozen=True):
    """`client` has a handle: it is told where the actor is, now and after each restart."""

    client: str
    actor: str


# ---------------------------------------------------------------- events: placement groups


class GroupRequested(Event, frozen=True):
    client: str
    group: str
    bundles: tuple[Demand, ...]
    strategy: str
    """PACK | SPREAD | STRICT_PACK | STRICT_SPREAD"""
    name: str = ""
    is_detached: bool = False


class GroupSought(Event, frozen=True):
    """`client` wants to know when it is there."""

    client: str
    group: str


class GroupRemoved(Event, frozen=True):
    """Somebody wants it removed: what runs in it is killed, what it holds is free again."""

    group: str


# ---------------------------------------------------------------- actions


class StartWorker(Action, frozen=True):
    worker: str
    gpu_ids: tuple[int, ...] = ()
    node: str = "node"
    env: str = ""
    memory: int = 0
    """Of the demand that it is started for; 0 for spares. (`Scheduler.memory_of` says what holds at the moment.)"""


class StopWorker(Action, frozen=True):
    """Kill it, or ask it to close itself; a surplus one may first wait until nobody needs what it owns."""

    worker: str
    at_once: bool
    is_surplus: bool = False
    reason: str = ""
    """For its `WorkerLost`, when it is killed for a reason that the scheduler alone knows."""


class Tell(Action, frozen=True):
    """A message that says it all: the node passes it on."""

    client: str
    message: Granted | LeasesRefused | Placed | ActorRestarting | ActorGone | NameTaken | GroupNews


class CreateDetached(Action, frozen=True):
    """Send the creation message that was kept for this actor to the worker (now, or when it comes)."""

    worker: str
    actor: str
    incarnation: int


class TellDied(Action, frozen=True):
    """To every client."""

    worker: str
    reason: str
    kind: str = "WorkerCrashed"


class WakeAt(Action, frozen=True):
    """Send a `Tick` at this time; the last one counts."""

    time: float


class Warn(Action, frozen=True):
    """Print this where the user looks."""

    text: str


# ---------------------------------------------------------------- between them


class Turn:
    """One event's turn: the time, what is to be done so far, and the alarms that were set for later."""

    def __init__(self) -> None:
        self.now = 0.0
        self.out: list[Action] = []
        self._alarms: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._next = 0

    def begin(self, now: float) -> list[Action]:
        """The list that collects this turn's actions; what is due comes first."""
        self.now = now
        actions = self.out = []
        while self._alarms and self._alarms[0][0] <= now:
            _, _, do, about = heapq.heappop(self._alarms)
            do(about)
        return actions

    def wake_at(self, time: float, do: Callable[[Any], None], about: Any) -> None:
        """Call `do(about)` in the first turn after `time`."""
        is_first = not self._alarms or time < self._alarms[0][0]
        self._next += 1
        heapq.heappush(self._alarms, (time, self._next, do, about))
        if is_first:
            self.out.append(WakeAt(time))

    def ask_for_next(self) -> None:
        """An alarm has gone off; the shell must know of the next one."""
        if self._alarms:
            self.out.append(WakeAt(self._alarms[0][0]))
