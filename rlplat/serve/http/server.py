"""The HTTP server of a replica: uvicorn's protocol on the shared listening socket, in the replica's event loop.

Accepting is done here rather than by uvicorn's server: one connection a time, and a replica that has many connections
lets the others go first, as all replicas accept from one queue.
"""

from __future__ import annotations

import asyncio
import hmac
import resource
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import Executor
from functools import partial
from time import perf_counter
from typing import Any

import msgspec

from rlplat.errors import MissingExtra, RlplatError
from rlplat.given.say import say
from rlplat.listening import foreign_request
from rlplat.serve.deployments import DeploymentOptions
from rlplat.serve.http.held import Body, Held, too_large
from rlplat.serve.http.quick import QuickPath
from rlplat.serve.http.sharing import Share, pass_on, take_over
from rlplat.serve.listening import fetch_sockets
from rlplat.serve.metrics import Metrics
from rlplat.serve.multiplexing import HEADER, ModelRequest, checked_model_id
from rlplat.serve.refusals import Gate, Refused, require_method

try:
    from uvicorn import Config

    from rlplat.serve.http.connection import HALF_OPEN_S, WRITER, Connection, State, WebSocketConnection
except ImportError:
    raise MissingExtra("uvicorn", "serve", "serving over HTTP") from None

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_MESSAGE_BYTES = 16 << 20
"""Of a WebSocket."""
OTHER_FILES = 128
"""Of the open files that the process may have (ulimit -n), those that are no connections."""
_FULL_S = 0.1
"""When a server that has no room for a connection looks again."""
TIMEOUT = b"x-request-timeout"
"""A request's header: seconds within which its caller wants the answer; the deployment's own limit holds as well."""
LINGER_S = 0.3
"""What is sent on an idle connection just when its replica begins to drain is answered for so long."""
_DEFERRAL_S, _MAX_DEFERRAL_S = 20e-6, 2e-3
"""How much later a replica accepts for each connection that it has."""


