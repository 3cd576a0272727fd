"""The network between the machines of a simulated cluster: what `link.trunk` has of ZeroMQ, TCP and CURVE.

A trunk is two streams. Each keeps its order; different ones do not. A cut holds back what is sent meanwhile, in both
directions or in one (half-open), until it heals, as TCP does. When a connection breaks, a random rest of what is under
way is lost in each direction, and each end knows of it in its own time; what it sends until then is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rlplat.runtime.link.dropped import Dropped
from rlplat.runtime.wire import agent_messages
from rlplat.runtime.wire.agent_messages import AskLease, Lease, TrunkMessage, Using
from tests.simulation.world import World, told

Part = tuple[str, str, bytes, bytes]
_CHORES = (AskLease, Lease, Using)
"""What goes to and fro for ever: no sign that anything happens."""


class Stream:
    """One direction of a trunk."""

    def __init__(self, world: World, what: str, deliver: Callable[[Part], None]) -> None:
        self._world, self._what, self._deliver = world, what, deliver
        self.held_until = 0.0
        self._last_at = 0.0
        self.under_way: dict[int, Part] = {}
        self._number = 0

    def send(self, part: Part) -> None:
        self._number += 1
        number, world = self._number, self._world
        self.under_way[number] = part
        delay_s = world.delay_s * world.random.expovariate(1.0)
        self._last_at = max(world.now + delay_s, self._last_at, self.held_until)
        message = agent_messages.decode(part[2]) if not part[1] else None
        self._schedule(number, isinstance(message, _CHORES))

    def _schedule(self, number: int, is_chore: bool) -> None:
        self._world.after(self._last_at - self._world.now, lambda: self._arrive(number, is_chore), is_tick=is_chore)

    def hold(self, until: float) -> None:
        """Nothing arrives before that, whenever it was sent."""
        self.held_until = max(self.held_until, until)

    def _arrive(self, number: int, is_chore: bool) -> None:
        if number not in self.under_way:
            return  # lost
        if self._world.now < self.held_until:
            self._last_at = max(self._last_at, self.held_until)
            again = self.held_until - self._world.now
            self._world.after(again, lambda: self._arrive(number, is_chore), is_tick=is_chore)
            return
        for earlier in [each for each in self.under_way if each <= number]:  # those that were held back
            part = self.under_way.pop(earlier)
            if self._world.trace is not None and not is_chore:
                to, sender, frame, _ = part
                text = told([frame]) if sender else f"{agent_messages.decode(frame)!r:.160}"
                self._world.note(f"{self._what} {sender} -> {to}: {text}")
            self._deliver(part)

    def lose_rest(self) -> None:
        numbers = list(self.under_way)
        for number in numbers[self._world.random.randint(0, len(numbers)) :]:
            del self.under_way[number]

    def after_all(self, act: Callable[[], None]) -> None:
        """When everything that is sent has arrived."""
        delay_s = self._world.random.uniform(0, 0.01)
        at = max(self._last_at, self._world.now, self.held_until) + delay_s
        self._world.after(at - self._world.now, act)


class SimAgentTrunk:
    """Stands for `AgentTrunk`."""

    fds: list[int] = []

    def __init__(self, net: Net, node: str, on_news: Callable[[], None]) -> None:
        self._net, self.on_news = net, on_news
        self.machine = node.encode() if node else b"?%d" % net.new_number()
        self.has_ended = False
        self._inbox: list[Part] = []
        self.dropped = Dropped(node or "agent")
        self.up = Stream(net.world, f"{self.machine.decode()} ->", self._reaches_head)
        self.down = Stream(net.world, f"-> {self.machine.decode()}", self._reaches_machine)
        self.is_broken = False
        net.trunks[self.machine] = self

    # -- as the product calls it

    def has_input(self) -> bool:
        return bool(self._inbox)

    def receive(self) -> Iterator[Part]:
        while self._inbox:
            yield self._inbox.pop(0)

    def send(self, to: str, sender: str, frame: bytes, data: bytes = b"") -> None:
        if not self.is_broken:
            self.up.send((to, sender, frame, data))

    def tell(self, message: TrunkMessage, data: bytes = b"", to: str = "") -> None:
        self.send(to, "", agent_messages.encode(message), data)

    def close(self, linger_s: float = 0) -> None:
        """The head hears of it when it has heard the last words; no words outlast the lingering."""
        if not self.is_broken:
            self.is_broken = True
            if self.up.held_until > self._net.world.now + linger_s:
                self.up.lose_rest()
            self.down.under_way.clear()
            self.up.after_all(lambda: self._net.head_sees_end(self.machine))

    # -- the network

    def _reaches_head(self, part: Part) -> None:
        self._net.reach_head(self.machine, part)

    def _reaches_machine(self, part: Part) -> None:
        self._inbox.append(part)
        self.on_news()

    def break_off(self, head_hears: bool = True, agent_hears: bool = True) -> None:
        """Who hears nothing of it goes on with a connection that leads nowhere."""
        if self.is_broken:
            return
        self.is_broken = True
        self.up.lose_rest()
        self.down.lose_rest()
        if head_hears:
            self.up.after_all(lambda: self._net.head_sees_end(self.machine))
        if agent_hears:
            self.down.after_all(self._ends)

    def _ends(self) -> None:
        self.has_ended = True
        self.on_news()


class Net:
    """All trunks; and, for the head, `HeadTrunks`."""

    fds: list[int] = []

    def __init__(self, world: World) -> None:
        self.world = world
        self.trunks: dict[bytes, SimAgentTrunk] = {}
        self._inbox: list[tuple[bytes, Part]] = []
        self._ended: set[bytes] = set()
        self._num_made = 0
        self.dropped = Dropped("head")
        self.on_news: Callable[[], None] = lambda: None

    def new_number(self) -> int:
        self._num_made += 1
        return self._num_made

    # -- as the product calls it

    def has_input(self) -> bool:
        return bool(self._inbox)

    def receive(self) -> Iterator[tuple[bytes, Part]]:
        while self._inbox:
            yield self._inbox.pop(0)

    def send(self, machine: bytes, to: str, sender: str, frame: bytes, data: bytes = b"") -> bool:
        trunk = self.trunks.get(machine)
        if trunk is None or machine in self._ended:
            return False
        if not trunk.is_broken:
            trunk.down.send((to, sender, frame, data))
        return True

    def tell(self, machine: bytes, message: TrunkMessage, data: bytes = b"") -> bool:
        return self.send(machine, "", "", agent_messages.encode(message), data)

    # -- the network

    def reach_head(self, machine: bytes, part: Part) -> None:
        self._inbox.append((machine, part))
        self.on_news()

    def head_sees_end(self, machine: bytes) -> None:
        self._ended.add(machine)

    def under_way(self) -> list[tuple[str, str, bytes]]:
        """(sender, receiver, frame), of clients."""
        found = []
        for trunk in self.trunks.values():
            parts = [*trunk.up.under_way.values(), *trunk.down.under_way.values(), *trunk._inbox]
            found += [(sender, to, frame) for to, sender, frame, _ in parts if sender]
        return found + [(sender, to, frame) for _, (to, sender, frame, _) in self._inbox if sender]
