"""The HTTP server of a replica by itself: on a transport that notes what is written, without a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
import threading
import tomllib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import StreamingResponse
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from rlplat.errors import ConfigError
from rlplat.serve.deployments import DeploymentOptions
from rlplat.serve.http.connection import State, WebSocketConnection, without_other_upgrades
from rlplat.serve.http.held import Body, Held
from rlplat.serve.http.requests import application
from rlplat.serve.http.server import HttpServer
from rlplat.serve.listening import ListeningSocket
from rlplat.serve.metrics import Metrics
from rlplat.serve.refusals import Gate, Refused


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""


def writes(
    served: Callable[[Any], Any],
    request: bytes,
    *,
    later: Sequence[bytes] = (),
    token: str = "",
    held: int = 10**9,
    **options: Any,
) -> Transport:
    """What is written in answer to one request, whose parts `later` come one by one. held: bytes in all."""

    async def serve() -> Transport:
        listening = ListeningSocket("127.0.0.1", 0)
        transport, gate = Transport(), Gate("model", 10, 10)
        with ThreadPoolExecutor(1) as executor:
            server = HttpServer(
                served, gate, DeploymentOptions(**options), token, executor, Metrics("model-0"), no_metrics
            )
            await server.start(listening.door)
            server._state.held.max_bytes = held
            protocol = server._protocol()
            protocol.connection_made(transport)
            protocol.data_received(request)
            for part in later:
                for _ in range(50):
                    await asyncio.sleep(0)
                protocol.data_received(part)
            while protocol.cycle is None or not protocol.cycle.response_complete:
                await asyncio.sleep(0)
            protocol.connection_lost(None)
            for _ in range(50):  # turns in which the call ends
                await asyncio.sleep(0)
            await server.stop(0.0)
        listening.close()
        assert gate.ongoing == 0
        return transport

    return asyncio.run(serve())


async def no_metrics() -> str:
    return ""


def get(*headers: str) -> bytes:
    return "\r\n".join(["GET / HTTP/1.1", "host: 127.0.0.1:8000", *headers, "", ""]).encode()


async def hello(request: Any) -> str:
    return "hello"


def test_an_answer_whose_length_is_known_is_written_at_once() -> None:
    [written] = writes(hello, get()).writes
    head, _, body = written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK") and b"content-length: 5" in head and body == b"hello"


@pytest.mark.parametrize(
    ("headers", "status"),
    [("host: evil.example\r\norigin: http://evil.example", 421), ("host: localhost.evil.example", 421),
     ("host: 127.0.0.1:8000\r\norigin: http://evil.example", 403), ("host: localhost:8000\r\norigin: null", 403),
     ("host: localhost:8000\r\norigin: http://localhost:3000", 403), ("host: [::1]:8000", 200), ("x: y", 200),
     ("host: localhost:8000\r\norigin: http://localhost:8000", 200)],
)  # fmt: skip
def test_a_web_page_cannot_call_a_server_of_this_machine(headers: str, status: int) -> None:
    version = "1.0" if headers == "x: y" else "1.1"
    request = f"POST / HTTP/{version}\r\n{headers}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    written = b"".join(writes(hello, request.encode()).writes)
    assert written.startswith(f"HTTP/1.1 {status} ".encode()), written
    assert (b"hello" in written) == (status == 200)


def test_a_server_with_a_token_may_have_any_name() -> None:
    request = get("authorization: Bearer s3cret").replace(b"127.0.0.1:8000", b"models.example")
    assert b"hello" in b"".join(writes(hello, request, token="s3cret").writes)


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_browser_asks_an_application_with_pages_without_a_token(is_wrapped: bool) -> None:
    """Its preflight cannot bear one. What has no CORSMiddleware, and so would run code of its own, is not asked."""
    cors = {"allow_origins": ["http://pages.example"], "allow_headers": ["authorization"]}
    app = Starlette(middleware=[Middleware(CORSMiddleware, **cors)])

    class Api:
        has_lifespan = False

        def asgi(self) -> Any:
            return CORSMiddleware(Starlette(), **cors) if is_wrapped else app

    asks = ["origin: http://pages.example", "access-control-request-method: GET"]
    preflight = get(*asks, "access-control-request-headers: authorization").replace(b"GET", b"OPTIONS", 1)
    written = b"".join(writes(Api(), preflight, token="s3cret").writes)
    assert written.startswith(b"HTTP/1.1 200") and b"allow-origin: http://pages.example" in written
    assert b"".join(writes(Api(), get(*asks), token="s3cret").writes).startswith(b"HTTP/1.1 401")
    assert b"".join(writes(hello, preflight, token="s3cret").writes).startswith(b"HTTP/1.1 401")


async def two_parts(request: Any) -> Any:
    async def parts() -> AsyncIterator[str]:
        yield "one "
        yield "two"

    return parts()


def test_a_stream_has_no_chunks_for_a_client_that_knows_none() -> None:
    """Of HTTP/1.0: its body ends with the connection."""
    transport = writes(two_parts, get().replace(b"HTTP/1.1", b"HTTP/1.0"))
    head, _, body = b"".join(transport.writes).partition(b"\r\n\r\n")
    assert body == b"one two" and b"chunked" not in head and transport.is_closed
    chunked = b"".join(writes(two_parts, get()).writes)
    assert chunked.endswith(b"\r\n4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n")


def test_a_generator_reads_a_body_that_comes_later_than_its_head() -> None:
    """As Python's http.client sends it; the answer begins before the body is there."""

    async def shout(request: Any) -> Any:
        async for part in request.stream():
            if part:
                yield part.upper()

    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 6\r\n\r\n"
    written = b"".join(writes(shout, head, later=[b"abc", b"def"]).writes)
    assert b"ABC" in written and b"DEF" in written and written.endswith(b"0\r\n\r\n")


