"""The clients of the soak, in processes of their own: they read commands on stdin and answer each with a line of JSON.

sessions URL RUN    32 threads with 32 sessions each; commands: count, pause, resume, end
plain URL           32 threads without sessions, half of them repeat nothing; commands: count, end
overload URL        400 requests/s, open loop, at an application that answers 100/s; ends by itself
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import rlplat
from rlplat.serve import Client, Refused

NUM_THREADS, SESSIONS_EACH = 32, 32
STEPS = 50
"""Of a session."""
TIE = 1e-4
"""Of the log probabilities of both actions: below it rounding decides, which differs with the size of a batch."""
PLAIN = {"obs": [0.01, -0.02, 0.03, 0.04], "state": "initial"}
RATE, OVERLOAD_S, DEADLINE_S = 400, 60.0, 0.5


class Load:
    """A process of clients, seen from the soak."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serving_soak.clients", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def ask(self, command: str) -> Counter[str]:
        """The counts at that moment; of `pause`: when no thread has a request that runs."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Counter[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the clients ended by themselves: exit code {self._process.wait()}")
        return Counter(json.loads(line))

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class Gate:
    """Lets threads through; `pause` returns when every one of them waits."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads, self._num_waiting = num_threads, 0
        self._is_closed = self.is_over = False
        self._changed = threading.Condition()

    def go_through(self) -> bool:
        """False when it is over."""
        with self._changed:
            if self._is_closed:
                self._num_waiting += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._is_closed)
                self._num_waiting -= 1
            return not self.is_over

    def pause(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: self._num_waiting == self._num_threads)

    def resume(self, *, is_over: bool = False) -> None:
        with self._changed:
            self._is_closed, self.is_over = False, is_over
            self._changed.notify_all()


class Reference:
    """What the run itself does, for a thread's sessions: one forward pass for all of them."""

    _lock = threading.Lock()

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self.state = agent.initial_state(SESSIONS_EACH)

    def act(self, rows: Any) -> tuple[Any, Any]:
        """float32[N, 4] -> (int64[N], bool[N]: the two actions are equally likely but for rounding)"""
        with self._lock:
            output, self.state = self._agent.act_on_rows(rows, state=self.state)
        return output.actions, np.abs(output.log_probs - np.log(0.5)) < TIE


def act_in_sessions(url: str, agent: Any, seed: int, gate: Gate, counts: Counter[str]) -> None:
    """Sweep after sweep a step of every session; one that has had its steps is ended and another one begins."""
    rng = np.random.default_rng(seed)
    reference = Reference(agent)
    ages = rng.integers(0, STEPS, SESSIONS_EACH)  # so that they do not end together
    sessions: list[Any] = [None] * SESSIONS_EACH

    def begin(index: int) -> None:
        reference.state[index] = 0.0
        sessions[index] = client.session()
        counts["sessions opened"] += 1

    def lose(index: int, refusal: Refused) -> None:
        if refusal.code != "session-lost":
            raise refusal
        counts["sessions lost"] += 1
        begin(index)
        ages[index] = 0

    def end(index: int) -> None:
        try:
            client.request("DELETE", f"/v1/sessions/{sessions[index].id}")
            counts["sessions ended"] += 1
        except Refused as refusal:
            if refusal.code != "session-lost":
                raise
            counts["sessions lost"] += 1

    with Client(url, retry_s=60.0) as client:
        for index in range(SESSIONS_EACH):
            _try(lambda index=index: begin(index), counts)  # type: ignore[misc]
        while True:
            rows = rng.normal(size=(SESSIONS_EACH, 4)).astype(np.float32)
            expected, is_tie = reference.act(rows)

            def step(index: int, rows: Any = rows, expected: Any = expected, is_tie: Any = is_tie) -> None:
                if ages[index] == STEPS:
                    end(index)
                    begin(index)
                    ages[index] = 0
                    return  # its state was not zero when `expected` was computed
                try:
                    action = sessions[index].act(rows[index].tolist())
                except Refused as refusal:
                    lose(index, refusal)
                    return
                ages[index] += 1
                counts["steps"] += 1
                if action != expected[index]:
                    counts["ties" if is_tie[index] else "wrong actions"] += 1

            for index in range(SESSIONS_EACH):
                if not gate.go_through():
                    for each in range(SESSIONS_EACH):
                        _try(lambda each=each: end(each), counts)  # type: ignore[misc]
                    return
                _try(lambda index=index: step(index), counts)  # type: ignore[misc]


