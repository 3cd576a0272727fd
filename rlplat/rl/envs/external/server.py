"""Where simulators connect, and which environments are whose: `SimulatorListener` talks to each in a thread of its own.

`SimulatorServer`: those that ask for every action; `FragmentServer`: those that act by themselves with a policy."""

from __future__ import annotations

import hmac
import http
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlplat.errors import ConfigError, EnvError, MissingExtra
from rlplat.listening import foreign_request, in_url, is_loopback
from rlplat.rl.envs.external import frames
from rlplat.rl.envs.external.frames import (
    Advance,
    BadFrame,
    EnvFragment,
    Fragment,
    Join,
    Leaves,
    Reset,
    Rows,
)

TOKEN = "RLPLAT_EXTERNAL_TOKEN"
"""The environment variable with the word that simulators from other machines must know."""
END = "the training has ended"
TELL_PERIOD_S = 10.0
CLOSE_S = 2.0
"""How long the end waits for simulators to take leave."""
JOIN_S = 15.0
"""How long a connection may take to join; one that says nothing is closed."""
SILENT_S = 600.0
"""A simulator that sends nothing for so long while it is waited for is named, and its place is free."""
MAX_JOIN_BYTES = 64 * 2**10
"""Of a frame, until its sender has joined."""
SPARE_CONNECTIONS = 32
"""Beyond one for each environment: those that wait for a place, or are about to be refused."""
JOIN_PATIENCE_S = 30.0
"""How long a simulator waits for a place: that of one that is gone is free when its connection is found broken."""

log = logging.getLogger("rlplat.start")


@dataclass(eq=False)
class Simulator:
    envs: np.ndarray
    """int64[k]: which environments are its own."""
    rows: Any = None
    """What it sent, until it is taken."""
    actions: bytes | None = None
    """The frame with its next actions, until it is sent."""
    waits: bool = False
    """For the training; else something is awaited from it."""


