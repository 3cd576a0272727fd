"""The lives of actors: who created each, what it is called, who wants to know of it, and whether it may start again.

Rules
1. A name counts in its namespace until its actor is gone for good; an actor that restarts keeps it.
2. An actor whose process died starts again as often as `max_restarts` says, the first time at once, then after delays
   that double. More than `Intensity.most` crashes within `Intensity.period_s` are final whatever `max_restarts` says:
   an actor that cannot live must not keep the cluster busy for ever.
3. A restart that somebody asked for (`kill(no_restart=False)`), or that a lost node caused, is no crash: it counts
   against `max_restarts` only.
4. The last thousand that are gone are remembered, so that whoever seeks one hears why: their class and their end, not
   their methods.
5. News of an actor may overtake its creation: a handle travels to other processes, and messages of different processes
   come in any order. A creator's actors are numbered ("creator:number") and come in that order, so one with a higher
   number than the last, of a creator that lives, is still to come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from rlplat.runtime.core.scheduler.events import ActorEnded, ActorRequested, Tell, Turn
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.values import ActorInfo, ErrorInfo, Shape

_REMEMBERED = 1000


@dataclass(frozen=True)
class Intensity:
    """How many crashes of one actor are put up with."""

    most: int = 3
    """Restarts after crashes within `period_s`; the next crash is the last."""
    period_s: float = 60.0
    first_delay_s: float = 0.1
    """Before the second restart in a period (the first comes at once); doubled for each further one."""
    most_delay_s: float = 10.0


@dataclass(eq=False, slots=True)
class ActorEntry:
    id: str
    client: str
    """Its creator."""
    info: ActorInfo
    shape: Shape
    name: str = ""
    namespace: str = ""
    max_restarts: int = 0
    is_detached: bool = False
    worker: str = ""
    incarnation: int = 1
    """Of the process that it has, or that it is to have next."""
    num_restarts: int = 0
    crashes: list[float] = field(default_factory=list)
    """When, the last period's."""
    error: ErrorInfo | None = None
    """It is gone for good, and why."""
    end_reason: str = ""
    """Somebody wants it gone for good."""
    stop_reason: str = ""
    """Somebody wants it to have another process."""
    seekers: set[str] = field(default_factory=set)
    request: Any = None
    """Where it waits for resources."""
    placement: Any = None
    """Where it waits for a worker."""

    def may_restart(self) -> bool:
        return not self.end_reason and (self.max_restarts < 0 or self.num_restarts < self.max_restarts)

    def state(self) -> str:
        """As Ray calls it: DEAD | ALIVE | RESTARTING | PENDING_CREATION"""
        if self.error is not None:
            return "DEAD"
        if self.worker:
            return "ALIVE"
        return "RESTARTING" if self.num_restarts else "PENDING_CREATION"


@dataclass(slots=True)
class Early:
    """What was said of an actor before it was created."""

    seekers: dict[str, None] = field(default_factory=dict)
    end: ActorEnded | None = None


