"""Several machines of the own runtime, beside a bare CURVE socket and plain TCP over the same link.

    ./scripts/bench machines --markdown benchmarks/results/machines.md

Two machines on this host: network namespaces with a veth pair between them where root may make those, else two session
folders over loopback. `curve` sends messages between two processes with pyzmq and the cluster's encryption, 1 MiB each
in the stream; `tcp` uses Python's sockets. Each repeat of a peer is two processes of its own; the peers take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Report, Sample, add_output_options, hardware, percentile, summarize

PEERS = ("rlplat", "curve", "tcp")
CALL = "actor call, or an echo, one after another: µs"
TASK = "task, or an echo, one after another: µs"
DURING = "actor call while 100 MB are pulled: µs"
RATE = "tasks on two machines: 1/s"
HERE, THERE = "100 MB from the other machine: GB/s", "100 MB to the other machine: GB/s"
_CHUNK = 1 << 20
Figure = tuple[str, str, str, float]


def main() -> None:
    options = build_parser().parse_args()
    if options.one:
        print(json.dumps(ROLES[options.one](options.at, options.quick)))
        return
    samples = []
    with _link() as (host, here, there, how):
        for repeat in range(options.repeats):
            for peer in PEERS[:: 1 if repeat % 2 == 0 else -1]:
                print(f"repeat {repeat + 1}: {peer}", file=sys.stderr, flush=True)
                samples += [Sample(peer, *each) for each in _measure(peer, host, here, there, options.quick)]
    notes = [how, *(["a --quick run: the figures mean nothing"] if options.quick else [])]
    report = Report(
        "Several machines", PEERS, summarize(samples), {RATE, HERE, THERE}, hardware(("rlplat", "pyzmq")), notes
    )
    report.publish(options.json, options.markdown)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.machines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_output_options(parser, [])
    parser.add_argument("--one", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--at", default="", help=argparse.SUPPRESS)
    return parser


# ---------------------------------------------------------------- two machines


@contextlib.contextmanager
def _link() -> Iterator[tuple[str, list[str], list[str], str]]:
    """The head's address, and what to put ahead of a command for either machine."""
    names = [f"rlplat-bench-{os.getpid()}-{side}" for side in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        try:
            for name in names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            ip("-n", names[0], "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", names[1])
            for name, device, address in zip(names, ("v0", "v1"), ("10.77.0.1/24", "10.77.0.2/24"), strict=True):
                ip("-n", name, "address", "add", address, "dev", device)
                ip("-n", name, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError):
            yield "127.0.0.1", [], [], "two machines over loopback"
        else:
            here, there = (["ip", "netns", "exec", name] for name in names)
            yield "10.77.0.1", here, there, "two machines in network namespaces, a veth pair between them"
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _measure(peer: str, host: str, here: Sequence[str], there: Sequence[str], quick: bool) -> list[Figure]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    rlplat = [sys.executable, "-m", "rlplat.cli", "start"]
    me = [sys.executable, "-m", "benchmarks.machines", *(["--quick"] if quick else [])]
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "join.json")
        other = [*me, "--one", f"{peer}-there", "--at", file]
        if peer == "rlplat":
            other = [*rlplat, "--address", file, "--num-cpus", "2", "--resource", "far=8"]
        make = [*here, *rlplat, "--head", "--host", host, "--file", file]
        subprocess.run(make, cwd=ROOT, env=environment, check=True, capture_output=True)
        far = subprocess.Popen(
            [*there, *other], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            near = [*here, *me, "--one", f"{peer}-here", "--at", file]
            done = subprocess.run(near, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        finally:
            far.terminate()
            far.wait()
    return [tuple(each) for each in json.loads(done.stdout.splitlines()[-1])]


def _round_trips(row: str, call: Callable[[], Any], count: int) -> list[Figure]:
    taken = []
    for index in range(count + count // 10):
        began = time.perf_counter()
        call()
        if index >= count // 10:
            taken.append((time.perf_counter() - began) * 1e6)
    return [(row, "p50", "µs", percentile(taken, 50)), (row, "p99", "µs", percentile(taken, 99))]


def _rates(row: str, move: Callable[[], float], num_bytes: int, count: int) -> list[Figure]:
    """`move` returns the seconds that it took."""
    return [(row, "", "GB/s", num_bytes / sorted(move() for _ in range(count))[count // 2] / 1e9)]


def _sizes(quick: bool) -> tuple[int, int, int]:
    """Round trips, bytes, moves of them."""
    return (100, 10 << 20, 2) if quick else (3000, 100 << 20, 9)


# ---------------------------------------------------------------- the runtime


def _rlplat(file: str, quick: bool) -> list[Figure]:
    import threading

    import numpy as np

    import rlplat

    num_calls, size, num_moves = _sizes(quick)
    rlplat.init(num_cpus=2, num_gpus=0, address=file)
    while len(rlplat.nodes()) < 2:
        time.sleep(0.05)

    @rlplat.remote(num_cpus=0, resources={"far": 1})
    class Far:
        def echo(self) -> None:
            pass

        def make(self) -> Any:
            return np.ones(size, np.uint8)

        def read(self, refs: list[Any]) -> float:
            began = time.perf_counter()
            rlplat.get(refs[0])
            return time.perf_counter() - began

    @rlplat.remote(num_cpus=0, resources={"far": 1})
    def echo() -> None:
        pass

    @rlplat.remote
    def task() -> None:
        pass

    far: Any = Far.remote()

    def pull() -> float:
        ref = far.make.remote()
        rlplat.wait([ref])
        began = time.perf_counter()
        rlplat.get(ref)
        return time.perf_counter() - began

    def push() -> float:
        return float(rlplat.get(far.read.remote([rlplat.put(np.ones(size, np.uint8))])))

    found = _round_trips(CALL, lambda: rlplat.get(far.echo.remote()), num_calls)
    found += _round_trips(TASK, lambda: rlplat.get(echo.remote()), num_calls)
    rlplat.get([task.remote() for _ in range(num_calls)])
    rates = []
    for _ in range(num_moves):
        began = time.perf_counter()
        rlplat.get([task.remote() for _ in range(10 * num_calls)])
        rates.append(10 * num_calls / (time.perf_counter() - began))
    found.append((RATE, "", "1/s", sorted(rates)[num_moves // 2]))
    pull(), push()
    found += _rates(HERE, pull, size, num_moves) + _rates(THERE, push, size, num_moves)
    quiet: Any = Far.remote()
    rlplat.get(quiet.echo.remote())
    is_over = threading.Event()

    def go_on_pulling() -> None:
        while not is_over.is_set():
            pull()

    puller = threading.Thread(target=go_on_pulling)
    puller.start()
    found += _round_trips(DURING, lambda: rlplat.get(quiet.echo.remote()), num_calls // 3)
    is_over.set()
    puller.join()
    rlplat.shutdown()
    return found


# ---------------------------------------------------------------- CURVE


def _curve(file: str, quick: bool) -> list[Figure]:
    """Sends what is asked for, and takes what is said to come."""
    import zmq

    from rlplat.runtime.start import join_file

    keys, (num_calls, size, num_moves) = join_file.read(file), _sizes(quick)
    end = zmq.Context().socket(zmq.PAIR)
    for option, value in ((zmq.CURVE_SERVER, 1), (zmq.CURVE_SECRETKEY, keys.head_secret.encode())):
        end.setsockopt(option, value)
    end.bind(f"tcp://{keys.address}")
    end.recv()

    def echo() -> None:
        end.send(b"echo" * 8)
        end.recv()

    def pull() -> float:
        began = time.perf_counter()
        end.send(b"send")
        for _ in range(size // _CHUNK):
            end.recv(copy=False)
        return time.perf_counter() - began

    def push() -> float:
        began, chunk = time.perf_counter(), bytes(_CHUNK)
        end.send(b"take")
        for _ in range(size // _CHUNK):
            end.send(chunk, copy=False)
        end.recv()
        return time.perf_counter() - began

    found = _round_trips(CALL, echo, num_calls) + _round_trips(TASK, echo, num_calls)
    pull(), push()
    return found + _rates(HERE, pull, size, num_moves) + _rates(THERE, push, size, num_moves)


def _curve_there(file: str, quick: bool) -> None:
    import zmq

    from rlplat.runtime.start import join_file

    keys, (_, size, _), chunk = join_file.read(file), _sizes(quick), bytes(_CHUNK)
    end = zmq.Context().socket(zmq.PAIR)
    for option, value in (
        (zmq.CURVE_SERVERKEY, keys.head_public.encode()),
        (zmq.CURVE_PUBLICKEY, keys.node_public.encode()),
        (zmq.CURVE_SECRETKEY, keys.node_secret.encode()),
    ):
        end.setsockopt(option, value)
    end.connect(f"tcp://{keys.address}")
    end.send(b"here")
    while True:
        what = end.recv()
        for _ in range(size // _CHUNK if what in (b"send", b"take") else 0):
            end.send(chunk, copy=False) if what == b"send" else end.recv(copy=False)
        if what != b"send":
            end.send(what)


# ---------------------------------------------------------------- TCP


def _tcp(file: str, quick: bool) -> list[Figure]:
    from rlplat.runtime.start import join_file

    num_calls, size, num_moves = _sizes(quick)
    with socket.create_server(join_file.host_and_port(join_file.read(file))) as server:
        end = server.accept()[0]
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = bytearray(size)

    def echo() -> None:
        end.sendall(b"echo" * 8)
        _fill(end, memoryview(data)[:32])

    def pull() -> float:
        began = time.perf_counter()
        end.sendall(b"send" * 8)
        _fill(end, memoryview(data))
        return time.perf_counter() - began

    def push() -> float:
        began = time.perf_counter()
        end.sendall(b"take" * 8)
        end.sendall(data)
        _fill(end, memoryview(data)[:32])
        return time.perf_counter() - began

    with end:
        found = _round_trips(CALL, echo, num_calls) + _round_trips(TASK, echo, num_calls)
        pull(), push()
        return found + _rates(HERE, pull, size, num_moves) + _rates(THERE, push, size, num_moves)


def _tcp_there(file: str, quick: bool) -> None:
    from rlplat.runtime.start import join_file

    data, what = bytearray(_sizes(quick)[1]), bytearray(32)
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(join_file.host_and_port(join_file.read(file))) as end,
        ):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while _fill(end, memoryview(what)):
                if what[:4] == b"send":
                    end.sendall(data)
                    continue
                if what[:4] == b"take":
                    _fill(end, memoryview(data))
                end.sendall(what)
        time.sleep(0.05)


def _fill(end: socket.socket, view: memoryview) -> bool:
    while view.nbytes:
        received = end.recv_into(view)
        if not received:
            return False
        view = view[received:]
    return True


ROLES: dict[str, Callable[[str, bool], Any]] = {
    "rlplat-here": _rlplat,
    "curve-here": _curve,
    "curve-there": _curve_there,
    "tcp-here": _tcp,
    "tcp-there": _tcp_there,
}


if __name__ == "__main__":
    main()