def act_plainly(url: str, gate: Gate, counts: Counter[str]) -> None:
    """With the client, which repeats what breaks."""
    with Client(url, retry_s=60.0) as client:
        while gate.go_through():
            if _try(lambda: client.request("POST", "/v1/act", PLAIN), counts):
                counts["requests of the client"] += 1


def ask_raw(url: str, gate: Gate, counts: Counter[str]) -> None:
    """On a connection that is kept, without repeating: what breaks is counted."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    body = json.dumps(PLAIN)
    while gate.go_through():
        try:
            connection.request("POST", "/v1/act", body)
            answer = connection.getresponse()
            answer.read()
            counts["requests that repeat nothing" if answer.status == 200 else f"failed: {answer.status}"] += 1
        except (OSError, http.client.HTTPException):
            counts["connections broken"] += 1
            connection.close()
    connection.close()


def _try(do: Callable[[], object], counts: Counter[str]) -> bool:
    try:
        do()
        return True
    except Refused as refusal:
        counts[f"failed: {refusal.status} {refusal.code}"] += 1
    except Exception as error:
        counts[f"failed: {type(error).__name__}"] += 1
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return False


def obey(gate: Gate, threads: list[threading.Thread], counts: list[Counter[str]]) -> None:
    for thread in threads:
        thread.start()
    while True:
        command = sys.stdin.readline().strip()
        if command == "pause":
            gate.pause()
        elif command in ("resume", "end"):
            gate.resume(is_over=command == "end")
        if command == "end":
            for thread in threads:
                thread.join()
        total: Counter[str] = Counter()
        for each in counts:
            total.update(dict(each))
        print(json.dumps(total), flush=True)
        if command in ("end", ""):
            os._exit(0)


# ---------------------------------------------------------------- more than it can do


async def overload(url: str) -> dict[str, float]:
    """Open loop: requests leave on time, whatever has been answered. Seconds are from leaving to the last byte."""
    host, _, port = url.removeprefix("http://").partition(":")
    head = f"GET / HTTP/1.1\r\nHost: localhost\r\nX-Request-Timeout: {DEADLINE_S}\r\n\r\n".encode()
    free: list[Any] = []
    seconds: dict[int, list[float]] = {}

    async def ask() -> None:
        reader, writer = free.pop() if free else await asyncio.open_connection(host, int(port))
        begin = time.perf_counter()
        writer.write(head)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        seconds.setdefault(int(answer.split()[1]), []).append(time.perf_counter() - begin)
        free.append((reader, writer))

    loop = asyncio.get_running_loop()
    begin, asks = loop.time(), []
    for n in range(int(RATE * OVERLOAD_S)):
        await asyncio.sleep(max(0.0, begin + n / RATE - loop.time()))
        asks.append(asyncio.ensure_future(ask()))
    answers = await asyncio.gather(*asks, return_exceptions=True)
    found: dict[str, float] = {"broken": sum(isinstance(each, BaseException) for each in answers)}
    for status, all_of in seconds.items():
        found |= {f"{status} count": len(all_of)}
        found |= {f"{status} p{q}": float(np.percentile(all_of, q)) for q in (50, 99)}
    for _, writer in free:
        writer.close()
    return found


def main() -> None:
    kind, url, *rest = sys.argv[1:]
    if kind == "overload":
        print(json.dumps(asyncio.run(overload(url))), flush=True)
        return
    gate = Gate(NUM_THREADS)
    counts = [Counter[str]() for _ in range(NUM_THREADS)]
    if kind == "sessions":
        agent = rlplat.load(rest[0])
        _ = agent.spaces  # made on first use
        targets = [(act_in_sessions, (url, agent, n, gate, counts[n])) for n in range(NUM_THREADS)]
    else:
        targets = [(act_plainly if n % 2 else ask_raw, (url, gate, counts[n])) for n in range(NUM_THREADS)]  # type: ignore[misc]
    obey(gate, [threading.Thread(target=target, args=args) for target, args in targets], counts)


if __name__ == "__main__":
    main()