def test_an_answer_that_closes_the_connection_is_written_before_it_is_closed() -> None:
    transport = writes(hello, get("connection: close"))
    assert len(transport.writes) == 1 and transport.writes[0].endswith(b"hello") and transport.is_closed


def test_the_head_of_a_stream_does_not_wait_for_its_first_part() -> None:
    async def stream(request: Any) -> Any:
        async def parts() -> Any:
            yield "a"
            yield "b"

        return StreamingResponse(parts())

    head, *parts = writes(stream, get()).writes
    assert head.endswith(b"\r\n\r\n") and parts == [b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n"]


def unwritable(request: Any) -> Any:
    return {"model": object()}


def test_without_stderr_they_have_that_form_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    stderr.close()
    monkeypatch.setattr(sys, "stderr", stderr)
    assert b"TypeError in the deployment" in b"".join(writes(unwritable, get()).writes)


def leaves(request: Any) -> Any:
    sys.exit("enough")


async def leaves_later(request: Any) -> Any:
    sys.exit("enough")


async def unwritable_later(request: Any) -> Any:
    return unwritable(request)


def refuses_with_no_error_s_status(request: Any) -> Any:
    raise Refused(999, "odd", "never seen")


@pytest.mark.parametrize(
    ("served", "logged"),
    [
        (leaves, "SystemExit(enough)"),
        (leaves_later, "SystemExit(enough)"),
        (refuses_with_no_error_s_status, "the status is 999; expected that of an error, 400 to 599"),
        (unwritable, "object cannot be written as JSON; return a starlette Response"),
        (unwritable_later, "object cannot be written as JSON; return a starlette Response"),
    ],
)
def test_what_is_no_answer_and_no_refusal_is_a_500_in_the_form_of_all_errors(
    served: Any, logged: str, capsys: pytest.CaptureFixture
) -> None:
    text = b"".join(writes(served, get()).writes).decode()
    assert text.startswith("HTTP/1.1 500") and '{"error":{"code":"failed","message":"' in text
    assert text.endswith(' in the deployment; its log says more"}}')
    assert logged in capsys.readouterr().err


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_ends_when_its_client_leaves(is_async: bool) -> None:
    ended = threading.Event()

    def parts() -> Any:
        try:
            while True:
                yield "a" * 1000
        finally:
            ended.set()

    async def async_parts() -> Any:
        with contextlib.closing(parts()) as each:
            for part in each:
                await asyncio.sleep(0)
                yield part

    stream = async_parts() if is_async else parts()  # kept: no garbage collector ends it

    async def main() -> None:
        sent = asyncio.Event()

        async def receive() -> Any:
            await sent.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                sent.set()
                await asyncio.Event().wait()  # a client that reads no more, and then leaves

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        with ThreadPoolExecutor(1) as executor:
            await application(lambda request: stream, executor)(scope, receive, send)
        assert ended.is_set()

    asyncio.run(main())


async def never(request: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("headers", "options", "seconds"),
    [
        (["X-Request-Timeout: 0.01"], {}, "0.01 s"),
        ([], {"request_timeout_s": 0.02}, "0.02 s"),
        (["x-request-timeout: 60"], {"request_timeout_s": 0.03}, "0.03 s"),
    ],
)
def test_an_answer_that_is_late_is_a_504_with_the_figure(headers: Any, options: Any, seconds: str) -> None:
    text = b"".join(writes(never, get(*headers), **options).writes).decode()
    assert text.startswith("HTTP/1.1 504") and f"no answer within {seconds}" in text


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", ""])
def test_a_timeout_that_is_no_number_is_refused(value: str) -> None:
    text = b"".join(writes(hello, get(f"x-request-timeout: {value}")).writes).decode()
    assert text.startswith("HTTP/1.1 400") and "expected a positive number of seconds" in text


# ---------------------------------------------------------------- bounds (docs/serving.md has the table)


HEADS = {
    "many lines": [get(*(f"x-{n}: 1" for n in range(100_000)))],
    "a long line": [get("x: " + 70_000 * "a")],
    "a long address": [get().replace(b"/ ", b"/" + 70_000 * b"a" + b" ")],
    "a value without an end": [b"GET / HTTP/1.1\r\nx: ", *[1000 * b"a"] * 70],
    "trailers": [
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
        100_000 * b"x: 1\r\n",
    ],
}


@pytest.mark.parametrize("parts", HEADS.values(), ids=HEADS)
def test_a_head_that_is_too_large_is_a_431(parts: list[bytes]) -> None:
    async def main() -> list[bytes]:
        async with connection(never) as (protocol, transport):
            for part in parts:
                if not transport.is_closed:
                    protocol.data_received(part)
            assert transport.is_closed
            return transport.writes

    [answer] = asyncio.run(main())
    assert answer.startswith(b"HTTP/1.1 431 ") and b"at most 128 headers and 65536 bytes" in answer


@contextlib.asynccontextmanager
async def connection(served: Any, **options: Any) -> AsyncIterator[tuple[Any, Transport]]:
    """Of a client with a server of its own."""
    listening, transport = ListeningSocket("127.0.0.1", 0), Transport()
    with ThreadPoolExecutor(1) as executor:
        server = HttpServer(
            served, Gate("m", 10, 10), DeploymentOptions(**options), "", executor, Metrics("m-0"), no_metrics
        )
        await server.start(listening.door)
        protocol = server._protocol()
        protocol.connection_made(transport)
        yield protocol, transport
        protocol.connection_lost(None)
        await asyncio.sleep(0)
        await server.stop(0.0)
        assert server._state.held.num_bytes == 0
    listening.close()


POST = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n"


@pytest.mark.parametrize(
    "later", [b"GET / HT", POST + b"a"], ids=["half of a head", "the rest of a body that was answered"]
)
def test_a_connection_that_is_half_open_is_closed_though_it_had_requests(
    later: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlplat.serve.http import connection as module

    monkeypatch.setattr(module, "HALF_OPEN_S", 0.02)

    async def main() -> None:
        async with connection(hello) as (protocol, transport):
            for request in (get(), get()[:9], get()[9:]):
                protocol.data_received(request)
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.04)
            assert not transport.is_closed and len(transport.writes) == 2
            protocol.data_received(later)
            for _ in range(20):
                await asyncio.sleep(0.004)
                if not transport.is_closed:
                    protocol.data_received(b"a")  # a trickle is no excuse
            assert transport.is_closed

    asyncio.run(main())


def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlplat.serve.http import connection as module

    monkeypatch.setattr(module, "UNREAD_S", 0.01)

    async def main() -> None:
        async with connection(never) as (protocol, transport):
            aborted = asyncio.Event()
            transport.abort = aborted.set  # type: ignore[method-assign]
            protocol.pause_writing()
            protocol.resume_writing()
            await asyncio.sleep(0.02)
            assert not aborted.is_set(), "it has read"
            protocol.pause_writing()
            await asyncio.wait_for(aborted.wait(), 5)

    asyncio.run(main())


def test_a_body_that_could_never_be_taken_is_refused_when_it_is_allowed() -> None:
    with pytest.raises(ConfigError, match="max_held_bytes=134217728: raise that too"):
        DeploymentOptions(max_body_bytes=1 << 30)


def test_a_server_that_is_full_accepts_when_a_connection_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        listening, gate = ListeningSocket("127.0.0.1", 0), Gate("m", 10, 10)
        options = DeploymentOptions(max_connections=2)
        server = HttpServer(hello, gate, options, "", ThreadPoolExecutor(1), Metrics("m-0"), no_metrics)
        await server.start(listening.door)

        async def ask() -> asyncio.StreamWriter:
            reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
            writer.write(get())
            await reader.readuntil(b"hello")
            return writer

        first, _ = await ask(), await ask()
        third = asyncio.ensure_future(ask())
        await asyncio.sleep(0.05)
        assert not third.done() and server.stats() == {"connections": 2}
        first.close()
        (await asyncio.wait_for(third, 10)).close()
        _.close()
        await server.stop(0.0)
        listening.close()

    asyncio.run(main())


async def size_of(request: Any) -> int:
    return len(await request.body())


async def stream_of_size(request: Any) -> Any:
    yield str(len(await request.body()))


class Asgi:
    """As a framework does it: what its own code raises becomes its own 500."""

    def asgi(self) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                return
            status, body = 200, b""
            while True:
                message = await receive()
                body += message.get("body", b"")
                if message["type"] == "http.disconnect":
                    status = 500
                    assert (await receive())["type"] == "http.disconnect", "and it stays so"
                if not message.get("more_body"):
                    break
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"%d" % len(body)})

        return app