class SimulatorListener:
    """A subclass says what is exchanged: `talk`."""

    protocol = frames.PROTOCOL

    def __init__(self, listen: str, spaces: dict[str, Any], leaves: Leaves, seeds: list[int]) -> None:
        """seeds: one for each environment. ConfigError for a bad address, MissingExtra without websockets."""
        try:
            from websockets.sync.server import serve
        except ImportError:
            raise MissingExtra("websockets", "serve", "an external environment") from None
        host, port = parse_address(listen)
        self._token = os.environ.get(TOKEN, "")
        if not is_loopback(host) and not self._token:
            raise ConfigError(
                f"listening at {listen} lets other machines in, which needs a word that they know: set ${TOKEN} here "
                "and where the simulators run, or listen at 127.0.0.1"
            )
        self._spaces, self._leaves, self._seeds = spaces, leaves, seeds
        self._changed = threading.Condition()
        self._simulators: list[Simulator] = []
        self._connections: dict[Any, Simulator | None] = {}
        self._is_closed = False
        try:
            self._server = serve(
                self._serve,
                host,
                port,
                process_request=self._check_token,
                compression=None,
                max_size=MAX_JOIN_BYTES,
                max_queue=1,  # a simulator waits for each answer: more frames than one are none of the protocol's
                close_timeout=CLOSE_S,
                logger=logging.getLogger("rlplat.external"),
            )
        except OSError as error:
            raise ConfigError(
                f"nothing can listen at {listen}: {error.strerror}; where another training, a second rollout worker "
                "or an evaluation listens there: take another port, num_rollout_workers 0 or 1, evaluation.episodes 0"
            ) from None
        self.address = f"ws://{in_url(host, self._server.socket.getsockname()[1])}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="simulators", daemon=True)
        self._thread.start()
        log.info("listening at %s for simulators with %d environments", self.address, len(seeds))

    def talk(self, connection: Any, simulator: Simulator) -> None:
        """Everything after `joined`, in the simulator's thread; returns when the training has ended."""
        raise NotImplementedError

    def close(self) -> None:
        """Tells the simulators that wait for actions; the others find their connection closed."""
        with self._changed:
            self._is_closed = True
            others = [each for each, own in self._connections.items() if own is None or not own.waits]
            self._changed.notify_all()
        self._server.shutdown()
        for connection in others:  # each takes up to CLOSE_S where its other end says nothing
            threading.Thread(target=connection.close, args=(1001, END), daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: not self._connections, CLOSE_S)
        self._thread.join(timeout=5.0)

    def wait_for(self, num_ready: Callable[[], int]) -> None:
        """Until `num_ready` environments are all of them; says every few seconds how many are there. With the lock."""
        while not self._changed.wait_for(lambda: self._is_closed or num_ready() == len(self._seeds), TELL_PERIOD_S):
            there = sum(len(each.envs) for each in self._simulators)
            log.info(
                "waiting for simulators at %s: %d of %d environments are connected, %d have answered",
                *(self.address, there, len(self._seeds), num_ready()),
            )
        if num_ready() < len(self._seeds):
            raise EnvError("the environment was closed while it waited for simulators")

    def _check_token(self, connection: Any, request: Any) -> Any:
        given = request.headers.get("Authorization", "")
        if self._token and not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, f"wrong or no token: set ${TOKEN}\n")
        if len(self._connections) >= len(self._seeds) + SPARE_CONNECTIONS:
            text = f"{len(self._connections)} connections are open, for {len(self._seeds)} environments\n"
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, text)
        headers = (",".join(request.headers.get_all(name)) for name in ("Host", "Origin"))
        refused = None if self._token else foreign_request(*headers)
        return None if refused is None else connection.respond(refused[0], f"{refused[1]}\n")

    def _serve(self, connection: Any) -> None:
        """One simulator, from its connection to its end, in a thread of its own."""
        from websockets.exceptions import ConnectionClosed

        simulator: Simulator | None = None
        with self._changed:
            self._connections[connection] = None
        try:
            connection.send(
                frames.encode(
                    "welcome",
                    protocol=self.protocol,
                    spaces=self._spaces,
                    num_envs=len(self._seeds),
                    max_frame_bytes=frames.MAX_FRAME_BYTES,
                )
            )
            simulator = self._join(self._receive(connection, JOIN_S))
            self._connections[connection] = simulator
            protocol = connection.protocol
            name = "max_message_size" if hasattr(protocol, "max_message_size") else "max_size"  # before websockets 15
            setattr(protocol, name, frames.MAX_FRAME_BYTES)
            connection.send(frames.encode("joined", seeds=[self._seeds[env] for env in simulator.envs]))
            self.talk(connection, simulator)
            connection.send(frames.encode("end"))
        except BadFrame as error:
            log.warning("warning: a simulator at %s is refused: %s", connection.remote_address, error)
            try:
                connection.send(frames.encode("error", message=str(error)))
            except ConnectionClosed:
                pass  # it has left without the reason
        except ConnectionClosed:
            pass  # its environments wait for another one
        finally:
            with self._changed:
                del self._connections[connection]
                if simulator is not None:
                    self._simulators.remove(simulator)
                self._changed.notify_all()

    def _receive(self, connection: Any, patience_s: float | None = None) -> Any:
        """Its next frame; BadFrame where none comes in time (None: SILENT_S)."""
        patience_s = SILENT_S if patience_s is None else patience_s
        try:
            return frames.decode(connection.recv(timeout=patience_s))
        except TimeoutError:
            raise BadFrame(f"nothing was sent for {patience_s:g} s, and something is expected") from None

    def _join(self, frame: Any) -> Simulator:
        if not isinstance(frame, Join):
            raise BadFrame("the first frame of a simulator is join")
        if frame.protocol != self.protocol:
            raise BadFrame(f"protocol {frame.protocol} is asked for, and this is protocol {self.protocol}")
        total = len(self._seeds)
        if not 1 <= frame.num_envs <= total:
            raise BadFrame(
                f"num_envs is {frame.num_envs}, and the training has {total} environments (num_envs_per_worker)"
            )
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._free()) >= frame.num_envs, JOIN_PATIENCE_S):
                raise BadFrame(
                    f"{len(self._free())} of {total} environments are free, and {frame.num_envs} are asked for: raise "
                    "num_envs_per_worker, or start fewer simulators"
                )
            simulator = Simulator(self._free()[: frame.num_envs])
            self._simulators.append(simulator)
        return simulator

    def _free(self) -> np.ndarray:
        taken = [env for each in self._simulators for env in each.envs]
        return np.setdiff1d(np.arange(len(self._seeds)), taken)


