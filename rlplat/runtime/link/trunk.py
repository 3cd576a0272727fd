"""The connections between machines: one of each agent to the head, over TCP with CURVE (decision 0023).

What travels is `TO FROM FRAME`: client ids, and the bytes of a frame between them, which nobody reads on the way; or,
with no ids, a message between agent and head (`agent_messages`). A second part, if any, is the bytes that the message
is about; TO may be the id of another machine then.

The head's end takes whoever has the key of the join file: a ZAP handler of its own context, a domain that is enforced.
An agent's end never connects a second time: what was queued when a connection broke is lost, so its end is the end.
"""

from __future__ import annotations

import errno
import hashlib
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import zmq
from zmq.utils import z85

from rlplat.errors import ConfigError
from rlplat.runtime.link.dropped import Dropped
from rlplat.runtime.wire import agent_messages
from rlplat.runtime.wire.agent_messages import TrunkMessage

_DOMAIN = b"rlplat"
_HANDSHAKE_MS = 2000
_MAX_PART_BYTES = (1 << 30) + 1024
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | _REFUSED
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_Key = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{40}$")]
# As plain numbers: arithmetic with pyzmq's enums costs more than the calls that take them.
_NOBLOCK, _MORE = int(zmq.NOBLOCK), int(zmq.SNDMORE | zmq.NOBLOCK)
_EVENTS, _RCVMORE, _POLLIN = int(zmq.EVENTS), int(zmq.RCVMORE), int(zmq.POLLIN)
Data = Any
"""bytes, or the `zmq.Frame` that they came in."""
Heard = tuple[str, str, bytes, Data]
"""To, from, frame, and what is about."""


class Keys(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a join file holds: the head's address, its key pair, and the one of all other machines (Z85)."""

    address: Annotated[str, msgspec.Meta(pattern=rf"^.+:{_PORT}$")]
    """HOST:PORT"""
    head_public: _Key
    head_secret: _Key
    node_public: _Key
    node_secret: _Key
    offers: dict[str, float] = {}
    """CPUs and GPUs of the head's machine, where its program does not say."""


def new_keys(address: str, token: str = "", offers: dict[str, float] | None = None) -> Keys:
    """`token`: a secret that they are made of, the same wherever it is known."""
    pairs = [_key_pair(token, role) if token else zmq.curve_keypair() for role in (b"head", b"node")]
    (head_public, head_secret), (node_public, node_secret) = [[key.decode() for key in pair] for pair in pairs]
    return Keys(address, head_public, head_secret, node_public, node_secret, offers or {})


def _key_pair(token: str, role: bytes) -> tuple[bytes, bytes]:
    secret = z85.encode(hashlib.blake2b(token.encode(), digest_size=32, person=role).digest())
    return zmq.curve_public(secret), secret


def _make_socket(context: zmq.Context, kind: int, address: str, keys: tuple[str, str]) -> zmq.Socket:
    socket = context.socket(kind)
    for option, value in (
        (zmq.IPV6, int("[" in address)),
        (zmq.LINGER, 0),
        (zmq.SNDHWM, 0),
        (zmq.RCVHWM, 0),
        (zmq.MAXMSGSIZE, _MAX_PART_BYTES),
        (zmq.HANDSHAKE_IVL, _HANDSHAKE_MS),
        (zmq.CURVE_PUBLICKEY, keys[0].encode()),
        (zmq.CURVE_SECRETKEY, keys[1].encode()),
    ):
        socket.setsockopt(option, value)
    return socket


def _has_input(socket: zmq.Socket) -> bool:
    return int(socket.getsockopt(_EVENTS)) & _POLLIN != 0


def _send(socket: zmq.Socket, machine: bytes, to: str, sender: str, frame: bytes, data: Data) -> None:
    part = b"%b %b %b" % (to.encode(), sender.encode(), frame)
    if machine:
        socket.send(machine, _MORE)
    if data:
        socket.send(part, _MORE)
        socket.send(data, _NOBLOCK, copy=False)
    else:
        socket.send(part, _NOBLOCK)


def _receive(socket: zmq.Socket, dropped: Dropped, peer: str) -> Heard | None:
    """None for what nobody of us sends."""
    part, num_parts = socket.recv(_NOBLOCK), 1
    data: Data = b""
    while socket.getsockopt(_RCVMORE):
        data, num_parts = socket.recv(_NOBLOCK, copy=False), num_parts + 1
    parts = part.split(b" ", 2)
    if num_parts > 2 or len(parts) < 3:
        dropped.add("a frame from", peer, f"it has {num_parts} parts, or no addresses")
        return None
    return parts[0].decode(errors="replace"), parts[1].decode(errors="replace"), parts[2], data


class HeadTrunks:
    """All trunks, at the head's end. Machines go by their ids; those that only ask, by what ZeroMQ calls them."""

    def __init__(self, keys: Keys) -> None:
        self._context = zmq.Context()
        self._guard = self._context.socket(zmq.REP)
        self._guard.bind("inproc://zeromq.zap.01")
        self._allowed = z85.decode(keys.node_public)
        self._socket = _make_socket(self._context, zmq.ROUTER, keys.address, (keys.head_public, keys.head_secret))
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        try:
            self._socket.bind(f"tcp://{keys.address}")
        except zmq.ZMQError as error:
            self.close()
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"{keys.address} is in use: another program works with this cluster (one at a time may), or the "
                    "port is somebody else's: `rlplat start --head --port` takes another"
                ) from None
            raise ConfigError(f"no machine can join at {keys.address}: {error.strerror}") from None
        self.dropped = Dropped("head")
        self.fds = [int(self._guard.getsockopt(zmq.FD)), int(self._socket.getsockopt(zmq.FD))]

    def has_input(self) -> bool:
        return _has_input(self._guard) or _has_input(self._socket)

    def receive(self) -> Iterator[tuple[bytes, Heard]]:
        """What is here, and from which machine."""
        while _has_input(self._guard):
            self._admit(self._guard.recv_multipart())
        while _has_input(self._socket):
            machine = self._socket.recv(_NOBLOCK)
            heard = _receive(self._socket, self.dropped, repr(machine))
            if heard is not None:
                yield machine, heard

    def _admit(self, request: list[bytes]) -> None:
        version, number, domain, _, _, mechanism, *credentials = request
        is_welcome = (domain, mechanism, credentials) == (_DOMAIN, b"CURVE", [self._allowed])
        status = (b"200", b"OK") if is_welcome else (b"400", b"no key of this cluster")
        self._guard.send_multipart([version, number, *status, b"", b""])

    def send(self, machine: bytes, to: str, sender: str, frame: bytes, data: Data = b"") -> bool:
        """False when its connection has ended."""
        try:
            _send(self._socket, machine, to, sender, frame, data)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def tell(self, machine: bytes, message: TrunkMessage, data: Data = b"") -> bool:
        return self.send(machine, "", "", agent_messages.encode(message), data)

    def close(self) -> None:
        self._socket.close()
        self._guard.close()
        self._context.term()


