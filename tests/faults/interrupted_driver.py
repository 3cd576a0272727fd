"""A driver that is interrupted again and again, at random moments, and goes on: nothing may be lost, nothing dead.

    python -m tests.faults.interrupted_driver in_flight 7          # one workload, one seed
    python -m tests.faults.interrupted_driver --runs 40            # a table: how many of 40 runs of each broke

A child process sends SIGINT and waits until the driver has caught it, so that none may be swallowed or come twice;
`alarms` is interrupted by its own interval timer instead, whose handler raises an exception of its own. After the last
one every ref still has its value, fresh calls are answered, and when all refs are dropped all books are empty.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import rlplat
import rlplat.runtime.refs
from tests.patience import soon

_NUM_INTERRUPTS = 8
_ANSWER_S = 10.0
_SENDER = """
import os, random, sys, time
pid, seed, most_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
chance = random.Random(seed)
while sys.stdin.read(1):
    time.sleep(chance.uniform(0, most_s))
    os.kill(pid, 2)
"""


class TooLong(Exception):
    """What the handler of SIGALRM raises."""


def raise_too_long(number: int, frame: object) -> None:
    raise TooLong


@rlplat.remote
def add_one(x: Any) -> Any:
    return x + 1


@rlplat.remote
def slow(x: int) -> int:
    time.sleep(0.03)
    return x + 1


@rlplat.remote
def count(n: int) -> Any:
    yield from range(n)


class Adder:
    def __init__(self) -> None:
        self.total = 0

    def add(self, x: int) -> int:
        return x + 1


def expect(refs: list[tuple[Any, Any]]) -> None:
    """The values of all of these refs are as they should be."""
    values = rlplat.get([ref for ref, _ in refs], timeout=_ANSWER_S)
    for value, (ref, wanted) in zip(values, refs, strict=True):
        if isinstance(wanted, np.ndarray):
            assert np.array_equal(value, wanted), ref
        else:
            assert value == wanted, (ref, value, wanted)


class Workload:
    """`step()` goes on with the work; whatever is in `refs` must have its value, however often it was interrupted."""

    most_s = 0.03
    """The next interrupt comes after this much, or less."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.refs: list[tuple[Any, Any]] = []

    def step(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Submissions(Workload):
    def step(self) -> None:
        if len(self.refs) > 20_000:
            self.refs.clear()
        for x in range(2000):
            self.refs.append((add_one.remote(x), x + 1))
        expect(self.refs[-2000:])


class InFlight(Workload):
    most_s = 0.1

    def step(self) -> None:
        if not self.refs:
            self.refs = [(add_one.remote(x), x + 1) for x in range(5000)]
        expect(self.refs)
        self.refs.clear()


class Slow(Workload):
    def step(self) -> None:
        self.refs = [(slow.remote(x), x + 1) for x in range(4)]
        expect(self.refs)


class Mixed(Workload):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.actor = rlplat.remote(Adder).remote()

    def step(self) -> None:
        x, refs = self.random.randrange(1000), self.refs
        match self.random.randrange(10):
            case 0 | 1:
                for i in range(50):
                    refs.append((add_one.remote(i), i + 1))
            case 2:
                for i in range(50):
                    refs.append((self.actor.add.remote(i), i + 1))
            case 3:
                array = np.full(20_000, x)
                refs.append((rlplat.put(array), array))
            case 4:
                array = np.full(20_000, x)
                refs.append((add_one.remote(array), array + 1))
            case 5:
                refs.append((add_one.remote(add_one.remote(x)), x + 2))
            case 6:
                some = [ref for ref, _ in refs[-20:]]
                if some:
                    rlplat.wait(some, num_returns=len(some), timeout=0.01)
            case 7:
                rlplat.cancel(slow.remote(x))
            case 8:
                for ref in count.remote(5):
                    rlplat.get(ref, timeout=_ANSWER_S)
                rlplat.available_resources()
            case 9:
                expect(refs)
                refs.clear()

    def close(self) -> None:
        del self.actor


class SecondThread(Submissions):
    """Another thread waits meanwhile, which no signal ever strikes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.failure: BaseException | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over:
                for x in range(20):
                    assert rlplat.get(add_one.remote(x), timeout=_ANSWER_S) == x + 1
                expect([(slow.remote(1), 2)])
        except BaseException as error:
            self.failure = error

    def step(self) -> None:
        if self.failure is not None:
            raise self.failure
        super().step()

    def close(self) -> None:
        self._is_over = True
        self._thread.join(2 * _ANSWER_S)
        assert not self._thread.is_alive(), "the second thread waits for ever"
        if self.failure is not None:
            raise self.failure


class Notebook(Mixed):
    """A kernel puts Python's own handler back before each cell."""

    def step(self) -> None:
        saved = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            super().step()
        finally:
            signal.signal(signal.SIGINT, saved)


class Alarms(Mixed):
    """Time-outs by SIGALRM."""


WORKLOADS: dict[str, type[Workload]] = {
    "submissions": Submissions,
    "in_flight": InFlight,
    "mixed": Mixed,
    "second_thread": SecondThread,
    "slow": Slow,
    "notebook": Notebook,
    "alarms": Alarms,
}


class _Sender:
    def __init__(self, seed: int, most_s: float) -> None:
        command = [sys.executable, "-S", "-c", _SENDER, str(os.getpid()), str(seed), str(most_s)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def send_soon(self) -> None:
        os.write(self._process.stdin.fileno(), b".")  # type: ignore[union-attr]

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()


class _Timer:
    def __init__(self, seed: int, most_s: float) -> None:
        self._random, self._most_s = random.Random(seed), most_s
        signal.signal(signal.SIGALRM, raise_too_long)

    def send_soon(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._random.uniform(0.0001, self._most_s))

    def close(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def books() -> dict[str, int]:
    """What the driver still keeps."""
    client: Any = rlplat.runtime.refs.backend()
    with client.link.lock:
        client.objects.collect()
        leases = [lease for lane in client.calls.lanes() for lease in (*lane.leases.values(), *lane.doomed.values())]
        return {
            "calls": client.calls.num_open,
            "objects": len(client.objects.book),
            "borrows": len(client.objects.borrows),
            "segments": len(client.objects.store._in_use),
            "ready": sum(len(lane.ready) for lane in client.calls.lanes()),
            "in flight": sum(len(lease.in_flight) for lease in leases),
            "answers": len(client.questions._answers),
            "waiting threads": client.link.loop._num_users,
        }


def run(name: str, seed: int) -> None:
    workload = WORKLOADS[name](seed)
    source: Any = (_Timer if name == "alarms" else _Sender)(seed, workload.most_s)
    wanted: type[BaseException] = TooLong if name == "alarms" else KeyboardInterrupt
    num_caught, stop_at = 0, 0.0
    while num_caught < _NUM_INTERRUPTS:
        stop_at = time.monotonic() + _ANSWER_S
        try:
            source.send_soon()
            while time.monotonic() < stop_at:
                workload.step()
            raise AssertionError(f"interrupt {num_caught + 1} was swallowed")
        except wanted:
            num_caught += 1
    source.close()
    expect(workload.refs)
    workload.refs.clear()
    workload.close()
    expect([(add_one.remote(x), x + 1) for x in range(100)])
    expect([(slow.remote(x), x + 1) for x in range(4)])
    del workload
    assert soon(lambda: not any(books().values()), 3), books()


def _table(num_runs: int, names: list[str]) -> None:
    root = Path(__file__).resolve().parents[2]
    for name in names:
        broken: dict[str, int] = {}
        began = time.monotonic()
        for seed in range(num_runs):
            command = [sys.executable, "-m", __spec__.name, name, str(seed)]
            with subprocess.Popen(
                command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as process:
                try:
                    out = process.communicate(timeout=120)[0]
                except subprocess.TimeoutExpired:
                    process.kill()
                    out = "hung\n" + process.communicate()[0]
            if process.returncode or "Exception ignored" in out:
                errors = [
                    line for line in out.splitlines() if "Error" in line or "ignored" in line or "Timeout" in line
                ]
                why = " | ".join(errors[-3:] or out.splitlines()[-1:] or [f"exit code {process.returncode}"])
                broken[why[:300]] = broken.get(why[:300], 0) + 1
        seconds = time.monotonic() - began
        print(f"{name}: {sum(broken.values())} of {num_runs} broke ({seconds:.0f} s)", flush=True)
        for why, times in broken.items():
            print(f"    {times} x {why}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("workload", nargs="?", choices=WORKLOADS)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    parser.add_argument("--runs", type=int, help="of each workload (or of the one named), in processes of their own")
    asked = parser.parse_args(arguments)
    if asked.runs:
        _table(asked.runs, [asked.workload] if asked.workload else list(WORKLOADS))
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
    rlplat.init(num_cpus=2, num_gpus=0)
    rlplat.get([add_one.remote(x) for x in range(100)])
    run(asked.workload, asked.seed)
    rlplat.shutdown()
    print("all is well", flush=True)


if __name__ == "__main__":
    main()
