"""Slots: room for one trial each. A placement group holds the trial's whole demand, and in it lives a trial host.

An experiment that runs in a placement group (in a trial of another experiment, say) takes nothing beside it: its slots
share what that group holds. So an outer trial that waits for an inner experiment lends it what it has.

slots = Slots(make_host, room())
slot = slots.free({"CPU": 1.0}) or slots.open({"CPU": 1.0})       # None: no room now
slot.assign(7); slot.call("begin", order)
ref = slot.waits_for                                             # for `wait`; then slots.opened(slot) or slot.take()
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import rlplat

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef, PlacementGroup

Demand = dict[str, float]
"""{"CPU": 1.0, "GPU": 0.5}: the cluster's names."""

READY, END = "ready", "end"
_EPS = 1e-9


def room() -> dict[str, float]:
    """What all slots can have together: the cluster's, or that of the group in which this experiment runs. The GPUs of
    such a group belong to the process of the outer trial."""
    group = rlplat.get_current_placement_group()
    if group is None:
        return rlplat.cluster_resources()
    held: dict[str, float] = {}
    for bundle in group.bundle_specs:
        for name, amount in bundle.items():
            held[name] = held.get(name, 0.0) + amount
    held.pop("GPU", None)
    return held


@dataclass(frozen=True)
class Call:
    method: str
    number: int | None
    """The trial that it is for."""
    ref: ObjectRef


@dataclass(eq=False)
class Slot:
    demand: Demand
    group: PlacementGroup
    opening: ObjectRef | None
    """There when the group has its resources; None once it has."""
    host: ActorHandle | None = None
    trial: int | None = None
    calls: deque[Call] = field(default_factory=deque)
    """Whose answers are awaited, in their order."""
    since: float = 0.0
    """When the oldest of them was made, or came to be the oldest (monotonic seconds)."""
    left: int | None = None
    """A released trial that may still run in the host: the next `begin` ends it, or `end` does."""

    @property
    def is_free(self) -> bool:
        return self.trial is None and self.host is not None

    @property
    def waits_for(self) -> ObjectRef | None:
        return self.calls[0].ref if self.calls else self.opening

    def call(self, method: str, *arguments: Any) -> None:
        self._send(method, self.trial, arguments)

    def end(self) -> None:
        """End what runs in the host, of this trial or of the one before."""
        number, self.left = self.trial if self.left is None else self.left, None
        self._send(END, number, ())

    def _send(self, method: str, number: int | None, arguments: tuple[Any, ...]) -> None:
        if not self.calls:
            self.since = time.monotonic()
        self.calls.append(Call(method, number, getattr(self.host, method).remote(*arguments)))

    def take(self) -> Call:
        """The oldest call, which has been answered."""
        self.since = time.monotonic()
        return self.calls.popleft()