class AgentTrunk:
    """A machine's end. `node`: its id; "" for one that only asks."""

    def __init__(self, keys: Keys, node: str = "") -> None:
        self._context = zmq.Context()
        self._socket = _make_socket(self._context, zmq.DEALER, keys.address, (keys.node_public, keys.node_secret))
        if node:
            self._socket.setsockopt(zmq.ROUTING_ID, node.encode())
        self._socket.setsockopt(zmq.CURVE_SERVERKEY, keys.head_public.encode())
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self._events = self._socket.get_monitor_socket(_ENDED)
        self._socket.connect(f"tcp://{keys.address}")
        self.dropped = Dropped(node or "agent")
        self.fds = [int(self._socket.getsockopt(zmq.FD)), int(self._events.getsockopt(zmq.FD))]
        self.has_ended = self.is_refused = False

    def has_input(self) -> bool:
        return _has_input(self._socket) or _has_input(self._events)

    def receive(self) -> Iterator[Heard]:
        """What is here; `has_ended` says whether anything else can come."""
        while _has_input(self._events):
            event, _ = self._events.recv_multipart()
            self.has_ended = True
            self.is_refused |= bool(int.from_bytes(event[:2], sys.byteorder) & _REFUSED)
        while _has_input(self._socket):
            heard = _receive(self._socket, self.dropped, "head")
            if heard is not None:
                yield heard

    def send(self, to: str, sender: str, frame: bytes, data: Data = b"") -> None:
        try:
            _send(self._socket, b"", to, sender, frame, data)
        except zmq.ZMQError as error:
            if error.errno != zmq.EAGAIN:
                raise
            self.has_ended = True  # its queue has no bound: there is no connection any more

    def tell(self, message: TrunkMessage, data: Data = b"", to: str = "") -> None:
        self.send(to, "", agent_messages.encode(message), data)

    def close(self, linger_s: float = 0) -> None:
        self._socket.disable_monitor()
        self._events.close()
        self._socket.close(linger=int(linger_s * 1000))
        self._context.term()