class HttpServer:
    def __init__(
        self,
        served: Any,
        gate: Gate,
        options: DeploymentOptions,
        token: str,
        executor: Executor,
        metrics: Metrics,
        scrape: Callable[[], Awaitable[str]],
    ) -> None:
        """served: an object with `asgi()`, which returns an ASGI application, or one that is called with each request;
        executor: for calls that are no coroutines; scrape: the text of `/metrics`."""
        self._metrics, self._scrape = metrics, scrape
        self._has_lifespan = hasattr(served, "asgi") and getattr(served, "has_lifespan", True)
        self._gate, self._options = gate, options
        self._token = token.encode()
        if hasattr(served, "asgi"):
            self._app: App = served.asgi()
        elif callable(served):
            from rlplat.serve.http.requests import application

            self._app = application(served, executor)
        else:
            raise RlplatError(
                f"{type(served).__name__} cannot take HTTP requests: it needs __call__(request), or "
                f"asgi() that returns "
                "an ASGI application"
            )
        self._state = State(Held(options.max_held_bytes))
        if hasattr(served, "quick"):
            self._state.quick = QuickPath(served, gate, metrics, options.max_body_bytes, self._forbidden)
        self._shared: socket.socket | None = None
        """At which it accepts; None of a canary, which takes what comes out of the queue."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_connections = min(options.max_connections, max(1, files - OTHER_FILES))
        self._share = Share()
        self._queue: tuple[socket.socket, ...] = ()
        """To the canary: where connections go in, where they come out."""
        self._accepting: dict[socket.socket, asyncio.Task[None]] = {}
        self._lifespan: Any = None
        self._is_draining = False

    async def start(self, door: str, *, is_canary: bool = False) -> None:
        config = Config(
            self._guarded,
            interface="asgi3",
            http=Connection,
            ws=WebSocketConnection,
            lifespan="auto" if self._has_lifespan else "off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            ws_per_message_deflate=False,
            ws_max_size=min(self._options.max_body_bytes, MAX_MESSAGE_BYTES),
            timeout_keep_alive=75,
        )
        config.load()
        self._lifespan = config.lifespan_class(config)
        await self._lifespan.startup()
        if self._lifespan.should_exit:
            raise RlplatError("the application's startup failed: the replica's log says why")
        self._protocol = partial(Connection, config=config, server_state=self._state, app_state=self._lifespan.state)
        self._loop = asyncio.get_running_loop()
        shared, *queue = fetch_sockets(door)
        self._queue = tuple(queue)
        self._set_accepting(queue[1], True)
        if is_canary:
            shared.close()
        else:
            self._shared = shared
            self._set_accepting(shared, True)

    def set_canary_share(self, share: float) -> None:
        """Of the connections that arrive from now on."""
        if self._shared is None or share == self._share.share:
            return
        was, self._share = self._share.share, Share(share)
        if not (was and share):  # without a canary: what it left behind
            self._set_accepting(self._queue[1], not share)

    def stats(self) -> dict[str, float]:
        return {"connections": len(self._state.connections)}

    def stop_accepting(self) -> None:
        """From here on every answer closes its connection, so that callers go elsewhere."""
        self._is_draining = True
        if self._state.quick is not None:
            self._state.quick.is_open = False
        for source in list(self._accepting):
            self._set_accepting(source, False)
        for each in (self._shared, *self._queue):
            if each is not None:
                each.close()
        self._shared, self._queue = None, ()

    async def stop(self, timeout_s: float) -> None:
        self.stop_accepting()
        end = self._loop.time() + timeout_s
        linger_end = min(end, self._loop.time() + LINGER_S)
        while self._state.connections and self._loop.time() < linger_end:
            await asyncio.sleep(0.01)
        for connection in list(self._state.connections):
            connection.shutdown()
        while self._state.connections and self._loop.time() < end:
            await asyncio.sleep(0.01)
        for connection in list(self._state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self._lifespan.shutdown()

    # ---------------------------------------------------------------- accepting

    async def _accept_from(self, source: socket.socket) -> None:
        """As long as it accepts; source: the shared socket, or the end of the queue at which connections come out."""
        while True:
            await self._readable(source)
            num_connections = len(self._state.connections)
            if num_connections >= self._max_connections:
                await asyncio.sleep(_FULL_S)
                continue
            if num_connections:
                await asyncio.sleep(min(num_connections * _DEFERRAL_S, _MAX_DEFERRAL_S))
            try:
                if source is self._shared:
                    connection, _ = source.accept()
                    if self._share.next_is_canarys() and pass_on(connection, self._queue[0]):
                        continue
                else:
                    connection = take_over(source)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                continue  # another replica was first
            except OSError as error:  # too many open files
                say(f"warning: a connection was not accepted: {error}")
                await asyncio.sleep(_FULL_S)
                continue
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._connect(connection))
            self._state.tasks.add(task)
            task.add_done_callback(self._state.tasks.discard)

    def _readable(self, source: socket.socket) -> asyncio.Future[None]:
        found: asyncio.Future[None] = self._loop.create_future()

        def arrived() -> None:
            self._loop.remove_reader(source)
            found.set_result(None)

        self._loop.add_reader(source, arrived)
        return found

    def _set_accepting(self, source: socket.socket, is_on: bool) -> None:
        if is_on:
            self._accepting[source] = self._loop.create_task(self._accept_from(source))
        elif source in self._accepting:
            self._accepting.pop(source).cancel()
            self._loop.remove_reader(source)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            transport, protocol = await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:
            connection.close()
            return

        def close_if_silent() -> None:
            if protocol in self._state.connections and protocol.is_silent:
                transport.close()

        self._loop.call_later(HALF_OPEN_S, close_if_silent)

    # ---------------------------------------------------------------- around every request

    def _forbidden(self, headers: dict[bytes, bytes], path: str = "") -> Refused | None:
        if not self._token:  # on loopback: see `rlplat.listening`
            host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
            foreign = foreign_request(host, origin)
            return foreign and Refused(foreign[0], "forbidden", foreign[1])
        given, token = headers.get(b"authorization", b""), b"Bearer " + self._token
        if path in ("/health/live", "/health/ready") or hmac.compare_digest(given, token):
            return None
        return Refused(401, "unauthorized", "a token is needed: the header `Authorization: Bearer TOKEN`")

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = {}  # several of one name are joined by commas
        for name, value in scope["headers"]:
            headers[name] = headers[name] + b"," + value if name in headers else value
        forbidden = self._forbidden(headers, scope["path"])
        if forbidden is not None and not (
            forbidden.status == 401 and _is_preflight(scope, headers) and _answers_preflights(self._app)
        ):
            await refuse(scope, receive, send, forbidden)
            return
        if kind == "websocket":
            try:
                await self._app(scope, receive, send)
            except Refused as refusal:  # before it was accepted
                await refuse(scope, receive, send, refusal)
            return
        begin = perf_counter()
        try:
            if scope["path"] == "/metrics":
                require_method(scope["method"], "GET", "/metrics")
                await _send_text(send, await self._scrape())
                return
            seconds = _timeout_s(headers.get(TIMEOUT), self._options.request_timeout_s)
            model_id = checked_model_id(headers[HEADER].decode("latin-1")) if HEADER in headers else ""
            length = headers.get(b"content-length", b"0")
            if len(length) > 15 or int(length) > self._options.max_body_bytes:
                raise too_large(self._options.max_body_bytes)
        except Refused as refusal:
            await refuse(scope, receive, send, refusal)
            return
        limit = _Limit(self._loop, seconds)
        writer = scope[WRITER]
        is_started = False
        status = 500
        head: Any = None
        """Of an answer, until its body comes, for both are written as one; that of a stream until the request's body is
        there, which may be refused still."""

        async def send_head() -> None:
            nonlocal is_started, status, head
            if head is not None and body.refusal is None:
                message, head = head, None
                is_started, status = True, message["status"]
                limit.lift()  # a stream may last
                await send(message)

        body = Body(receive, self._options.max_body_bytes, self._state.held, send_head)

        async def answer(message: Any) -> None:
            nonlocal head
            if is_started:
                await send(message)
            elif body.refusal is not None:
                return  # an application that answers that its client has left
            elif head is None:
                said = message.get("headers", ())
                head = {**message, "headers": [*said, _CLOSE]} if self._is_draining else message
                has_length = any(name == b"content-length" for name, _ in said)
                if not has_length and (body.is_whole or not headers.keys() & _OF_BODIES):
                    await send_head()
            else:
                with writer:
                    await send_head()
                    await send(message)

        async def refused() -> Refused | None:
            try:
                async with self._gate:
                    with ModelRequest(model_id):
                        await self._app(scope, body.receive, answer)
                return body.refusal
            except Refused as error:
                return body.refusal or error
            except asyncio.CancelledError:
                if is_started or not limit.is_over():
                    raise
                return Refused(504, "deadline", f"there was no answer within {seconds:g} s")
            except Exception:
                if body.refusal is None:
                    raise
                return body.refusal

        try:
            why = await refused()
            if why is not None:
                if is_started:
                    raise why
                status = why.status
                await refuse(scope, receive, send, why)
        finally:
            limit.lift()
            body.held.set(0)
            self._metrics.count("rlplat_serve_requests_total", (("status", str(status)),))
            self._metrics.observe("rlplat_serve_request_seconds", (), perf_counter() - begin)


def _is_preflight(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    """A browser's question whether a page may send a request, which never bears a token."""
    return scope.get("method") == "OPTIONS" and headers.keys() >= {b"origin", b"access-control-request-method"}


