"""What a request to a served policy costs, beside an empty Starlette application on uvicorn.

    python -m benchmarks.serving runs/demo --seconds 5 --json rows.json
    pip install --target /tmp/peers 'ray[serve]==2.60.0' litserve==0.2.19 bentoml==1.4.30
    python -m benchmarks.serving runs/demo --peers-in /tmp/peers                 beside Ray Serve, LitServe, BentoML too

The load generator is this process: asyncio and raw sockets, requests written out beforehand. Each server has one
process. Where the machine has few cores, generator and server share them, for every system alike.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from rlplat.paths import expanded

OBS = b'{"obs": [0.01, -0.02, 0.03, 0.04]}'

STARLETTE = """
import json, sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
async def act(request):
    return JSONResponse({"action": 0, "obs": (await request.json())["obs"]})
async def echo(socket):
    await socket.accept()
    while (message := await socket.receive())["type"] != "websocket.disconnect":
        await socket.send_bytes(message["bytes"][:8])
app = Starlette(routes=[Route("/v1/act", act, methods=["POST"]), WebSocketRoute("/v1/session", echo)])
uvicorn.run(
    app, port=int(sys.argv[1]), http="httptools", ws="websockets-sansio", ws_per_message_deflate=False,
    log_level="error", access_log=False,
)
"""


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Connection:
    """Blocking, kept alive."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def ask(self, request: bytes) -> bytes:
        self.socket.sendall(request)
        while (end := self.buffer.find(b"\r\n\r\n")) < 0:
            self.buffer += self._receive()
        head = self.buffer[:end].lower()
        assert head.startswith(b"http/1.1 200"), self.buffer[:300]
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(self.buffer) < end + 4 + length:
            self.buffer += self._receive()
        body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
        return body

    def _receive(self) -> bytes:
        data = self.socket.recv(262144)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        return data

    def close(self) -> None:
        self.socket.close()


def one_client(port: int, request: bytes, seconds: float) -> list[float]:
    """Seconds of each request."""
    connection = Connection(port)
    for _ in range(50):
        connection.ask(request)
    took = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        connection.ask(request)
        took.append(time.perf_counter() - begin)
    connection.close()
    return took


class _Asker(asyncio.Protocol):
    """Sends the next request when an answer has come. Answers have the length of the first one."""

    def __init__(self, request: bytes, count: list[int]) -> None:
        self._request, self._count = request, count
        self._received = self._length = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if not self._length:
            assert data.startswith(b"HTTP/1.1 200"), data[:300]
            head, _, _ = data.lower().partition(b"\r\n\r\n")
            self._length = len(head) + 4 + int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        self._received += len(data)
        if self._received >= self._length:
            self._received = self._length = 0
            self._count[0] += 1
            self._transport.write(self._request)  # type: ignore[attr-defined]


async def many_clients(port: int, request: bytes, connections: int, seconds: float) -> float:
    """Requests a second."""
    count = [0]
    loop = asyncio.get_running_loop()
    transports = [
        (await loop.create_connection(lambda: _Asker(request, count), "127.0.0.1", port))[0] for _ in range(connections)
    ]
    await asyncio.sleep(0.5)
    before, begin = count[0], time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (count[0] - before) / (time.perf_counter() - begin)
    for transport in transports:
        transport.abort()
    return rate