class SimulatorServer(SimulatorListener):
    """Their frames become rows, and rows of actions frames.

    server = SimulatorServer("127.0.0.1:9900", spaces, obs_leaves, seeds)
    obs = server.take()                                 # waits until every environment has one
    server.give({"": actions})
    step = server.take()
    """

    def take(self) -> list[tuple[np.ndarray, Rows]]:
        """(which environments, their rows) of every simulator, as soon as each environment has one."""
        with self._changed:
            self.wait_for(lambda: sum(len(each.envs) for each in self._simulators if each.rows is not None))
            taken = []
            for each in self._simulators:
                assert each.rows is not None
                taken.append((each.envs, each.rows))
                each.rows = None
            return taken

    def give(self, actions: dict[str, np.ndarray]) -> None:
        """actions: by path, a row for each environment."""
        with self._changed:
            for each in self._simulators:
                own = {path: frames.pack_array(array[each.envs]) for path, array in actions.items()}
                each.actions = frames.encode("actions", actions=own)
            self._changed.notify_all()

    def talk(self, connection: Any, simulator: Simulator) -> None:
        expected: Any = Reset
        what = "reset is the first frame after join"
        while True:
            frame = self._receive(connection)
            if not isinstance(frame, expected):
                raise BadFrame(f"{what}, and this is {type(frame).__name__.lower().replace('advance', 'step')}")
            expected, what = Reset | Advance, "reset or step is expected"
            actions = self._exchange(simulator, frames.read_rows(frame, self._leaves, len(simulator.envs)))
            if actions is None:
                return
            connection.send(actions)

    def _exchange(self, simulator: Simulator, rows: Rows) -> bytes | None:
        """The frame with the next actions; None where the training has ended."""
        with self._changed:
            simulator.rows, simulator.actions, simulator.waits = rows, None, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: simulator.actions is not None or self._is_closed)
            simulator.waits = False
            return simulator.actions


class FragmentServer(SimulatorListener):
    """Each is sent a policy, and answers with a fragment of steps.

    server = FragmentServer("127.0.0.1:9900", spaces, obs_leaves, seeds, num_steps=128, ahead=0)
    server.offer(version, onnx, {"policy_action": ("int64", ()), ...})
    fragments = server.take()                           # waits until there is one of every environment

    A simulator begins a fragment, with the newest policy, when fewer than `ahead` of its own wait here, or one more
    during a `take`. So with ahead=0 it waits for the next `take`, and every step is by the newest policy; with
    ahead=1 it goes on while the training learns. A fragment that has come stays when its simulator is lost.
    """

    protocol = frames.LOCAL_PROTOCOL

    def __init__(
        self,
        listen: str,
        spaces: dict[str, Any],
        leaves: Leaves,
        seeds: list[int],
        *,
        num_steps: int,
        ahead: int,
    ) -> None:
        self._num_steps, self._ahead = num_steps, ahead
        self._waiting: list[deque[EnvFragment]] = [deque() for _ in seeds]
        """By environment."""
        self._is_taking = False
        self._version, self._policy, self._outputs = -1, b"", Leaves()
        super().__init__(listen, spaces, leaves, seeds)

    def offer(self, version: int, policy: bytes, outputs: Leaves) -> None:
        """The policy to act with from the next fragment on, and which of its outputs are to be recorded."""
        with self._changed:
            self._version, self._policy, self._outputs = version, policy, outputs

    def take(self) -> list[EnvFragment]:
        """The oldest fragment of every environment."""
        with self._changed:
            self._is_taking = True
            self._changed.notify_all()
            try:
                self.wait_for(lambda: sum(map(bool, self._waiting)))
            finally:
                self._is_taking = False
            taken = [fragments.popleft() for fragments in self._waiting]
            self._changed.notify_all()
            return taken

    def talk(self, connection: Any, simulator: Simulator) -> None:
        known = -1
        while True:
            with self._changed:
                simulator.waits = True
                self._changed.wait_for(lambda: self._is_closed or self._has_room(simulator))
                simulator.waits = False
                if self._is_closed:
                    return
                version, policy, outputs = self._version, self._policy, self._outputs
            onnx = policy if version != known else None
            told = {"version": version, "num_steps": self._num_steps, "record": [*outputs], "onnx": onnx}
            connection.send(frames.encode("policy", **told))
            known = version
            frame = self._receive(connection)
            if not isinstance(frame, Fragment):
                raise BadFrame("a policy is answered with a fragment: this training lets simulators act by themselves")
            if frame.version != version:
                raise BadFrame(f"the fragment is by version {frame.version}; the policy that was sent is {version}")
            read = frames.read_fragment(frame, self._leaves, outputs, self._num_steps, len(simulator.envs))
            with self._changed:
                for env, fragment in zip(simulator.envs, read, strict=True):
                    self._waiting[env].append(fragment)
                self._changed.notify_all()

    def _has_room(self, simulator: Simulator) -> bool:
        limit = self._ahead + self._is_taking
        return self._version >= 0 and all(len(self._waiting[env]) < limit for env in simulator.envs)


def parse_address(listen: str) -> tuple[str, int]:
    """`:9900` (this machine only) or `host:9900`; ConfigError for others."""
    host, colon, port = str(listen).rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"listen is {listen!r}: give a port, such as :9900, or an address, such as 0.0.0.0:9900")
    return host.strip("[]") or "127.0.0.1", int(port)