class Slots:
    def __init__(self, make_host: Callable[[PlacementGroup, Demand], ActorHandle], room: Mapping[str, float]) -> None:
        """room: what there is in all. Others may use it too; then a slot opens when they let go."""
        self._make_host = make_host
        self._outer = rlplat.get_current_placement_group()
        self.room = room
        self.all: list[Slot] = []
        self.by_trial: dict[int, Slot] = {}
        self._looked_at = time.monotonic()

    def free(self, demand: Demand) -> Slot | None:
        return next((slot for slot in self.all if slot.is_free and slot.demand == demand), None)

    def open(self, demand: Demand) -> None:
        """Reserve the resources of one more slot, at the price of idle slots of another size; not where one of this
        size is being opened, nor where there is no room."""
        if any(slot.opening is not None and slot.demand == demand for slot in self.all):
            return
        for slot in [slot for slot in self.all if slot.is_free and not slot.calls]:
            if self.fits(demand):
                break
            self.close(slot)
        if not self.fits(demand):
            return
        if self._outer is not None:
            self.all.append(Slot(demand, self._outer, None))
            self._start(self.all[-1])
        else:
            group = rlplat.placement_group([demand], strategy="STRICT_PACK")
            self.all.append(Slot(demand, group, group.ready()))

    def fits(self, demand: Mapping[str, float]) -> bool:
        """Beside the slots that there are."""
        return all(
            sum(slot.demand.get(name, 0.0) for slot in self.all) + amount <= self.room.get(name, 0.0) + _EPS
            for name, amount in demand.items()
        )

    def opened(self, slot: Slot) -> None:
        """Its resources are there: start the host."""
        assert slot.opening is not None
        rlplat.get(slot.opening)
        slot.opening = None
        self._start(slot)

    def assign(self, slot: Slot, number: int) -> None:
        slot.trial, slot.left = number, None
        self.by_trial[number] = slot

    def release(self, number: int) -> None:
        """The trial has ended or waits again; something of it may still run in the host."""
        slot = self.by_trial.pop(number, None)
        if slot is not None:
            slot.trial, slot.left = None, number

    def to_the_back(self, slot: Slot) -> None:
        """Of several slots with answers `wait` takes the first one's."""
        self.all.remove(slot)
        self.all.append(slot)

    def clean(self) -> None:
        """End what still runs of released trials whose slots nobody took."""
        for slot in self.all:
            if slot.is_free and slot.left is not None:
                slot.end()

    def renew(self, slot: Slot) -> None:
        """Kill the host, with all that it runs, and start another one."""
        if slot.host is not None:
            rlplat.kill(slot.host)
        if slot.trial is not None:
            self.by_trial.pop(slot.trial, None)
        slot.trial = slot.left = None
        slot.calls.clear()
        self._start(slot)

    def _start(self, slot: Slot) -> None:
        """Its first call is answered when it runs: how long a process takes to start is no silence of a trial."""
        slot.host = self._make_host(slot.group, slot.demand)
        slot.call(READY)

    def close(self, slot: Slot) -> None:
        self.all.remove(slot)
        if slot.host is not None:
            rlplat.kill(slot.host)
        if self._outer is None:
            rlplat.remove_placement_group(slot.group)

    def silent(self, limit_s: float, end_s: float) -> list[Slot]:
        """Whose hosts have not answered for so long; end_s: the limit of what ends a trial. To be asked every quarter
        of the shorter one: where the tuner itself was held up for longer (by its storage, by a machine that stood
        still), the rest of it is nobody's silence; and who has answered is not silent, although the answer was not
        taken yet."""
        now, limits = time.monotonic(), {READY: math.inf, END: end_s}
        held_up_s = max(0.0, now - self._looked_at - min(limit_s, end_s) / 4)
        self._looked_at = now
        late: dict[ObjectRef, Slot] = {}
        for slot in self.all:
            slot.since = min(now, slot.since + held_up_s)
            if slot.calls and now - slot.since > limits.get(slot.calls[0].method, limit_s):
                late[slot.calls[0].ref] = slot
        if late:
            for ref in rlplat.wait(list(late), num_returns=len(late), timeout=0)[0]:
                del late[ref]
        return list(late.values())

    def close_all(self, within_s: float) -> None:
        """Tell the trials that wait at a report to end, give them `within_s` for it, and kill whatever is left."""
        answered = {call.ref for slot in self.all for call in slot.calls}
        if answered:
            answered = set(rlplat.wait(list(answered), num_returns=len(answered), timeout=0)[0])
        for slot in self.all:
            is_at_rest = all(call.ref in answered for call in slot.calls)
            if slot.host is not None and is_at_rest and (slot.left is not None or slot.trial is not None):
                slot.end()
        if ending := [call.ref for slot in self.all for call in slot.calls if call.method == END]:
            rlplat.wait(ending, num_returns=len(ending), timeout=within_s)
        for slot in list(self.all):
            self.close(slot)
        self.by_trial.clear()
