"""The only door to ZeroMQ: one ROUTER socket per process that both binds and connects.

Each process binds `ipc://<session>/<client id>`. Whoever connects is seen there under the label "<its id>>", and the
connecting side labels that connection "<peer's id>": two processes may connect to each other without their labels
meeting. The first label used for a peer stays in use, which keeps messages to it in order.

Messages are posted to a peer's outbox and leave as one frame on `flush`, which is what coalesces a busy sender; very
many, or very long ones, as several. Not thread-safe: the client's lock guards it; only `fd` may be polled without.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import zmq

from rlplat.given.say import say
from rlplat.machine_limits import has_descriptors, raise_file_limit, socket_folder
from rlplat.runtime.core.gone import Gone
from rlplat.runtime.link.dropped import Dropped
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import ASKER, NODE
from rlplat.runtime.wire.values import Value

_MAX_FRAME_BYTES = 1 << 30
"""What a receiver takes: libzmq drops longer ones, and says nothing."""
_FRAME_BYTES, _FRAME_MESSAGES = 64 << 20, 1024
"""Where a sender begins another frame."""
# As plain numbers: arithmetic with pyzmq's enums costs more than the calls that take them.
_NOBLOCK, _MORE = int(zmq.NOBLOCK), int(zmq.SNDMORE | zmq.NOBLOCK)
_EVENTS, _RCVMORE, _POLLIN = int(zmq.EVENTS), int(zmq.RCVMORE), int(zmq.POLLIN)
_NOWHERE = b"?"
"""A label that nobody has: what is sent there is dropped, as for any peer that is gone."""
_FAR = ord("@")
"""What the labels of peers on other machines begin with."""
SEVERAL = "several-machines"
"""In the session's folder: the name of this machine; peers may be elsewhere."""
_SPARE_DESCRIPTORS = 4
_CLIENT_ID = re.compile(r"[a-z][a-z0-9-]{0,39}")
"""The name of a socket in the session's folder: no path, and short enough for the address of a Unix socket."""


def sockets() -> Any:
    """What a transport has its socket from."""
    return zmq.Context()


def node_of(session: str) -> str:
    """The name of this machine in a cluster of several; "" in one of its own."""
    try:
        with open(os.path.join(session, SEVERAL)) as file:
            return file.read()
    except FileNotFoundError:
        return ""