def _answers_preflights(app: Any) -> bool:
    """All of them, by itself: no code of the user's is called."""
    from starlette.middleware.cors import CORSMiddleware

    layers = (type(app), *(getattr(each, "cls", None) for each in getattr(app, "user_middleware", ())))
    return CORSMiddleware in layers


_OF_BODIES = {b"content-length", b"transfer-encoding"}


def _timeout_s(given: bytes | None, most: float) -> float:
    try:
        seconds = most if given is None else float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        shown = (given or b"").decode("latin-1")
        message = f"{TIMEOUT.decode()} is {shown!r:.50}; expected a positive number of seconds"
        raise Refused(400, "bad-timeout", message)
    return min(seconds, most)


class _Limit:
    """Cancels the task that makes it, after so long. `asyncio.timeout` does this too, at four times the CPU time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        task = asyncio.current_task(loop)
        assert task is not None
        self._task = task
        self._is_over = False
        self._timer = loop.call_later(seconds, self._cancel)

    def lift(self) -> None:
        self._timer.cancel()

    def is_over(self) -> bool:
        """Whether a cancellation that arrives is this one: then the task goes on."""
        return self._is_over and self._task.uncancel() == 0

    def _cancel(self) -> None:
        self._is_over = True
        self._task.cancel()


async def _send_text(send: Send, text: str) -> None:
    headers = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


_CLOSE = (b"connection", b"close")


async def refuse(scope: Scope, receive: Receive, send: Send, refusal: Refused) -> None:
    """Answer with a refusal; a WebSocket that was not accepted yet is rejected with the same status."""
    if scope["type"] == "websocket":
        await receive()
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.message[:120]})
            return
        kind = "websocket.http.response"
    else:
        kind = "http.response"
    body = msgspec.json.encode(refusal.body())
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, round(refusal.retry_after_s))).encode()))
    if refusal.allow:
        headers.append((b"allow", refusal.allow.encode()))
    await send({"type": f"{kind}.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