def web_socket(port: int, seconds: float) -> list[float]:
    """Seconds of each step: a raw row in a frame, the raw action back."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    key = base64.b64encode(os.urandom(16)).decode()
    connection.sendall(
        f"GET /v1/session HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    time.sleep(0.3)
    assert connection.recv(65536).startswith(b"HTTP/1.1 101")
    row = np.array([0.01, -0.02, 0.03, 0.04], "<f4").tobytes()
    frame = struct.pack("!BB", 0x82, 0x80 | len(row)) + b"\0\0\0\0" + row
    took = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        connection.sendall(frame)
        answer = connection.recv(4096)
        while len(answer) < 10:
            answer += connection.recv(4096)
        took.append(time.perf_counter() - begin)
    assert answer[:2] == b"\x82\x08", answer
    connection.close()
    return took


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        port: int = each.getsockname()[1]
        return port


@contextmanager
def server(command: Callable[[int], list[str]], **start: Any) -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen(command(port), stdout=subprocess.DEVNULL, start_new_session=True, **start)
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise RuntimeError(f"{command(port)[:4]} ended with {process.returncode}")
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                connection = Connection(port)
                connection.socket.settimeout(2)  # what came before it was ready may wait for ever
                for _ in range(50):  # HAProxy starts anew when it hears of the replica
                    connection.ask(post("/v1/act", OBS))
                connection.close()
                break
            except (OSError, AssertionError):
                time.sleep(0.1)
        else:
            raise RuntimeError(f"{command(port)[:4]} did not start")
        yield port
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what a peer leaves behind


def measure(peer: str, port: int, seconds: float) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []

    def row(name: str, value: float, unit: str) -> None:
        rows.append({"peer": peer, "row": name, "value": value, "unit": unit})
        print(f"{peer:<12}{name:<42}{value:>12,.4g} {unit}", flush=True)

    def latencies(name: str, took: list[float]) -> None:
        cuts = statistics.quantiles(took, n=100)
        row(f"{name}, p50", cuts[49] * 1e3, "ms")
        row(f"{name}, p99", cuts[98] * 1e3, "ms")
        row(f"{name}, rate", len(took) / sum(took), "1/s")

    latencies("one client, JSON", one_client(port, post("/v1/act", OBS), seconds))
    row("64 connections, JSON", asyncio.run(many_clients(port, post("/v1/act", OBS), 64, seconds)), "1/s")
    if peer in ("rlplat", "starlette"):
        latencies("WebSocket step, raw", web_socket(port, seconds))
    if peer != "rlplat":
        return rows
    batch = np.random.default_rng(0).normal(size=(256, 4)).astype("<f4")
    binary = post("/v1/act", batch.tobytes(), "application/octet-stream")
    latencies("256 rows, binary", one_client(port, binary, seconds))
    many = post("/v1/act", json.dumps({"obs": batch.round(3).tolist()}).encode())
    latencies("256 rows, JSON", one_client(port, many, seconds))
    return rows


def peers(packages: Path, run: Path) -> dict[str, tuple[Callable[[int], list[str]], dict[str, Any]]]:
    """(command, arguments of Popen) by name; each acts with the same agent, in one process of its own."""
    here = Path(__file__).resolve().parent
    path = os.pathsep.join([str(packages), str(here.parent)])
    environment = {**os.environ, "PYTHONPATH": path, "RUN": str(run), "OPENBLAS_NUM_THREADS": "1"}
    environment |= {"BENTOML_DO_NOT_TRACK": "true", "RAY_USAGE_STATS_ENABLED": "0", "DO_NOT_TRACK": "1"}
    start = {"env": environment, "cwd": here / "serving_peers"}

    def program(file: str) -> Callable[[int], list[str]]:
        return lambda port: [sys.executable, file, str(port), str(run)]

    def bento(port: int) -> list[str]:
        return [sys.executable, "-m", "bentoml", "serve", "bento:Act", "--port", str(port)]

    haproxy = {**start, "env": {**environment, "RAY_SERVE_ENABLE_HA_PROXY": "1"}}
    return {
        "ray": (program("ray_serve.py"), start),
        "ray-haproxy": (program("ray_serve.py"), haproxy),
        "litserve": (program("lit_serve.py"), start),
        "bentoml": (bento, start),
    }


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=expanded, help="a run of CartPole-v1")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    parser.add_argument("--json", type=expanded, help="one object per row")
    parser.add_argument(
        "--peers-in", type=expanded, help="folder that pip installed ray[serve], litserve, bentoml into"
    )
    parser.add_argument("--only", nargs="+", help="of rlplat starlette ray ray-haproxy litserve bentoml")
    return parser


def main() -> None:
    options = build_parser().parse_args()
    run = str(options.run)
    commands: dict[str, tuple[Callable[[int], list[str]], dict[str, Any]]] = {
        "rlplat": (
            lambda port: [sys.executable, "-m", "rlplat.cli", "serve", run, "--port", str(port)],
            {},
        ),
        "starlette": (lambda port: [sys.executable, "-c", STARLETTE, str(port)], {}),
    }
    if options.peers_in:
        commands |= peers(options.peers_in.absolute(), options.run.absolute())
    rows: list[dict[str, object]] = []
    for peer, (command, start) in commands.items():
        if options.only and peer not in options.only:
            continue
        try:
            with server(command, **start) as port:
                rows += measure(peer, port, options.seconds)
        except (RuntimeError, OSError) as error:
            print(f"{peer:<12}not measured: {error}", flush=True)
    if options.json:
        options.json.write_text("".join(json.dumps(each) + "\n" for each in rows))


if __name__ == "__main__":
    main()
