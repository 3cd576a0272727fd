"""uvicorn's protocols with fewer system calls for each request.

    scope[WRITER].as_one()                         # a context manager: what is written within leaves when it ends

HTTP: uvicorn writes an answer's head and body one after the other: two system calls and, without Nagle's algorithm, two
packets. WebSocket: it stops reading at each message until that was received: two calls of epoll for each step.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

WRITER = "rlplat.writer"
"""The key of a request's `Writer` in its scope."""


class Writer:
    """A transport whose writes can be held back."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held: list[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._held is None:
            self._transport.write(data)
        else:
            self._held.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def as_one(self) -> Writer:
        return self

    def __enter__(self) -> None:
        self._held = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._flush()
        self._held = None

    def _flush(self) -> None:
        if self._held:
            self._transport.write(b"".join(self._held))
            self._held.clear()


class Connection(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        writer: Any = Writer(transport)
        super().connection_made(writer)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: Any = self.scope
        scope[WRITER] = self.transport


class WebSocketConnection(WebSocketsSansIOProtocol):
    def send_receive_event_to_app(self) -> None:
        """Reads on while one message waits; from the second on it stops, until all were received."""
        if self.curr_msg_data_type == "text" and not _is_text(b"".join(self.frames)):
            self.frames = []
            self.conn.send_close(1007, "a text that is not UTF-8")
            self.handle_parser_exception()
            return
        reads_on = self.queue.empty() and not self.read_paused
        if reads_on:
            self.read_paused = True  # so that uvicorn's does not stop it
        super().send_receive_event_to_app()
        if reads_on:
            self.read_paused = False

    async def send(self, message: Any) -> None:
        """What is sent behind a close (by a drain, or as no pong came) is dropped: the client has been told."""
        if self.close_sent and message["type"] in ("websocket.send", "websocket.close"):
            return
        await super().send(message)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:  # uvicorn logs a traceback of it
        return False
    return True
