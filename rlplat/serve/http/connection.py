"""uvicorn's protocols with fewer system calls for each request, and with bounds.

    with scope[WRITER]: ...                        # what is written within leaves when it ends

HTTP: uvicorn writes an answer's head and body one after the other: two system calls and, without Nagle's algorithm, two
packets. WebSocket: it stops reading at each message until that was received: two calls of epoll for each step.

Bounds: uvicorn has none for the head of a request, for one that is never completed, for a client that does not read,
for pings and empty frames. They are here because nothing public has them; tests/serve/test_http_server.py names what
is used of uvicorn, and pyproject.toml the versions that have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from time import perf_counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from rlplat.serve.http import quick
from rlplat.serve.http.held import Held, HeldByOne

WRITER = "rlplat.writer"
"""The key of a request's `Writer` in its scope."""
MAX_HEAD_BYTES, MAX_HEADERS = 1 << 16, 128
"""Of a request: what has more is answered 431."""
HALF_OPEN_S = 15.0
"""A connection that sends no whole head of a request within it, or goes on with a body that was answered, is closed."""
UNREAD_S = 60.0
"""A client that reads nothing for so long while something is sent to it is cut off."""
READ_BYTES = 1 << 14
"""Of a WebSocket at once: what is in them is handled before other connections have their turn."""
MAX_IDLE_FRAMES = 200
"""Pings, pongs and empty frames that a WebSocket takes in a second; it is closed behind them."""
_FRAGMENT_BYTES = 64
"""Of an object for each."""
_OTHER_UPGRADE = re.compile(rb"(?i)(?<=\n)upgrade(?=:(?![^\r\n]*websocket))")


def without_other_upgrades(data: bytes) -> bytes:
    """The head of a request without what HTTP/1.1 lets a server ignore: Java's HttpClient asks for `Upgrade: h2c`, and
    httptools then takes the body for another protocol's. data: which begins with a head, or in one."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _OTHER_UPGRADE.sub(b"ignored", head) + end + rest


class _UntilClosed(int):
    """The length of a body that ends with its connection, where uvicorn counts down what was announced."""

    def __lt__(self, _: int) -> bool:
        return False

    def __sub__(self, _: int) -> _UntilClosed:
        return self

    def __ne__(self, _: object) -> bool:
        return False


class State(ServerState):
    """What the connections of a server share."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self.held = held
        self.quick: quick.QuickPath | None = None
        """None where the application has none."""


