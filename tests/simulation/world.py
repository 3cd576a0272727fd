"""A cluster in one process and one thread of control: virtual time, a virtual network, processes that may die.

What is simulated is the outside: the clock, ZeroMQ's sockets, the poll system call, the birth and death of processes.
What runs is the product: `Client`, `Worker`, `Node`, `IoLoop`, `Transport`, `Objects` and the pure rooms under them.

Rules
1. Exactly one simulated process runs at a time: a process has a thread of its own, but it runs only between `resume`
   and its next wait (in `poll` or in `sleep`). Who is next is decided by the world's queue of events alone.
2. Every choice (delays, who dies, where a stream of frames is cut) comes from the one `random.Random(seed)`.
3. Frames of one connection arrive in order; those of different connections in any order. What a process has sent just
   before it died may be lost, from any point of the stream on; what is sent to the dead is lost.
4. An event that is only housekeeping (an idle tick) is no sign of life: when nothing else has happened for `QUIET_S`,
   the world is quiescent, and whoever still waits then waits for ever.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NoReturn

import zmq

from rlplat.runtime import refs
from rlplat.runtime.wire import messages

QUIET_S = 6.0
"""Longer than any timer of the product that may be the cause of something."""
_TICK_S = 0.005
MAX_EVENTS = 10_000
"""Of one world: one that needs more is running in circles."""


class Killed(BaseException):
    """Unwinds the thread of a simulated process that has died."""


class Violation(AssertionError):
    """An invariant does not hold."""


class Process:
    """One simulated process: a socket, and a thread that runs when the world lets it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.is_alive = True
        self.state = "new"
        """new | running | waiting (in poll: frames wake it) | sleeping (in user code) | ended"""
        self.socket: SimSocket | None = None
        self.client: Any = None
        self.thread: threading.Thread | None = None
        self._baton = threading.Lock()
        self._baton.acquire()
        self._wait = 0
        """Number of the present wait: timers of earlier ones are stale."""
        self.has_background = False
        self.interruption: Callable[[], None] | None = None
        """Raises in the user code that sleeps now."""
        self.failure: BaseException | None = None

    # -- in the process's own thread

    def poll(self, timeout_s: float | None) -> None:
        if self.socket is not None and self.socket.inbox:
            return
        self._switch("waiting", timeout_s, is_tick=True)

    def sleep(self, seconds: float) -> None:
        """User code computes."""
        self.world.background_soon(self, _TICK_S)
        self._switch("sleeping", seconds, is_tick=False)
        if self.interruption is not None:
            strike, self.interruption = self.interruption, None
            strike()

    def _switch(self, state: str, timeout_s: float | None, is_tick: bool) -> None:
        if not self.is_alive:
            raise Killed
        self.state = state
        self._wait += 1
        if timeout_s is not None:
            wait = self._wait
            self.world.after(timeout_s, lambda: self._wake(wait), is_tick=is_tick, what=f"{self.name} wakes")
        self.world._baton.release()
        self._baton.acquire()
        if not self.is_alive:
            raise Killed

    # -- in the world's thread

    def _wake(self, wait: int) -> None:
        if self.is_alive and self._wait == wait and self.state in ("waiting", "sleeping"):
            self.resume()

    def start(self, body: Callable[[Process], None]) -> None:
        self.thread = threading.Thread(target=self._run, args=(body,), name=self.name, daemon=True)
        self.thread.start()
        self.resume()

    def _run(self, body: Callable[[Process], None]) -> None:
        self._baton.acquire()
        try:
            if self.is_alive:
                body(self)
        except Killed:
            pass
        except BaseException as error:
            self.failure = error
        finally:
            self.state = "ended"
            self.world._baton.release()

    def resume(self) -> None:
        world = self.world
        before, world.running = world.running, self
        connected = refs.connection()
        refs.set_backend(self.client)
        self.state = "running"
        world.touched[self.name] = None
        self._baton.release()
        world._baton.acquire()
        world.running = before
        refs.set_backend(connected)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure


class World:
    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 100.0
        self.running: Process | None = None
        self.processes: dict[str, Process] = {}
        self.dead: dict[str, str] = {}
        self.trace: list[str] | None = [] if keep_trace else None
        self.num_events = 0
        self.touched: dict[str, None] = {}
        """Processes that ran since `after_event` was called last."""
        self.after_event: Callable[[], None] = lambda: None
        self.on_frame_to: dict[str, Callable[[], None]] = {}
        """Processes without a thread of their own (nodes): called when a frame is there."""
        self.on_death: Callable[[str, str], None] = lambda name, how: None
        self.on_sent: Callable[[str, str, bytes], None] = lambda sender, receiver, frame: None
        self.delay_s = 0.0005
        self.quiet_s = QUIET_S
        self.folder = ""
        """Of the session folders, in which a transport looks for who is on its machine."""
        self.elsewhere: Callable[[], list[tuple[str, str, bytes]]] = list
        """(sender, receiver, frame) of what is under way between machines."""
        self._events: list[tuple[float, int, Callable[[], None], bool, str]] = []
        self._num_scheduled = 0
        self._num_live = 0
        """Scheduled events that are more than housekeeping."""
        self._last_life = self.now
        self._links: dict[tuple[str, str, bytes], float] = {}
        """When the last frame of each connection arrives."""
        self._in_flight: dict[int, tuple[str, str, bytes, list[bytes]]] = {}
        self._cut_frames: set[int] = set()
        self._baton = threading.Lock()
        self._baton.acquire()

    # ---------------------------------------------------------------- time

    def after(self, delay_s: float, act: Callable[[], None], *, is_tick: bool = False, what: str = "") -> None:
        self._num_scheduled += 1
        self._num_live += not is_tick
        heapq.heappush(self._events, (self.now + max(0.0, delay_s), self._num_scheduled, act, is_tick, what))

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Until nothing happens any more, or `is_over`."""
        while self._events and not is_over():
            if not self._num_live and self.now - self._last_life > self.quiet_s:
                return
            at, _, act, is_tick, what = heapq.heappop(self._events)
            self.now = max(self.now, at)
            if not is_tick:
                self._num_live -= 1
                self._last_life = self.now
            self.num_events += 1
            if self.num_events > MAX_EVENTS:
                raise Violation(f"no end: {MAX_EVENTS} events, the last one: {what}")
            if what and not is_tick:
                self.note(what)
            act()
            if self.touched:
                self.after_event()
                self.touched.clear()

    def still_alive(self) -> None:
        """What a tick did was more than housekeeping."""
        self._last_life = self.now

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now - 100:10.6f}  {text}")

    # ---------------------------------------------------------------- processes

    def add_process(self, name: str) -> Process:
        if name in self.processes:
            raise Violation(f"process id {name} is used twice")
        process = self.processes[name] = Process(self, name)
        return process

    def end(self, name: str, how: str) -> None:
        """The process is gone, now. What it sent last is cut off at a random point."""
        process = self.processes[name]
        if not process.is_alive:
            return
        process.is_alive = False
        self.dead[name] = how
        self.note(f"{name} DIES: {how}")
        if how != "exit":
            links: dict[tuple[str, bytes], list[int]] = {}
            for number, (sender, receiver, label, _) in self._in_flight.items():
                if sender == name:
                    links.setdefault((receiver, label), []).append(number)
            for numbers in links.values():
                first_cut = self.random.randint(0, len(numbers))
                for index, number in enumerate(numbers):
                    if index >= first_cut:
                        self._cut_frames.add(number)
        self.on_death(name, how)
        if process is not self.running and process.thread is not None and process.state != "ended":
            process.resume()  # it unwinds

    def exit_here(self, how: str) -> NoReturn:
        """The running process ends itself."""
        assert self.running is not None
        self.end(self.running.name, how)
        raise Killed

    def close(self) -> None:
        """Unwind every thread."""
        for process in self.processes.values():
            process.is_alive = False
        for process in self.processes.values():
            if process.thread is not None:
                if process.state != "ended":
                    try:
                        process.resume()
                    except BaseException:
                        pass
                process.thread.join(10)

    # ---------------------------------------------------------------- network

    def send(self, sender: str, receiver: str, label: bytes, parts: list[bytes]) -> None:
        """`label` is what the receiver will see of the connection."""
        if not self.processes[sender].is_alive:
            return
        link = (sender, receiver, label)
        delay = self.delay_s * self.random.expovariate(1.0)
        at = max(self.now + delay, self._links.get(link, 0.0))
        self._links[link] = at
        self._num_scheduled += 1
        number = self._num_scheduled
        self._in_flight[number] = (sender, receiver, label, parts)
        self.after(at - self.now, lambda: self._arrive(number), what="")
        self.on_sent(*_ends(sender, receiver, parts))

    def frames_in_flight(self) -> list[tuple[str, str, bytes]]:
        """(sender, receiver, frame) that may yet arrive, those in inboxes too."""
        frames = [
            _ends(sender, receiver, parts)
            for number, (sender, receiver, _, parts) in self._in_flight.items()
            if number not in self._cut_frames
        ]
        for process in self.processes.values():
            if process.socket is not None and process.is_alive:
                inbox = process.socket.inbox
                frames += [_ends(label.decode().rstrip(">"), process.name, parts) for label, parts in inbox]
        return frames + self.elsewhere()

    def _arrive(self, number: int) -> None:
        sender, receiver, label, parts = self._in_flight.pop(number)
        if number in self._cut_frames:
            self._cut_frames.discard(number)
            self.note(f"{sender} -> {receiver}: lost with its sender")
            return
        process = self.processes.get(receiver)
        if process is None or not process.is_alive or process.socket is None:
            self.note(f"{sender} -> {receiver}: nobody there")
            return
        if self.trace is not None:
            self.note(f"{sender} -> {receiver}: {told(parts)}")
        process.socket.inbox.append((label, parts))
        if label.endswith(b">"):
            process.socket.callers.add(label)
        if receiver in self.on_frame_to:
            self.on_frame_to[receiver]()
        elif process.state == "waiting":
            process.resume()
        else:
            self.background_soon(process, self.random.uniform(0, _TICK_S))

    # ---------------------------------------------------------------- the background thread of each process

    def background_soon(self, process: Process, delay_s: float, *, is_tick: bool = False) -> None:
        if is_tick:
            if not process.has_background:
                process.has_background = True
                self.after(delay_s, lambda: self._background_tick(process), is_tick=True)
        else:
            self.after(delay_s, lambda: self._background(process), what=f"{process.name} in the background")

    def _background_tick(self, process: Process) -> None:
        process.has_background = False
        self._background(process)

    def _background(self, process: Process) -> None:
        """What `IoLoop._serve` does in a round while the main thread is in user code."""
        if not process.is_alive or process.client is None or process.state not in ("sleeping", "ended"):
            return
        client = process.client
        loop = client.link.loop
        self.touched[process.name] = None
        before, self.running = self.running, process
        connected = refs.connection()
        refs.set_backend(client)
        try:
            if not loop.lock.acquire(blocking=False):
                raise Violation(f"{process.name}: its lock is held in user code")
            try:
                loop.transport.flush()
                loop.drain()
                loop.keep_house()
                loop.transport.flush()
            finally:
                loop.lock.release()
            tick_s = loop.until_chores_s()
        except Killed:
            return
        finally:
            self.running = before
            refs.set_backend(connected)
        if loop.transport.num_unsent:
            self.background_soon(process, _TICK_S)
        elif tick_s is not None:
            self.background_soon(process, tick_s, is_tick=True)


def _ends(sender: str, receiver: str, parts: list[bytes]) -> tuple[str, str, bytes]:
    """(sender, receiver, frame), of clients: a node that passes on has the other end's id ahead of the frame."""
    *peer, frame = parts
    if peer and receiver[0] == "n":
        return sender, peer[0].decode(), frame
    return peer[0].decode() if peer else sender, receiver, frame