CHUNKED = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("served", [size_of, stream_of_size, Asgi()])
def test_a_body_has_a_limit_and_all_of_them_together(served: Any) -> None:
    chunk = b"64\r\n" + 100 * b"a" + b"\r\n"
    for body, options, status in (
        (10 * [chunk], {"max_body_bytes": 999}, 413),
        (10 * [chunk], {"max_body_bytes": 1000}, 200),
        (10 * [chunk], {"held": 999}, 503),
        (10 * [chunk], {"held": 1000}, 200),
    ):
        answer = b"".join(writes(served, CHUNKED, later=[*body, b"0\r\n\r\n"], **options).writes)
        assert answer.startswith(b"HTTP/1.1 %d " % status), (options, answer)
        assert (b"retry-after: 1" in answer) == (status == 503)
        assert b"connection: close" not in answer, "many clients send the whole body before they read"
    answer = b"".join(writes(served, POST, max_body_bytes=999).writes)
    assert answer.startswith(b"HTTP/1.1 413 ") and b"larger than 999 bytes (max_body_bytes)" in answer
    answer = b"".join(writes(served, POST, later=[1000 * b"a" + get()], max_body_bytes=999).writes)
    assert answer.startswith(b"HTTP/1.1 413 ") and b"HTTP/1.1 200 OK" in answer