class Actors:
    def __init__(self, intensity: Intensity, turn: Turn) -> None:
        self._turn = turn
        self.entries: dict[str, ActorEntry] = {}
        self.by_name: dict[tuple[str, str], str] = {}
        """(namespace, name) -> actor."""
        self._by_creator: dict[str, dict[str, None]] = {}
        self._sought_by: dict[str, set[str]] = {}
        self._gone: deque[str] = deque()
        self._early: dict[str, dict[str, Early]] = {}
        """By creator and actor."""
        self._last_number: dict[str, int] = {}
        """Of each creator."""
        self._intensity = intensity

    def add(self, event: ActorRequested) -> ActorEntry:
        e = event
        entry = ActorEntry(e.actor, e.client, e.info, e.shape, e.name, e.namespace, e.max_restarts, e.is_detached)
        self.entries[e.actor] = entry
        if e.name:
            self.by_name[e.namespace, e.name] = e.actor
        if not e.is_detached:
            self._by_creator.setdefault(e.client, {})[e.actor] = None
        self.seek(entry, e.client)
        return entry

    def early(self, actor: str) -> Early | None:
        """Where to note what is said of an unknown actor of a living creator; None when it is long gone."""
        creator, _, number = actor.rpartition(":")
        if not number.isdecimal() or int(number) <= self._last_number.get(creator, 0):
            return None
        return self._early.setdefault(creator, {}).setdefault(actor, Early())

    def requested(self, actor: str) -> Early | None:
        """Its creation is here; what was said of it before."""
        creator, _, number = actor.rpartition(":")
        if number.isdecimal():
            self._last_number[creator] = max(int(number), self._last_number.get(creator, 0))
        early = self._early.get(creator)
        return None if early is None else early.pop(actor, None)

    def never_created(self, creator: str) -> dict[str, Early]:
        """The creator is gone: what will not be created any more."""
        self._last_number.pop(creator, None)
        return self._early.pop(creator, {})

    def named(self, namespace: str, name: str) -> ActorEntry | None:
        actor = self.by_name.get((namespace, name))
        return None if actor is None else self.entries[actor]

    def seek(self, entry: ActorEntry, client: str) -> None:
        """`client` wants to know where it is from now on."""
        if client not in entry.seekers:
            entry.seekers.add(client)
            self._sought_by.setdefault(client, set()).add(entry.id)

    def client_lost(self, client: str) -> list[ActorEntry]:
        """It seeks no actor any more; those that depend on it."""
        for actor in self._sought_by.pop(client, ()):
            self.entries[actor].seekers.discard(client)
        return [self.entries[actor] for actor in self._by_creator.get(client, ())]

    def judge(self, entry: ActorEntry, reason: str, now: float, is_crash: bool) -> float | ErrorInfo:
        """Its process is gone: seconds until it starts again, or why it will not."""
        what = f"actor {entry.info.class_name} is gone"
        if entry.end_reason:
            return ErrorInfo("ActorDied", f"{what}: {entry.end_reason}")
        why = entry.stop_reason or f"its process {reason}"
        if 0 <= entry.max_restarts <= entry.num_restarts:
            if entry.max_restarts:
                why += f"; it was restarted {entry.num_restarts} times already (max_restarts={entry.max_restarts})"
            return ErrorInfo("ActorDied", f"{what}: {why}")
        if not is_crash or entry.stop_reason:
            return 0.0
        crashes, intensity = entry.crashes, self._intensity
        crashes.append(now)
        while crashes[0] <= now - intensity.period_s:
            crashes.pop(0)
        if len(crashes) > intensity.most:
            text = (
                f"{what}: it crashed {len(crashes)} times within {intensity.period_s:g} s, and no actor is restarted "
                f"more than {intensity.most} times in that time, whatever its max_restarts; the last time {why}"
            )
            return ErrorInfo("ActorDied", text)
        if len(crashes) == 1:
            return 0.0
        return min(intensity.most_delay_s, intensity.first_delay_s * 2 ** (len(crashes) - 2))

    def bury(self, entry: ActorEntry, error: ErrorInfo) -> None:
        """It is gone for good: tell those who seek it."""
        entry.error, entry.info, entry.crashes = error, ActorInfo(entry.info.class_name, {}), []
        if self.by_name.get((entry.namespace, entry.name)) == entry.id:
            del self.by_name[entry.namespace, entry.name]
        if not entry.is_detached:
            mine = self._by_creator[entry.client]
            del mine[entry.id]
            if not mine:
                del self._by_creator[entry.client]
        for client in sorted(entry.seekers):
            self._turn.out.append(Tell(client, messages.ActorGone(entry.id, error)))
            sought = self._sought_by[client]
            sought.discard(entry.id)
            if not sought:
                del self._sought_by[client]
        entry.seekers.clear()
        self._gone.append(entry.id)
        while len(self._gone) > _REMEMBERED:
            del self.entries[self._gone.popleft()]


def name_is_taken(name: str) -> ErrorInfo:
    return ErrorInfo("OptionError", f"an actor named {name!r} exists already: use rlplat.get_actor({name!r})")


def no_such_actor(name: str, namespace: str, named: Collection[tuple[str, str]]) -> ErrorInfo:
    """`named`: (namespace, name) of those that there are."""
    here = ", ".join(repr(other) for space, other in sorted(named) if space == namespace) or "none"
    where = f" in namespace {namespace!r}" if namespace else ""
    others = sorted({space for space, other in named if other == name})
    hint = f"; there is one in namespace {others[0]!r}" if others else ""
    return ErrorInfo("NoSuchActor", f"there is no actor named {name!r}{where} (named actors: {here}){hint}")
