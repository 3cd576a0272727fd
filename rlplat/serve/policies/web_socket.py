"""A WebSocket is one session: `/v1/session`, or `/v1/session?session=ID` to go on with one after a reconnect; with
`greedy=0` in its address actions are drawn.

server ─▶ {"session": id, "seq": 0, "spaces": ...}
client ─▶ {"obs": [...], "seq": 1}          or raw bytes of one row      (also greedy, mask, outputs, reset)
server ─▶ {"action": 1, "seq": 1, ...}      or raw bytes of the action

A message that does not fit is answered by `{"error": ...}` and changes nothing; the connection stays.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from rlplat.serve.policies.acting import ServedPolicy
from rlplat.serve.policies.bodies import action_bytes, answer_of, connection_query, read_json
from rlplat.serve.refusals import Refused

RESTARTING = 1012
"""The close code when a replica ends: connect again, with the session's id."""


async def serve_web_socket(server: ServedPolicy, scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] != "/v1/session":
        raise Refused(404, "not-found", f"there is no WebSocket at {scope['path']:.200}; they are at /v1/session")
    options = connection_query(scope["query_string"])
    asked, greedy = options.session, options.greedy
    await receive()
    await send({"type": "websocket.accept"})
    try:
        id = asked or await server.open_session()
    except Refused as refusal:
        await _say(send, refusal.body())
        await send({"type": "websocket.close", "code": 1013, "reason": refusal.message[:120]})
        return
    await _say(send, {"session": id, "seq": None if asked else 0, **server.describe()})
    leaving = asyncio.ensure_future(_close_when_leaving(server, send))
    try:
        while (message := await receive())["type"] != "websocket.disconnect":
            await _answer(server, id, greedy, message, send)
    finally:
        leaving.cancel()


async def _close_when_leaving(server: ServedPolicy, send: Any) -> None:
    await server.is_leaving.wait()
    await send({"type": "websocket.close", "code": RESTARTING, "reason": "this replica ends; connect again"})


async def _answer(server: ServedPolicy, id: str, greedy: bool, message: Any, send: Any) -> None:
    agent = server.agent
    try:
        raw = message.get("bytes")
        if raw is not None:
            request = server.raw_request(raw, {"session": id, "greedy": "1" if greedy else "0"})
            acted = await server.act(request)
            await send({"type": "websocket.send", "bytes": action_bytes(acted, [], agent.spaces)[0]})
            return
        body = message["text"].encode()
        request = read_json(body, agent.spaces, agent.state_size, 1, id, greedy)
        await _say(send, answer_of(request, await server.act(request), agent.spaces))
    except Refused as refusal:
        await _say(send, refusal.body())


async def _say(send: Any, value: Any) -> None:
    await send({"type": "websocket.send", "text": msgspec.json.encode(value).decode()})
