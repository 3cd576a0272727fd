"""The quick path of `POST /v1/act` says what the ordinary one says, to the byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn")

import rlplat
from rlplat.serve.deployments import DeploymentOptions
from rlplat.serve.http.server import HttpServer
from rlplat.serve.listening import ListeningSocket
from rlplat.serve.metrics import Metrics
from rlplat.serve.policies.server import PolicyServer
from rlplat.serve.refusals import Gate, Refused
from tests.serve.test_http_server import Transport, no_metrics

BODY = b'{"obs": [0.01, -0.02, 0.03, 0.04]}'


@cache
def agent() -> Any:
    return rlplat.load("gallery/cartpole")


class Server:
    def __init__(self, http: HttpServer, policy: PolicyServer, gate: Gate, metrics: Metrics) -> None:
        self.http, self.policy, self.gate, self.metrics = http, policy, gate, metrics
        self.num_ordinary = 0
        app = http._app

        async def counted(*args: Any) -> None:
            self.num_ordinary += 1
            await app(*args)

        http._app = counted

    def connect(self) -> tuple[Any, Transport]:
        protocol, transport = self.http._protocol(), Transport()
        protocol.connection_made(transport)
        return protocol, transport


@contextlib.asynccontextmanager
async def served(
    *, is_quick: bool = True, token: str = "", max_running: int = 10, **options: Any
) -> AsyncIterator[Any]:
    policy: Any
    policy, gate, metrics = PolicyServer("m"), Gate("m", max_running, 10), Metrics("m-0")
    policy.introduce("m-0", dict)
    await policy.reconfigure(agent())
    policy.engine.batcher.is_slow = lambda: False  # also on a machine that is busy
    listening = ListeningSocket("127.0.0.1", 0)
    with ThreadPoolExecutor(1) as executor:
        http = HttpServer(policy, gate, DeploymentOptions(**options), token, executor, metrics, no_metrics)
        if not is_quick:
            http._state.quick = None
        await http.start(listening.door)
        yield Server(http, policy, gate, metrics)
        for protocol in list(http._state.connections):
            protocol.connection_lost(None)
        await asyncio.sleep(0)
        await http.stop(0.0)
    listening.close()
    assert gate.ongoing == 0 and http._state.held.num_bytes == 0
    assert policy.engine.batcher.num_waiting_rows == 0


def post(body: bytes = BODY, *headers: str, line: str = "POST /v1/act HTTP/1.1", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = [line, "host: 127.0.0.1:8000", *headers, *([f"content-length: {size}"] if size >= 0 else []), "", ""]
    return "\r\n".join(lines).encode() + body


QUICK = {
    "one": [post()],
    "as a client sends it": [post(BODY, "Accept-Encoding: gzip, br", "User-Agent: x/1", "Connection: Keep-Alive")],
    "of this page": [post(BODY, "origin: http://127.0.0.1:8000", "content-type: application/json")],
    "head and body by themselves": [post()[: -len(BODY)], BODY],
    "in three parts": [post()[: -len(BODY)], BODY[:9], BODY[9:]],
    "many rows, drawn, all outputs": [post(b'{"obs": [[0, 0, 0, 0], [1, 1, 1, 1]], "outputs": ["value"]}')],
    "three, one after the other": [post(), post(b'{"obs": [1, 1, 1, 1]}'), post()],
}
ORDINARY = {
    "two at once": [post() + post(b'{"obs": [1, 1, 1, 1]}')],
    "one and a half": [post() + post()[:30], post()[30:]],
    "a head in halves": [post()[:30], post()[30:]],
    "another host": [post().replace(b"127.0.0.1:8000", b"evil.example")],
    "another page": [post(BODY, "origin: http://evil.example")],
    "two hosts": [post(BODY, "host: evil.example")],
    "two lengths": [post(BODY, "content-length: 3")],
    "no length": [post(length=-1)],
    "a length that is none": [post(BODY, "content-length: +34", length=-1)],
    "chunked": [post(b"22\r\n" + BODY + b"\r\n0\r\n\r\n", "transfer-encoding: chunked", length=-1)],
    "a folded header": [post(BODY, "x: 1\r\n transfer-encoding: chunked")],
    "a bare newline": [post(BODY, "x: 1\ntransfer-encoding: chunked")],
    "a blank before the colon": [post(BODY, "transfer-encoding : chunked")],
    "100-continue": [post(BODY, "expect: 100-continue")],
    "compressed": [post(BODY, "content-encoding: gzip")],
    "h2c": [post(BODY, "connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAA")],
    "a timeout that is none": [post(BODY, "x-request-timeout: soon")],
    "a model": [post(BODY, "x-model-id: a")],
    "the last one": [post(BODY, "connection: close")],
    "1.0": [post(line="POST /v1/act HTTP/1.0")],
    "another method": [post(line="PUT /v1/act HTTP/1.1")],
    "a query": [post(line="POST /v1/act?a=1 HTTP/1.1")],
    "rows": [post(np.zeros(4, "<f4").tobytes(), "content-type: Application/octet-stream")],
    "too large": [post(b'{"obs": [' + 3000 * b" " + b"0, 0, 0, 0]}")],
    "no JSON": [post(b"{")],
    "no body": [post(b"")],
    "another shape": [post(b'{"obs": [0.01]}')],
    "too much for its type": [post(b'{"obs": [1e300, 0, 0, 0]}')],
    "an unknown field": [post(b'{"observation": [0, 0, 0, 0]}')],
    "a lost session": [post(b'{"obs": [0, 0, 0, 0], "session": "m-0.1"}')],
    "a step of no session": [post(b'{"obs": [0, 0, 0, 0], "seq": 1}')],
}


async def said(parts: list[bytes], **options: Any) -> tuple[bytes, bool, list[str], int]:
    """(what is written, whether the connection is closed, the metrics without times, requests in the ordinary way)"""
    async with served(max_body_bytes=2000, **options) as server:
        server.policy._who_may_have = nobody
        protocol, transport = server.connect()
        for part in parts:
            if not transport.is_closed:
                protocol.data_received(part)
            for _ in range(60):
                await asyncio.sleep(0)
        counts = [each for each in server.metrics.lines() if "requests_total" in each or "seconds_count" in each]
        protocol.connection_lost(None)
        return b"".join(transport.writes), transport.is_closed, counts, server.num_ordinary


async def nobody(session: str) -> Any:
    for each in ():
        yield each


@pytest.mark.parametrize("parts", [*QUICK.values(), *ORDINARY.values()], ids=[*QUICK, *ORDINARY])
def test_both_paths_say_the_same(parts: list[bytes]) -> None:
    quick, ordinary = asyncio.run(said(parts)), asyncio.run(said(parts, is_quick=False))
    assert quick[:3] == ordinary[:3]
    assert (quick[3] == 0) == (parts in QUICK.values()) or not quick[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("given", ["authorization: Bearer s3cret", "authorization: Bearer other", "x: 1"])
def test_both_paths_ask_for_the_token(given: str) -> None:
    quick, ordinary = (
        asyncio.run(said([post(BODY, given)] * 2, token="s3cret", is_quick=is_quick)) for is_quick in (1, 0)
    )
    assert quick[:3] == ordinary[:3] and (b"200 OK" in quick[0]) == ("s3cret" in given)
    assert quick[3] == 0


def test_what_comes_together_is_one_batch_and_each_gets_its_own() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 4)).round(3).tolist()

    async def main() -> None:
        async with served(max_running=100) as server:
            batcher = server.policy.engine.batcher
            clients = [server.connect() for _ in rows]
            for (protocol, _), row in zip(clients, rows, strict=True):
                protocol.data_received(post(b'{"obs": %s}' % str(row).encode()))
            assert server.gate.running == 40
            await asyncio.sleep(0)
            for (protocol, transport), action in zip(clients, agent().act(rows).tolist(), strict=True):
                [written] = transport.writes
                assert written.endswith(b'{"action":%d,"env_steps":%d}' % (action, agent().checkpoint.info.env_steps))
                protocol.connection_lost(None)
            assert (batcher.num_rows, batcher.num_batches, server.num_ordinary) == (40, 1, 0)

    asyncio.run(main())


@pytest.mark.parametrize("more", [b"", post(b'{"obs": [1, 1, 1, 1]}')])
def test_what_comes_before_an_answer_waits_for_it_and_a_client_that_leaves_hurts_nobody(more: bytes) -> None:
    async def main() -> None:
        async with served() as server:
            (protocol, transport), (leaver, left) = server.connect(), server.connect()
            leaver.data_received(post())
            protocol.data_received(post(b'{"obs": [-1, -1, -1, -1]}'))
            left.close()
            leaver.connection_lost(None)
            protocol.data_received(more)
            for _ in range(60):
                await asyncio.sleep(0)
            actions = [agent().act(np.full(4, value, np.float32)) for value in ((-1, 1) if more else (-1,))]
            assert [b'"action":%d' % action in each for action, each in zip(actions, transport.writes, strict=True)]
            assert left.writes == [] and server.num_ordinary == bool(more)
            protocol.connection_lost(None)

    asyncio.run(main())


def test_a_policy_that_has_diverged_and_a_server_without_a_slot_are_for_the_ordinary_path() -> None:
    async def main() -> None:
        async with served(max_running=1) as server:
            protocol, transport = server.connect()
            server.policy.engine.batcher._run = lambda pieces: [Refused(500, "policy-failed", "") for _ in pieces]
            protocol.data_received(post())
            for _ in range(60):
                await asyncio.sleep(0)
            assert b"".join(transport.writes).startswith(b"HTTP/1.1 500") and server.num_ordinary == 1
            transport.writes.clear()
            async with server.gate:
                protocol.data_received(post())
                await asyncio.sleep(0)
                assert server.gate.waiting == 1 and transport.writes == []
            for _ in range(60):
                await asyncio.sleep(0)
            assert server.num_ordinary == 2
            protocol.connection_lost(None)

    asyncio.run(main())


def test_a_body_that_stays_away_is_for_the_ordinary_path(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlplat.serve.http import quick

    monkeypatch.setattr(quick, "BODY_S", 0.001)

    async def main() -> None:
        async with served(request_timeout_s=0.02) as server:
            protocol, transport = server.connect()
            protocol.data_received(post()[:-1])
            await asyncio.sleep(0.1)
            assert transport.writes[0].startswith(b"HTTP/1.1 504 ")
            protocol.connection_lost(None)

    asyncio.run(main())


def test_a_connection_is_idle_from_its_last_quick_request_on() -> None:
    async def main() -> None:
        async with served() as server:
            protocol, transport = server.connect()
            assert protocol.is_silent
            protocol.timeout_keep_alive = 0.1
            for _ in range(6):
                protocol.data_received(post())
                await asyncio.sleep(0.03)
            assert len(transport.writes) == 6 and not transport.is_closed and not protocol.is_silent
            await asyncio.sleep(0.2)
            assert transport.is_closed

    asyncio.run(main())


def test_a_server_that_drains_says_so() -> None:
    async def main() -> None:
        async with served() as server:
            protocol, transport = server.connect()
            server.http.stop_accepting()
            protocol.data_received(post())
            for _ in range(60):
                await asyncio.sleep(0)
            assert b"connection: close" in transport.writes[0] and transport.is_closed

    asyncio.run(main())