def test_a_body_arrives_where_the_client_would_rather_speak_http2() -> None:
    """Java's HttpClient asks for h2c with its first request; a server without it answers as if it had not."""
    wish = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    body = b"\r\nUpgrade: h2c\r\n\r\n"
    head = f"POST / HTTP/1.1\r\nhost: localhost\r\n{wish}content-length: {len(body)}\r\n\r\n".encode()

    async def echo(request: Any) -> str:
        return (await request.body()).hex()

    for parts in ([head + body], [head, body], [head[:30], head[30:] + body[:4], body[4:]]):
        answer = b"".join(writes(echo, parts[0], later=parts[1:]).writes)
        assert answer.startswith(b"HTTP/1.1 200 OK") and answer.endswith(body.hex().encode())
    assert without_other_upgrades(get("upgrade: WebSocket")) == get("upgrade: WebSocket")


def test_a_body_that_is_refused_makes_room_at_once() -> None:
    """So that of many that come side by side some are taken."""

    async def main() -> None:
        async def part() -> dict[str, Any]:
            return {"type": "http.request", "body": bytes(40), "more_body": True}

        async def on_whole() -> None:
            raise AssertionError("none is")

        held = Held(100)
        bodies = [Body(part, 1000, held, on_whole) for _ in range(2)]
        for _ in range(2):
            for body in bodies:
                await body.receive()
        assert [body.refusal is None for body in bodies] == [False, True] and held.num_bytes == 80

    asyncio.run(main())