def told(parts: list[bytes]) -> str:
    texts = ", ".join(_in_short(message) for message in messages.decode(parts[-1]))
    return "".join(f"[{part.decode()}] " for part in parts[:-1]) + texts


def _in_short(message: Any) -> str:
    text = repr(message)
    return text if len(text) <= 160 else text[:157] + "..."


# ---------------------------------------------------------------- the system, as the product sees it

_world: World | None = None


def current() -> World:
    """Of the code that users would write."""
    assert _world is not None, "no world is being simulated"
    return _world


def set_current(world: World | None) -> None:
    global _world
    _world = world


class SimPoller:
    """Stands for `select.poll()`: frames and timers wake it; it never names a descriptor."""

    def __init__(self, world: World) -> None:
        self._world = world

    def register(self, *_: Any) -> None:
        pass

    unregister = modify = register

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        process = self._world.running
        assert process is not None
        process.poll(None if timeout_ms is None else timeout_ms / 1000)
        return []


class SimSocket:
    """A ROUTER socket as `Transport` uses it. Labels mean what they mean there: "<peer>" is our connection to it,
    "<peer>>" its connection to us."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.inbox: deque[tuple[bytes, list[bytes]]] = deque()
        self.callers: set[bytes] = set()
        self.options: dict[int, Any] = {}
        self._id = self._name = self._node = ""
        """What it is called on its machine, and in the world; the node of its machine."""
        self._connect_as = b""
        self._connected: set[bytes] = set()
        self._sending_to: bytes | None = None
        self._unsent: list[bytes] = []
        self._parts: list[bytes] = []
        """Of the frame that is being read."""

    def setsockopt(self, option: int, value: Any) -> None:
        if option == zmq.CONNECT_ROUTING_ID:
            self._connect_as = value
        self.options[option] = value

    set = setsockopt

    def getsockopt(self, option: int) -> int:
        if option == zmq.EVENTS:
            return zmq.POLLOUT | (zmq.POLLIN if self.inbox else 0)
        if option == zmq.RCVMORE:
            return int(bool(self._parts))
        return 0

    get = getsockopt

    def bind(self, endpoint: str) -> None:
        path = endpoint.removeprefix("ipc://")
        _, session, self._id = path.rsplit("/", 2)
        self._node = "node" if session == "session" else session
        self._name = self._in_world(self._id)
        self._world.processes[self._name].socket = self
        open(path, "x").close()

    def _in_world(self, client: str) -> str:
        return self._node if client == "node" else client

    def connect(self, endpoint: str) -> None:
        self._connected.add(self._connect_as)

    def disconnect(self, endpoint: str) -> None:
        self._connected.discard(endpoint.rsplit("/", 1)[1].encode())

    def send(self, data: Any, flags: int = 0, **_: Any) -> None:
        if self._sending_to is None:
            label = bytes(data)
            if label not in self._connected and label not in self.callers:
                raise zmq.ZMQError(zmq.EHOSTUNREACH)
            self._sending_to = label
            return
        self._unsent.append(bytes(data))
        if not flags & zmq.SNDMORE:
            label, parts, self._sending_to, self._unsent = self._sending_to, self._unsent, None, []
            self._send(label, parts)

    def _send(self, label: bytes, parts: list[bytes]) -> None:
        is_answer = label.endswith(b">")
        peer = label.removesuffix(b">").decode()
        seen_as = self._id.encode() + (b"" if is_answer else b">")
        self._world.send(self._name, self._in_world(peer), seen_as, parts)

    def recv(self, flags: int = 0, **_: Any) -> bytes:
        if self._parts:
            return self._parts.pop(0)
        if not self.inbox:
            raise zmq.Again
        label, parts = self.inbox.popleft()
        self._parts = list(parts)
        return label

    def close(self, *_: Any, **__: Any) -> None:
        pass