class Writer:
    """A transport: what is written to it within `with` leaves at its end, as one."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._held: list[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        (self.transport.write if self._held is None else self._held.append)(data)

    def close(self) -> None:
        self.__exit__()
        self.transport.close()

    def __enter__(self) -> None:
        self._held = []

    def __exit__(self, *_: object) -> None:
        held, self._held = self._held, None
        if held:
            self.transport.write(b"".join(held))


class _CutsOff:
    """Of a protocol: a client that does not read is cut off."""

    _unread: asyncio.TimerHandle | None = None

    def pause_writing(self: Any) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self: Any) -> None:
        super().resume_writing()  # type: ignore[misc]
        self._read()

    def connection_lost(self: Any, exc: Exception | None) -> None:
        self._read()
        super().connection_lost(exc)  # type: ignore[misc]

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class Connection(_CutsOff, HttpToolsProtocol):
    _is_in_head = _is_in_body = _is_head_too_large = False
    _head_bytes = _num_headers = _read_bytes = 0
    _half_open: asyncio.TimerHandle | None = None
    _early = b""
    """What came before its turn: of a quick request the body is missing; or another request is answered first."""
    _early_until: asyncio.TimerHandle | None = None
    _asked = b""
    """The quick request whose answer comes in the next turn."""
    _asked_at = 0.0
    _used_at = 0.0
    """When the last quick request came, on the clock of the event loop."""

    @property
    def is_silent(self) -> bool:
        """Nothing that is a request has come yet."""
        return self.cycle is None and not self._used_at

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        writer: Any = Writer(transport)
        super().connection_made(writer)

    def data_received(self, data: bytes) -> None:
        if self._asked:
            self._early += data
            self.flow.pause_reading()
            return
        data, self._early = self._early + data, b""
        path: quick.QuickPath | None = self.server_state.quick  # type: ignore[attr-defined]
        if path is not None and path.is_open and data.startswith(quick.LINE) and self._is_between():
            end = data.find(b"\r\n\r\n")
            length = path.length_of(data[:end]) if end > 0 else -1
            missing = length + end + 4 - len(data)
            if length >= 0 and missing == 0 and self._ask(path, data, end + 4):
                return
            if length >= 0 and missing > 0:
                self._early = data
                if self._early_until is None:
                    self._early_until = self.loop.call_later(quick.BODY_S, self._receive_early)
                return
        self._forget_early()
        self._receive(data)

    def _is_between(self) -> bool:
        """Nothing of a request is here, and no answer on its way."""
        is_answered = self.cycle is None or self.cycle.response_complete
        is_whole = not (self._is_in_head or self._is_in_body)
        return is_whole and is_answered and not self.flow.write_paused and not self.transport.is_closing()

    def _ask(self, path: quick.QuickPath, data: bytes, start: int) -> bool:
        """Whether the request is on the quick path."""
        if not path.gate.enter_now():
            return False
        self._forget_early()
        self._asked, self._asked_at = data, perf_counter()
        if not path.ask(data[start:], self._answer):
            self._asked = b""
            path.gate.leave()
            return False
        self._used_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_handler()
        return True

    def _answer(self, body: bytes | None) -> None:
        """body: of a 200; None where the ordinary path is to answer."""
        path: quick.QuickPath = self.server_state.quick  # type: ignore[attr-defined]
        path.gate.leave()
        data, self._asked = self._asked, b""
        if not self.transport.is_closing():
            if body is None:
                self._receive(data)
            else:
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                self.transport.write(head % len(body) + body)
                path.note(self._asked_at)
            if self._early:
                self.flow.resume_reading()
                self._receive_early()

    def _receive_early(self) -> None:
        self._forget_early()
        data, self._early = self._early, b""
        self._receive(data)

    def _forget_early(self) -> None:
        if self._early_until is not None:
            self._early_until.cancel()
            self._early_until = None

    def timeout_keep_alive_handler(self) -> None:
        """Quick requests move no timer: it looks when the last one came."""
        left = self._used_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _receive(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        if b"pgrade:" in data and not self._is_in_body:
            data = without_other_upgrades(data)
        super().data_received(data)
        if was_in_head and self._is_in_head:  # of one header's value, perhaps
            self._read_bytes += len(data)
            if self._read_bytes > MAX_HEAD_BYTES:
                self._is_head_too_large = True
                self.send_400_response("")
        self._watch()

    def on_message_begin(self) -> None:
        self._is_in_head, self._is_in_body = True, False
        self._head_bytes = self._num_headers = self._read_bytes = 0
        super().on_message_begin()
        scope: Any = self.scope
        scope[WRITER] = self.transport

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head, self._is_in_body = False, True
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope["http_version"] == "1.0":  # which knows no chunks
            self.cycle.chunked_encoding, self.cycle.expected_content_length = False, _UntilClosed()

    def on_message_complete(self) -> None:
        self._is_in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._is_head_too_large:
            super().send_400_response(msg)
            return
        body = (
            b'{"error":{"code":"head-too-large","message":"the head of a request has at most %d headers and %d bytes"}}'
            % (MAX_HEADERS, MAX_HEAD_BYTES)
        )
        head = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
        self.transport.write(head + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_in_head = self._is_in_body = False
        self._forget_early()
        super().connection_lost(exc)
        self._watch()

    def _count(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES or self._num_headers > MAX_HEADERS:
            self._is_head_too_large = True
            raise ValueError("the head is too large")  # ends the parser, which calls send_400_response

    def _watch(self) -> None:
        is_answered = self.cycle is not None and self.cycle.response_complete
        is_half = self._is_in_head or (self._is_in_body and is_answered)
        if is_half and self._half_open is None:
            self._half_open = self.loop.call_later(HALF_OPEN_S, self._close_half_open)
        elif not is_half and self._half_open is not None:
            self._half_open.cancel()
            self._half_open = None

    def _close_half_open(self) -> None:
        self._half_open = None
        if self.cycle is not None and not self.cycle.response_complete:  # of a request before it
            self._watch()
        elif self in self.connections:
            self.transport.close()


class WebSocketConnection(_CutsOff, WebSocketsSansIOProtocol):
    def __init__(self, config: Any, server_state: State, app_state: Any, _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._held = HeldByOne(server_state.held)
        self._fragments = self._idle_frames = 0
        self._second = 0.0
        self._saw_frame = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        with contextlib.suppress(AttributeError):  # of another event loop
            getattr(transport, "transport", transport).max_size = READ_BYTES

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.set(0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._saw_frame = False
        is_held = self._held.set(self._held.num_bytes + len(data))
        if is_held:
            super().data_received(data)
            if self.conn.handshake_exc is not None and not self.handshake_initiated:  # nothing reads on
                self._end_handshake()
                return
            is_held = not self._saw_frame or self._held.set(self._fragments)
        if not is_held:
            self._end(1013, "the server holds too many bytes; try again later")

    def handle_text(self, event: Any) -> None:
        self._note(event)
        super().handle_text(event)

    def handle_bytes(self, event: Any) -> None:
        self._note(event)
        super().handle_bytes(event)

    def handle_cont(self, event: Any) -> None:
        self._note(event)
        super().handle_cont(event)

    def handle_ping(self) -> None:
        self._note_idle()
        super().handle_ping()

    def handle_pong(self, event: Any) -> None:
        self._note_idle()
        super().handle_pong(event)

    def _note(self, frame: Any) -> None:
        self._saw_frame = True
        self._fragments = 0 if frame.fin else self._fragments + len(frame.data) + _FRAGMENT_BYTES
        if not frame.data:
            self._note_idle()

    def _note_idle(self) -> None:
        self._saw_frame = True
        now = self.loop.time()
        if now > self._second + 1.0:
            self._second, self._idle_frames = now, 0
        self._idle_frames += 1
        if self._idle_frames > MAX_IDLE_FRAMES:
            self._end(1008, f"more than {MAX_IDLE_FRAMES} pings and empty frames in a second")

    def _end_handshake(self) -> None:
        answer = b"".join(self.conn.data_to_send())
        self.transport.write(answer or b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()

    def _end(self, code: int, reason: str) -> None:
        if self.close_sent or not self.handshake_complete:
            self.transport.close()
            return
        self.conn.send_close(code, reason)
        self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        """Reads on while one message waits; from the second on it stops, until all were received."""
        data, self.frames = b"".join(self.frames), []
        if self.close_sent:
            return
        message: Any = {"type": "websocket.receive", self.curr_msg_data_type: data}
        if self.curr_msg_data_type == "text":
            try:
                message["text"] = data.decode()
            except UnicodeDecodeError:
                self._end(1007, "a text that is not UTF-8")
                return
        if not (self.queue.empty() or self.read_paused):
            self.read_paused = True
            self.transport.pause_reading()
        self.queue.put_nowait(message)

    async def receive(self) -> Any:
        """Where more messages wait, others have their turn in between."""
        message = await super().receive()
        if not self.queue.empty():
            await asyncio.sleep(0)
        return message

    async def send(self, message: Any) -> None:
        """What is sent behind a close (by a drain, or as no pong came) is dropped: the client has been told."""
        if self.close_sent and message["type"] in ("websocket.send", "websocket.close"):
            return
        await super().send(message)