class Transport:
    def __init__(
        self, session: str, client_id: str, *, listens: bool = True, sockets: Callable[[], Any] = sockets
    ) -> None:
        """listens: False for one who only asks; he is answered on the connections that he made."""
        self._folder = ExitStack()
        """For as long as the socket lives: it connects in a thread of its own, and again."""
        self._path = self._folder.enter_context(socket_folder(session))
        self._context = sockets()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        # Queues are bounded by credit (tasks in flight per worker); a full socket must never drop silently.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 5)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
        self._socket.setsockopt(zmq.ROUTING_ID, f"{client_id}>".encode())
        if listens:
            self._socket.bind(self._endpoint(client_id))
        self._client_id = client_id
        self.node = node_of(session)
        self.is_spread = bool(self.node)
        """Peers may be on other machines."""
        self.forward: Callable[[str, str, bytes], None] | None = None
        """Of a node: takes frames (from, to, bytes) for peers on other machines."""
        self.has_sent_far = False
        """Set here; who waits for an answer resets it."""
        self._labels: dict[str, bytes] = {}
        self._callers: set[bytes] = set()
        self._senders: dict[bytes, str] = {}
        """Client ids by the label that their frames bear."""
        self.dropped = Dropped(client_id)
        self._has_said_why = False
        """... connections have to wait."""
        self._forgotten = Gone()
        self._outbox: dict[bytes, list[Any]] = {}
        self.num_unsent = 0
        self.fd = int(self._socket.getsockopt(zmq.FD))

    def _endpoint(self, client_id: str) -> str:
        return "ipc://" + os.path.join(self._path, client_id)

    def is_far(self, peer: str) -> bool:
        """Whether it is on another machine (or gone, in a cluster of several)."""
        return self.is_spread and not os.path.exists(os.path.join(self._path, peer))

    def label(self, peer: str) -> bytes:
        """Where messages for `peer` go; connects to it unless it has connected to us."""
        label = self._labels.get(peer)
        if label is None:
            if peer in self._forgotten:
                return _NOWHERE  # ids are never used twice; and a second connect under one label aborts libzmq
            if not _CLIENT_ID.fullmatch(peer):
                self.dropped.add("a message to", peer, "that is not a client id")
                return _NOWHERE
            label = f"{peer}>".encode()
            if label not in self._callers and self.is_far(peer):
                label = b"@" + peer.encode()
            elif label not in self._callers:
                label = peer.encode()
                self._look_at_descriptors(peer)
                self._socket.setsockopt(zmq.CONNECT_ROUTING_ID, label)
                self._socket.connect(self._endpoint(peer))
            self._labels[peer] = label
        return label

    def _look_at_descriptors(self, peer: str) -> None:
        """Each connection takes one. libzmq tries again until it has one, and says nothing."""
        if self._has_said_why or has_descriptors(_SPARE_DESCRIPTORS):
            return
        limit = raise_file_limit()
        if not has_descriptors(_SPARE_DESCRIPTORS):
            self._has_said_why = True
            say(
                f"this process has as many files open as it may ({limit}, ulimit -n): messages to {peer}, and to "
                "others that it has no connection to yet, wait until some are closed"
            )

    def post(self, peer: str, message: Any) -> int:
        """Put a message into the peer's outbox; returns how many wait there."""
        label = self._labels.get(peer) or self.label(peer)
        box = self._outbox.get(label)
        if box is None:
            box = self._outbox[label] = []
        box.append(message)
        self.num_unsent += 1
        return len(box)

    def post_all(self, peer: str, batch: list[Any]) -> None:
        """Post several messages to one peer."""
        label = self._labels.get(peer) or self.label(peer)
        self._outbox.setdefault(label, []).extend(batch)
        self.num_unsent += len(batch)

    def post_result(self, peer: str, task: int, result: bytes | list[Value]) -> None:
        """Post the result of a call; small ones that follow each other share a message."""
        box = self._outbox.get(self._labels.get(peer) or self.label(peer))
        if box and type(result) is bytes and type(box[-1]) is messages.Done and len(box[-1].tasks) < _FRAME_MESSAGES:
            box[-1].tasks.append(task)
            box[-1].results.append(result)
            self.num_unsent += 1
        else:
            self.post(peer, messages.Done([task], [result]))

    def flush(self) -> None:
        """Send every outbox."""
        if not self.num_unsent:
            return
        send = self._socket.send
        for label, box in self._outbox.items():
            if box:
                try:
                    for frame in self._frames(label, box):
                        if label[0] == _FAR:
                            self._send_far(label[1:], frame)
                            continue
                        send(label, _MORE)  # once the frame is made: a label must not be left alone
                        send(frame, _NOBLOCK)
                except zmq.ZMQError as error:
                    # The peer is gone; the node's WorkerDied says so to everybody and settles what was sent to it.
                    if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                        raise
                box.clear()
        self.num_unsent = 0

    def _send_far(self, peer: bytes, frame: bytes) -> None:
        if self.forward is not None:
            self.forward(self._client_id, peer.decode(), frame)
        else:
            self._send_parts([self._labels.get(NODE) or self.label(NODE), peer, frame])
            self.has_sent_far = True

    def _send_parts(self, parts: list[bytes]) -> None:
        """(ZeroMQ's own `send_multipart` does arithmetic with enums for each part.)"""
        send = self._socket.send
        for part in parts[:-1]:
            send(part, _MORE)
        send(parts[-1], _NOBLOCK)

    def deliver_from(self, sender: str, peer: str, frame: bytes) -> None:
        """A frame that has come from another machine, for a peer on this one. (If he has gone: nobody hears.)"""
        parts = [frame] if sender == NODE else [sender.encode(), frame]
        if peer.startswith(ASKER):
            self._answer(peer, parts)
            return
        label = self._labels.get(peer)
        if label is None:
            label = b"@" if self.is_far(peer) else self.label(peer)
        if label[0] != _FAR:
            self._try_to_send(label, parts)

    def _try_to_send(self, label: bytes, parts: list[bytes]) -> None:
        try:
            self._send_parts([label, *parts])
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise

    def _frames(self, label: bytes, box: list[Any]) -> Iterator[bytes]:
        """One for all of the messages, mostly; halves of them where that is too long."""
        if len(box) <= _FRAME_MESSAGES:
            try:
                frame = messages.encode(box)
            except Exception:
                frame = self._frame(label, box)
            if len(frame) <= _FRAME_BYTES or len(box) == 1:
                if len(frame) <= _MAX_FRAME_BYTES:
                    yield frame
                else:
                    self._drop(label, box[0], f"it is {len(frame):,} bytes long: no receiver takes that")
                return
            del frame
        half = len(box) // 2
        yield from self._frames(label, box[:half])
        yield from self._frames(label, box[half:])

    def _frame(self, label: bytes, box: list[Any]) -> bytes:
        """The frame of those messages that can be encoded; each other one is dropped: kept, it would fail for ever."""
        good = []
        for message in box:
            try:
                messages.encode(message)
                good.append(message)
            except MemoryError:
                raise  # not the message's fault
            except Exception as error:
                self._drop(label, message, f"{type(error).__name__}: {error}")
        return messages.encode(good)

    def _drop(self, label: bytes, message: Any, why: str) -> None:
        self.dropped.add(f"a {type(message).__name__} to", label.decode().removesuffix(">"), why)

    def reply_once(self, peer: str, message: Any) -> None:
        """Answer somebody who has connected to us and asked; nothing here remembers him (if he has gone: nobody hears).

        Never through `post`, which would connect to him when he is not in the books.
        """
        label = f"{peer}>".encode()
        frame = self._frame(label, [message])
        if self.is_spread and label not in self._callers:
            self._send_far(peer.encode(), frame)
        else:
            self._answer(peer, [frame])

    def _answer(self, peer: str, parts: list[bytes]) -> None:
        label = f"{peer}>".encode()
        self._callers.discard(label)
        self._senders.pop(label, None)
        self._try_to_send(label, parts)

    def peers(self) -> list[str]:
        """Those that something was sent to."""
        return list(self._labels)

    def has_input(self) -> bool:
        return int(self._socket.getsockopt(_EVENTS)) & _POLLIN != 0

    def receive(self) -> Iterator[tuple[str, list[Any]]]:
        """(sender's client id, messages) of each frame that is here; ends when there is none."""
        receive, more, senders = self._socket.recv, self._socket.getsockopt, self._senders
        while self.has_input():
            label = receive(_NOBLOCK)
            sender = senders.get(label) or self._new_sender(label)
            if sender is None:
                self._drop_parts()
                continue
            frame = receive(_NOBLOCK)
            if more(_RCVMORE):
                if self.is_spread:
                    sender, frame = self._receive_far(sender, frame.decode(errors="replace"))
                    if not frame:
                        continue
                else:  # a tail, which must not pass for a label
                    self._drop_parts()
                    self.dropped.add("the tail of a frame from", sender, "a frame has one part")
            try:
                decoded = messages.decode(frame)
            except msgspec.MsgspecError as error:
                self.dropped.add("a frame from", sender, str(error))
                continue
            yield sender, decoded

    def _receive_far(self, sender: str, peer: str) -> tuple[str, bytes]:
        """The rest of a frame that has `peer` ahead: whom it is from, and it; nothing where it was passed on."""
        frame = self._socket.recv(_NOBLOCK)
        is_whole = not self._socket.getsockopt(_RCVMORE)
        self._drop_parts()
        if is_whole and self.forward is not None:
            self.forward(sender, peer, frame)
        elif is_whole and sender == NODE and _CLIENT_ID.fullmatch(peer):
            return peer, b"" if peer in self._forgotten else frame
        else:
            self.dropped.add("a frame from", sender, "it has too many parts")
        return sender, b""

    def _drop_parts(self) -> None:
        """The rest of the frame that is being read."""
        while self._socket.getsockopt(_RCVMORE):
            self._socket.recv(_NOBLOCK)

    def _new_sender(self, label: bytes) -> str | None:
        """The client id behind a label that is seen for the first time; None when nothing is taken from there."""
        sender = label.decode(errors="replace").removesuffix(">")
        if sender in self._forgotten:
            return None
        is_caller = label.endswith(b">")
        # (The node never calls, it answers; and nobody but us names the connections that we have made.)
        is_known = sender != NODE if is_caller else label in self._labels.values()
        if not is_known or not _CLIENT_ID.fullmatch(sender):
            self.dropped.add("a frame from", sender, "nobody here is called that")
            return None
        self._senders[label] = sender
        if is_caller:
            self._callers.add(label)
        return sender

    def forget(self, peer: str) -> None:
        """The peer is dead: stop trying to reconnect, drop what is posted to it or comes from it from now on."""
        self._forgotten.add(peer)
        label = self._labels.pop(peer, None)
        if label is not None:
            self.num_unsent -= len(self._outbox.pop(label, ()))
            if label[0] != _FAR and not label.endswith(b">"):
                self._socket.disconnect(self._endpoint(peer))
        self._callers.discard(f"{peer}>".encode())
        self._senders.pop(f"{peer}>".encode(), None)
        self._senders.pop(peer.encode(), None)

    def close(self, linger_s: float = 0) -> None:
        self.flush()
        self._socket.close(linger=int(linger_s * 1000))
        self._context.term()
        self._folder.close()
