"""`PolicyServer`: a trained agent as a deployment; its ASGI application answers JSON, raw rows and WebSockets.

    POST /v1/act ─▶ bodies.read_json ─▶ ServedPolicy.act ─▶ bodies.answer_of

Errors are `Refused`; the HTTP server around it writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rlplat.serve.policies.acting import ServedPolicy
from rlplat.serve.policies.bodies import Rows, action_bytes, answer_of, bad, options_of, read_json, refuse_query
from rlplat.serve.policies.engine import Acted, Ask
from rlplat.serve.policies.inference_protocol import InferenceProtocol
from rlplat.serve.policies.openapi import openapi
from rlplat.serve.policies.web_socket import serve_web_socket
from rlplat.serve.refusals import Refused, require_method

BINARY = b"application/octet-stream"


class PolicyServer(ServedPolicy):
    has_lifespan = False

    def asgi(self) -> Any:
        self.protocol = InferenceProtocol(self)
        return self._app

    def quick(self, body: bytes, answered: Callable[[bytes | None], None]) -> bool:
        """Whether the body of a `POST /v1/act` asks for an action that depends on it alone and comes in this turn or
        the next. Then `answered` gets the answer's body, or None where it is to be asked in the ordinary way."""
        assert self.engine is not None
        batcher, agent = self.engine.batcher, self.agent
        if agent.state_size or batcher.is_slow():
            return False
        try:
            request = read_json(body, agent.spaces, 0, self.max_rows_per_request)
            if request.session is not None or batcher.num_waiting_rows + request.num_rows > self._max_rows:
                return False
            reply = _Reply(request, agent.spaces, answered)
            batcher.submit(Ask(request.rows, request.greedy, None), request.num_rows, reply)
        except Exception:  # the ordinary way says what it is
            return False
        return True

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await serve_web_socket(self, scope, receive, send)
            return
        status, content_type, body = await self._answer(scope, receive)
        headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
        headers += scope.get("rlplat.headers", ())
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Any, receive: Any) -> tuple[int, bytes, bytes]:
        path, method = scope["path"], scope["method"]
        if path == "/v1/act":
            require_method(method, "POST", path)
            body = await _body(scope, receive)
            if _headers(scope, b"content-type")[0].lower().startswith(BINARY):
                return await self._act_raw(scope, body)
            if scope["query_string"]:
                refuse_query(scope["query_string"])
            request = read_json(body, self.agent.spaces, self.agent.state_size, self.max_rows_per_request)
            return _json(answer_of(request, await self.act(request), self.agent.spaces))
        if path.startswith("/v2"):
            body = await _body(scope, receive)
            return _json(await self.protocol.answer(method, path, body))
        if path == "/v1/sessions":
            require_method(method, "POST", path)
            id = await self.open_session()
            return 201, b"application/json", msgspec.json.encode({"session": id, "seq": 0})
        if path.startswith("/v1/sessions/"):
            require_method(method, "DELETE", path)
            await self.end_session(path.removeprefix("/v1/sessions/"))
            return 204, b"application/json", b""
        if path in ("/", "/v1/policy", "/openapi.json", "/health/live", "/health/ready"):
            require_method(method, "GET", path)
            if path == "/health/live":
                return 200, b"text/plain", b"ok"
            if path == "/health/ready":
                await self.check()
                return 200, b"text/plain", b"ready"
            return _json(openapi(self) if path == "/openapi.json" else self.describe())
        raise Refused(404, "not-found", f"there is nothing at {path:.200}; /v1/act acts, /openapi.json lists all")

    async def _act_raw(self, scope: Any, body: bytes) -> tuple[int, bytes, bytes]:
        assert self.raw is not None
        request = self.raw_request(body, options_of(scope["query_string"]))
        acted = await self.act(request)
        answer, names = action_bytes(acted, request.outputs, self.agent.spaces)
        scope["rlplat.headers"] = [
            (b"x-arrays", names.encode()),
            (b"x-env-steps", str(acted.env_steps).encode()),
        ]
        return 200, BINARY, answer


class _Reply:
    """In place of a future: whoever asked is told at once, without a turn of the event loop."""

    __slots__ = ("_answered", "_leave", "_request", "_spaces")

    def __init__(self, request: Rows, spaces: Any, answered: Callable[[bytes | None], None]) -> None:
        self._request, self._spaces, self._answered = request, spaces, answered

    def done(self) -> bool:
        return False

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._leave = callback

    def set_result(self, acted: Acted) -> None:
        self._leave(self)
        try:
            body = msgspec.json.encode(answer_of(self._request, acted, self._spaces))
        except Exception:
            self._answered(None)
        else:
            self._answered(body)

    def set_exception(self, error: BaseException) -> None:
        self._leave(self)
        self._answered(None)


async def _body(scope: Any, receive: Any) -> bytes:
    if _headers(scope, b"content-encoding")[0] not in (b"", b"identity"):
        raise bad("encoded-body", "bodies are not compressed here: leave content-encoding out", 415)
    parts: list[bytes] = []
    while (message := await receive())["type"] != "http.disconnect":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise bad("disconnected", "the caller left")


def _headers(scope: Any, *names: bytes) -> list[bytes]:
    """Their values, in one pass; empty where there is none."""
    found = dict(scope["headers"])
    return [found.get(name, b"") for name in names]


def _json(value: Any) -> tuple[int, bytes, bytes]:
    return 200, b"application/json", msgspec.json.encode(value)