FLOODS = {
    "pings": (1008, 300 * b"\x89\x80\0\0\0\0"),
    "pongs": (1008, 300 * b"\x8a\x80\0\0\0\0"),
    "empty texts": (1008, 300 * b"\x81\x80\0\0\0\0"),
    "empty fragments": (1008, b"\x01\x80\0\0\0\0" + 300 * b"\x00\x80\0\0\0\0"),
    "tiny fragments": (1013, b"\x01\x81\0\0\0\0a" + 100 * b"\x00\x81\0\0\0\0a" + b"\x00\x81"),
    "half a message": (1013, b"\x82\xfe\x0f\xff\0\0\0\0" + 2500 * b"a"),
    "a long message": (1009, b"\x82\xfe\x0f\xff\0\0\0\0"),
}


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class SteeredTransport(Transport):
    """Notes pauses among what is written."""

    def pause_reading(self) -> None:
        self.writes.append(b"pause")

    def resume_reading(self) -> None:
        self.writes.append(b"resume")


async def reads_all(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


@contextlib.asynccontextmanager
async def web_socket(app: Any = reads_all, held: int = 10**6, **options: Any) -> AsyncIterator[Any]:
    """(a connection that has been accepted, its transport, the task of the application)"""
    transport, state = SteeredTransport(), State(Held(held))
    config = Config(app, ws=WebSocketConnection, log_config=None, **options)
    config.load()
    connection: Any = WebSocketConnection(config, state, {})
    connection.connection_made(transport)
    connection.data_received(UPGRADE)
    while not transport.writes:
        await asyncio.sleep(0)
    transport.writes.clear()
    [task] = connection.tasks
    yield connection, transport, task
    connection.connection_lost(None)
    await task
    assert state.held.num_bytes == 0


@pytest.mark.parametrize(("code", "flood"), FLOODS.values(), ids=FLOODS)
def test_a_web_socket_that_floods_is_closed_with_the_reason(code: int, flood: bytes) -> None:
    async def main() -> None:
        held, most = 2500 if code == 1013 else 10**6, 4000 if code == 1009 else 5000
        async with web_socket(held=held, ws_max_size=most) as (socket, transport, _):
            for start in range(0, len(flood), 500):
                if not transport.is_closed:
                    socket.data_received(flood[start : start + 500])
                    await asyncio.sleep(0)
            assert transport.is_closed and code.to_bytes(2, "big") in b"".join(transport.writes)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("request_", "status"),
    [(UPGRADE.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"), 400),
     (UPGRADE.replace(b"\r\n\r\n", b"\r\nCookie: " + 9000 * b"a" + b"\r\n\r\n"), 431)],
)  # fmt: skip
def test_a_web_socket_that_cannot_begin_is_answered(request_: bytes, status: int) -> None:
    """It held its connection, without an answer and without end."""

    async def main() -> None:
        transport = SteeredTransport()
        config = Config(reads_all, ws=WebSocketConnection, log_config=None)
        config.load()
        connection: Any = WebSocketConnection(config, State(Held(10**6)), {})
        connection.connection_made(transport)
        connection.data_received(request_)
        assert transport.is_closed and b"".join(transport.writes).startswith(b"HTTP/1.1 %d " % status)
        connection.connection_lost(None)

    asyncio.run(main())


def test_a_web_socket_takes_turns_with_others() -> None:
    """Of many messages that have arrived each is handled in a turn of its own."""

    async def main() -> None:
        turns: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def noted() -> Any:
                message = await receive()
                turns.append(message["type"])
                return message

            await reads_all(scope, noted, send)

        async with web_socket(app) as (socket, _, _):
            socket.data_received(50 * b"\x82\x81\0\0\0\0a")
            while turns.count("websocket.receive") < 50:
                await asyncio.sleep(0)
                turns.append("other")
            assert turns.count("other") >= 49

    asyncio.run(main())


def test_a_web_socket_reads_on_until_two_messages_wait_and_drops_what_is_sent_behind_a_close() -> None:
    async def main() -> None:
        got: list[Any] = []
        go = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            await go.wait()
            got.extend([(await receive())["bytes"] for _ in range(2)])
            await send({"type": "websocket.close", "code": 1012})
            await send({"type": "websocket.send", "bytes": b"too late"})

        async with web_socket(app) as (socket, transport, task):
            message = b"\x82\x81\0\0\0\0"
            socket.data_received(message + b"a")
            assert transport.writes == []
            socket.data_received(message + b"b")
            go.set()
            await task
            assert got == [b"a", b"b"]
            assert transport.writes == [b"pause", b"resume", b"\x88\x02\x03\xf4"]

    asyncio.run(main())


def test_a_web_socket_text_that_is_not_utf_8_closes_it_with_the_reason() -> None:
    async def main() -> None:
        async with web_socket() as (socket, transport, task):
            socket.data_received(b"\x81\x82\0\0\0\0\xff\xfe")
            await task
            assert transport.writes == [b"\x88\x1a\x03\xefa text that is not UTF-8"]

    asyncio.run(main())


def test_uvicorn_has_what_is_used_of_it() -> None:
    """Its protocol classes are not public: with each new version these are looked at (pyproject.toml has the limit)."""
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert ",<" in next(each for each in extras["serve"] if each.startswith("uvicorn")), "an upper limit"
    used = {
        HttpToolsProtocol: "connections cycle loop on_message_begin on_url on_header on_headers_complete "
        "on_message_complete send_400_response shutdown",
        WebSocketsSansIOProtocol: "queue frames curr_msg_data_type read_paused close_sent handshake_complete conn "
        "handshake_initiated "
        "handle_ping handle_pong handle_text handle_bytes handle_cont handle_parser_exception "
        "send_receive_event_to_app shutdown",
    }

    async def main() -> None:
        config = Config(hello, log_config=None)
        config.load()
        for protocol, names in used.items():
            made = protocol(config, State(Held(1)), {})
            assert [name for name in names.split() if not hasattr(made, name)] == []

    asyncio.run(main())
