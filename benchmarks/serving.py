"""What a request to a served policy costs, beside an empty Starlette application on uvicorn.

    python -m benchmarks.serving runs/demo --seconds 5 --json rows.json
    pip install --target /tmp/peers 'ray[serve]==2.60.0' litserve==0.2.19 bentoml==1.4.30
    python -m benchmarks.serving runs/demo --peers-in /tmp/peers                 beside Ray Serve, LitServe, BentoML too
    pip install --target /tmp/granian granian==2.8.9 onnxruntime numpy
    python -m benchmarks.serving policy.onnx --peers-in /tmp/granian --only rlplat granian --pin --repeats 3 --short

The load generator is this process: raw sockets, requests written out beforehand. Each server has one process that
answers. Where the machine has few cores, generator and server share them, for every system alike; with --pin the
processes of the server have the first core, the generator has the second.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import select
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
import psutil

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
        """The whole answer."""
        self.socket.sendall(request)
        while (end := self.buffer.find(b"\r\n\r\n")) < 0:
            self.buffer += self.receive()
        head = self.buffer[:end].lower()
        assert head.startswith(b"http/1.1 200"), self.buffer[:300]
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(self.buffer) < end + 4 + length:
            self.buffer += self.receive()
        answer, self.buffer = self.buffer[: end + 4 + length], self.buffer[end + 4 + length :]
        return answer

    def receive(self) -> bytes:
        data = self.socket.recv(262144)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        return data

    def close(self) -> None:
        self.socket.close()


def many_clients(port: int, request: bytes, connections: int, seconds: float) -> tuple[list[float], float]:
    """(seconds of each request, requests a second). Each connection asks again when it has its answer; all answers have
    the length of the first."""
    clients = {each.socket.fileno(): each for each in (Connection(port) for _ in range(connections))}
    asked, missing = {}, {}
    took: list[float] = []
    with select.epoll() as ready:
        for number, client in clients.items():
            length = len(client.ask(request))
            ready.register(number, select.EPOLLIN)
        for number, client in clients.items():
            asked[number], missing[number] = time.perf_counter(), length
            client.socket.sendall(request)
        begin = time.perf_counter() + 0.5
        end, now = begin + seconds, 0.0
        while now <= end:
            for number, _ in ready.poll(30) or [(0, 0)]:
                missing[number] -= len(clients[number].receive())
                if not missing[number]:
                    now = time.perf_counter()
                    if now > begin:
                        took.append(now - asked[number])
                    asked[number], missing[number] = now, length
                    clients[number].socket.sendall(request)
    for client in clients.values():
        client.close()
    return took, len(took) / (now - begin)


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
def server(command: Callable[[int], list[str]], **start: Any) -> Iterator[tuple[int, psutil.Process]]:
    port = free_port()
    pinned = ["taskset", "-c", "0"] if len(os.sched_getaffinity(0)) == 1 else []  # this process has the other core
    process = subprocess.Popen([*pinned, *command(port)], stdout=subprocess.DEVNULL, start_new_session=True, **start)
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
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what a peer leaves behind


def cpu_s(server: psutil.Process) -> float:
    """What its processes have computed, all together."""
    return sum(sum(each.cpu_times()[:2]) for each in [server, *server.children(recursive=True)])


def measure(peer: str, port: int, process: psutil.Process, seconds: float, is_short: bool) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []

    def row(name: str, value: float, unit: str) -> None:
        rows.append({"peer": peer, "row": name, "value": value, "unit": unit})
        print(f"{peer:<12}{name:<42}{value:>12,.4g} {unit}", flush=True)

    def latencies(name: str, took: list[float], rate: float = 0.0) -> None:
        cuts = statistics.quantiles(took, n=100)
        row(f"{name}, p50", cuts[49] * 1e3, "ms")
        row(f"{name}, p99", cuts[98] * 1e3, "ms")
        row(f"{name}, rate", rate or len(took) / sum(took), "1/s")

    for connections, name in ((1, "one client, JSON"), (64, "64 connections, JSON")):
        begin = cpu_s(process)
        took, rate = many_clients(port, post("/v1/act", OBS), connections, seconds)
        latencies(name, took, rate)
        row(f"{name}, CPU", (cpu_s(process) - begin) / (rate * (seconds + 0.5)) * 1e6, "us/request")
    if is_short:
        return rows
    if peer in ("rlplat", "starlette"):
        latencies("WebSocket step, raw", web_socket(port, seconds))
    if peer != "rlplat":
        return rows
    batch = np.random.default_rng(0).normal(size=(256, 4)).astype("<f4")
    binary = post("/v1/act", batch.tobytes(), "application/octet-stream")
    latencies("256 rows, binary", *many_clients(port, binary, 1, seconds))
    many = post("/v1/act", json.dumps({"obs": batch.round(3).tolist()}).encode())
    latencies("256 rows, JSON", *many_clients(port, many, 1, seconds))
    return rows


def print_medians(rows: list[dict[str, Any]]) -> None:
    """Of each row over its repeats, with the least and the most; and the ratio to the peer that is named last."""
    values: dict[str, dict[str, list[float]]] = {}
    for each in rows:
        values.setdefault(each["row"], {}).setdefault(each["peer"], []).append(each["value"])
    for name, by_peer in values.items():
        last = statistics.median(list(by_peer.values())[-1])
        for peer, found in by_peer.items():
            median = statistics.median(found)
            spread = f"[{min(found):,.4g}, {max(found):,.4g}]"
            print(f"{name:<32}{peer:<12}{median:>10,.4g}  {spread:<22}{median / last:>8.2f}")


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

    def granian(port: int) -> list[str]:
        options = ["--interface", "rsgi", "--log-level", "error", "--port", str(port)]
        return [sys.executable, "-m", "granian", *options, "granian_onnx:act"]

    haproxy = {**start, "env": {**environment, "RAY_SERVE_ENABLE_HA_PROXY": "1"}}
    return {
        "ray": (program("ray_serve.py"), start),
        "ray-haproxy": (program("ray_serve.py"), haproxy),
        "litserve": (program("lit_serve.py"), start),
        "bentoml": (bento, start),
        "granian": (granian, start),
    }


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=expanded, help="a run of CartPole-v1; for granian, which serves a file, its export")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    parser.add_argument("--json", type=expanded, help="one object per row")
    parser.add_argument(
        "--peers-in", type=expanded, help="folder that pip installed ray[serve], litserve, bentoml, granian into"
    )
    parser.add_argument("--only", nargs="+", help="of rlplat starlette ray ray-haproxy litserve bentoml granian")
    parser.add_argument("--pin", action="store_true", help="the server to the first core, the generator to the second")
    parser.add_argument("--short", action="store_true", help="only 1 and 64 connections")
    parser.add_argument("--repeats", type=int, default=1, help="of all servers, one after the other")
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
    if options.pin:
        os.sched_setaffinity(0, [1])
    rows: list[dict[str, object]] = []
    for _ in range(options.repeats):
        for peer in options.only or commands:
            command, start = commands[peer]
            try:
                with server(command, **start) as (port, process):
                    rows += measure(peer, port, process, options.seconds, options.short)
            except (RuntimeError, OSError) as error:
                print(f"{peer:<12}not measured: {error}", flush=True)
    if options.repeats > 1:
        print_medians(rows)
    if options.json:
        options.json.write_text("".join(json.dumps(each) + "\n" for each in rows))


if __name__ == "__main__":
    main()
