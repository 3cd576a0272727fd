"""Machines in network namespaces of their own, cut off from the head, killed, stopped and joined again, by rounds.

    python -m tests.faults.cut_machines --rounds 300 [--seed 1] [--faults cut,kill]      (root, Linux)

Each round a random machine meets a random fault while tasks, actors and an exactly-once actor are at work on all of
them. Then: the head has known of it in time, no two lives of an actor met, every result is there and the right one, no
call that may run once ran twice, and the machine is in the cluster again. At the end nothing is left: no process, no
file. (The last line is a sum; one that begins with FAILED is what did not hold.)
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rlplat
from rlplat.runtime.start import join_file

_NEWNET = 0x40000000
HEAD = "10.77.0.1"
SILENT_S, KILLED_S = 11.0, 1.0
WAIT_S = 90.0


def run(*command: str) -> None:
    subprocess.run(command, check=True)


class Place:
    """A machine: a namespace with one cable to the head's switch, and `rlplat start` in it."""

    def __init__(self, number: int, join: str, folder: Path) -> None:
        self.name, self.cable, self._address = f"far{number}", f"cable{number}", f"10.77.0.{number + 1}"
        self._join, self._log = join, folder / f"{self.name}.log"
        self._holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        while os.readlink(f"/proc/{self._holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        pid = str(self._holder.pid)
        run("ip", "link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", pid)
        run("ip", "link", "set", self.cable, "master", "switch", "up")
        self.there("ip", "addr", "add", f"{self._address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self.there("ip", "link", "set", device, "up")
        self.start()

    def there(self, *command: str) -> None:
        run("nsenter", "-n", "-t", str(self._holder.pid), *command)

    def start(self) -> None:
        command = [sys.executable, "-m", "rlplat.cli", "start", "--address", self._join, "--num-cpus", "2"]
        command += ["--resource", f"{self.name}=1", "--resource", "far=1"]
        enter = ["nsenter", "-n", "-t", str(self._holder.pid)]
        with open(self._log, "a") as log:
            self.process = subprocess.Popen([*enter, *command], stderr=log)

    def has(self, namespace: str) -> bool:
        return os.readlink(f"/proc/{self._holder.pid}/ns/net") == namespace

    def listens(self) -> list[str]:
        """Its open ports, as the kernel writes them."""
        tables = [Path(f"/proc/{self._holder.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        return [line.split()[1] for table in tables for line in table.splitlines()[1:] if line.split()[3] == "0A"]

    def node_process(self) -> int:
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def close(self) -> None:
        for process, number in ((self.process, signal.SIGTERM), (self._holder, signal.SIGKILL)):
            process.send_signal(number)
            process.wait(60)

    # -- faults: each returns what ends it

    def cut(self) -> Callable[[], None]:
        run("ip", "link", "set", self.cable, "down")
        return lambda: run("ip", "link", "set", self.cable, "up")

    def deaf(self) -> Callable[[], None]:
        """What the head sends goes to nobody (half-open)."""
        run("ip", "neigh", "replace", self._address, "lladdr", "02:00:00:00:00:99", "dev", "switch", "nud", "permanent")
        return lambda: run("ip", "neigh", "del", self._address, "dev", "switch")

    def mute(self) -> Callable[[], None]:
        """What it sends goes to nobody."""
        self.there("ip", "neigh", "replace", HEAD, "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
        return lambda: self.there("ip", "neigh", "del", HEAD, "dev", "eth0")

    def slow(self) -> Callable[[], None]:
        """A narrow cable with a short queue: packets wait, and are lost."""
        rate = ("tbf", "rate", "4mbit", "burst", "4k", "limit", "12k")
        run("tc", "qdisc", "add", "dev", self.cable, "root", *rate)
        self.there("tc", "qdisc", "add", "dev", "eth0", "root", *rate)

        def end() -> None:
            run("tc", "qdisc", "del", "dev", self.cable, "root")
            self.there("tc", "qdisc", "del", "dev", "eth0", "root")

        return end

    def kill(self) -> Callable[[], None]:
        os.kill(self.node_process(), signal.SIGKILL)
        return lambda: None

    def hang(self) -> Callable[[], None]:
        os.kill(self.node_process(), signal.SIGSTOP)
        return lambda: None  # its zygote kills it

    def off(self) -> Callable[[], None]:
        """Power: no packet leaves it any more, and no process is left."""
        heal = self.cut()
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

        def end() -> None:
            heal()
            self.start()

        return end

    def pause(self) -> Callable[[], None]:
        """The whole machine stands still, as a virtual one that is moved."""
        pids = [self.process.pid, *descendants(self.process.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def end() -> None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        return end


def descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [each for child in children for each in (child, *descendants(child))]


FAULTS: dict[str, tuple[Callable[[Place], Callable[[], None]], float, float]] = {
    "cut": (Place.cut, 20.0, SILENT_S),
    "deaf": (Place.deaf, 20.0, SILENT_S),
    "mute": (Place.mute, 20.0, SILENT_S),
    "off": (Place.off, 20.0, SILENT_S),
    "pause": (Place.pause, 15.0, SILENT_S),
    "kill": (Place.kill, 0.0, KILLED_S),
    "hang": (Place.hang, 0.0, SILENT_S),
    "short cut": (Place.cut, 3.0, 0.0),
    "slow": (Place.slow, 5.0, 0.0),
}
"""What begins it; how long it lasts; how soon the head knows (0: it is ridden out, and no machine is lost)."""


# ---------------------------------------------------------------- what runs there


@rlplat.remote(num_cpus=0.25, scheduling_strategy="SPREAD", max_retries=-1)
def task(number: int, seconds: float) -> Any:
    time.sleep(seconds)
    return np.full(50_000, number) if number % 3 == 0 else number


@rlplat.remote(num_cpus=0, exactly_once=True, max_restarts=-1, max_task_retries=-1)
class Ledger:
    """What was paid, by key: once each."""

    def __init__(self) -> None:
        self.paid: dict[str, int] = {}

    def get_state(self) -> dict[str, int]:
        return self.paid

    def set_state(self, state: dict[str, int]) -> None:
        self.paid = state

    def pay(self, key: str) -> int:
        self.paid[key] = self.paid.get(key, 0) + 1
        return self.paid[key]

    def all(self) -> tuple[dict[str, int], int]:
        return self.paid, os.getpid()


@rlplat.remote(num_cpus=0, max_retries=0)
def payer(ledger: Any, name: str, num: int) -> list[str]:
    """From another machine; what it has seen paid."""
    seen = []
    for number in range(num):
        key = f"{name}-{number}"
        if rlplat.get(ledger.pay.remote(key)) == 1:
            seen.append(key)
    return seen


@rlplat.remote(num_cpus=0, resources={"far": 0.1}, max_restarts=-1, max_task_retries=-1)
class Counter:
    """One at a time, on any machine but the head's: each life writes when it lived."""

    def __init__(self, folder: str) -> None:
        self.count = 0
        self.file = os.path.join(folder, f"life-{time.monotonic_ns()}-{os.getpid()}")
        threading.Thread(target=self.live, daemon=True).start()

    def live(self) -> None:
        while True:
            with open(self.file, "w") as file:
                file.write(str(time.monotonic_ns()))
            time.sleep(0.02)

    def namespace(self) -> str:
        return os.readlink("/proc/self/ns/net")

    def add(self) -> int:
        self.count += 1
        return self.count


def lives(folder: Path) -> list[tuple[float, float]]:
    """(from, until) of each life of the counter."""
    return sorted((int(file.name.split("-")[1]) / 1e9, int(file.read_text() or 0) / 1e9) for file in folder.iterdir())


class Failed(AssertionError):
    pass


def check(holds: bool, text: str) -> None:
    if not holds:
        raise Failed(text)


def alive() -> dict[str, str]:
    """Machines by what only they have."""
    return {
        name: node["NodeID"]
        for node in rlplat.nodes()
        if node["Alive"]
        for name in node["Resources"]
        if name.startswith("far") and name != "far"
    }


def await_(holds: Callable[[], bool], text: str, seconds: float = WAIT_S) -> float:
    began = time.monotonic()
    while not holds():
        check(time.monotonic() - began < seconds, f"{text}: not within {seconds:g} s")
        time.sleep(0.02)
    return time.monotonic() - began


class Rounds:
    def __init__(self, places: list[Place], folder: Path, rng: random.Random) -> None:
        self.places, self.folder, self.rng = places, folder, rng
        self.known: dict[str, list[float]] = {}
        self.num_results = self.num_paid = 0
        self.ledger = Ledger.remote()
        self.paid: set[str] = set()

    def one(self, number: int, fault: str) -> None:
        rng, folder = self.rng, self.folder / f"round{number}"
        folder.mkdir()
        await_(lambda: len(alive()) == len(self.places), "all machines are here")
        counter = Counter.remote(str(folder))
        namespace = rlplat.get(counter.namespace.remote(), timeout=WAIT_S)
        (place,) = (each for each in self.places if each.has(namespace))
        was = alive()[place.name]
        check(not place.listens(), f"{place.name} listens: {place.listens()}")
        rlplat.get(counter.add.remote(), timeout=WAIT_S)
        counts = [counter.add.remote() for _ in range(5)]
        numbers = [1000 * number + n for n in range(40)]
        results = [task.remote(n, rng.choice((0.0, 0.05, 0.5))) for n in numbers]
        payers = [
            payer.options(resources={each.name: 0.01}).remote(self.ledger, f"{number}-{each.name}", 200)
            for each in self.places
        ]
        time.sleep(rng.uniform(0, 0.5))
        begin, lasts_s, known_s = FAULTS[fault]
        began = time.monotonic()
        end = begin(place)
        counts += [counter.add.remote() for _ in range(5)]
        if rng.random() < 0.3:
            os.kill(rlplat.get(self.ledger.all.remote(), timeout=WAIT_S)[1], signal.SIGKILL)
        try:
            if known_s:
                took_s = await_(lambda: was not in alive().values(), f"{place.name} is lost", known_s)
                self.known.setdefault(fault, []).append(took_s)
            time.sleep(max(0.0, began + lasts_s - time.monotonic()))
        finally:
            end()
        values = rlplat.get(results, timeout=WAIT_S)
        for wanted, value in zip(numbers, values, strict=True):
            got = value if isinstance(value, int) else int(value[0]) if (value == value[0]).all() else -1
            check(got == wanted, f"task {wanted} is {got}")
        self.num_results += len(values)
        added = rlplat.get(counts, timeout=WAIT_S)
        firsts = [at for at, (one, two) in enumerate(itertools.pairwise([0, *added])) if two <= one]
        check(len(firsts) <= 1, f"calls of the counter in no order: {added}")
        if not known_s:
            check(added == list(range(2, 12)), f"a counter was born again: {added}")
            check(alive().get(place.name) == was, f"{place.name} was lost in a {fault}")
        spans = lives(folder)
        for (_, until), (start, _) in itertools.pairwise(spans):
            check(fault == "pause" or until <= start, f"two lives of an actor met: {spans}")
        for ref in payers:
            try:
                self.paid.update(rlplat.get(ref, timeout=WAIT_S))
            except rlplat.errors.WorkerCrashed:
                check(known_s > 0, "a payer was lost")
        paid = rlplat.get(self.ledger.all.remote(), timeout=WAIT_S)[0]
        check(max(paid.values(), default=1) == 1, "a call that may run once ran twice")
        check(self.paid <= paid.keys(), f"paid and forgotten: {self.paid - paid.keys()}")
        self.num_paid = len(paid)
        del counter, counts, results, payers, values


@contextlib.contextmanager
def network() -> Iterator[None]:
    """This process and what it starts, in a namespace with a switch."""
    check(ctypes.CDLL(None, use_errno=True).unshare(_NEWNET) == 0, "unshare(CLONE_NEWNET) is not allowed here")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "switch", "type", "bridge")
    run("ip", "addr", "add", f"{HEAD}/24", "dev", "switch")
    run("ip", "link", "set", "switch", "up")
    yield


def left(mark: str) -> list[str]:
    """Processes that were started with this in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default=",".join(FAULTS))
    args = parser.parse_args()
    faults = args.faults.split(",")
    folder = Path(tempfile.mkdtemp(prefix="cut-"))
    mark = f"CUT_MACHINES={folder.name}"
    os.environ["CUT_MACHINES"], os.environ["TMPDIR"] = folder.name, str(folder / "tmp")
    (folder / "tmp").mkdir()
    shm = set(os.listdir("/dev/shm"))
    rng, began, number = random.Random(args.seed), time.monotonic(), 0
    try:
        with network():
            join = str(folder / "join.json")
            join_file.make(join, HEAD, 7700)
            places = [Place(n, join, folder) for n in range(1, args.machines + 1)]
            try:
                rlplat.init(num_cpus=2, num_gpus=0, address=join, log_to_driver=False)
                (folder / "lives").mkdir()
                rounds = Rounds(places, folder / "lives", rng)
                for number in range(args.rounds):
                    fault = faults[number] if number < len(faults) else rng.choice(faults)
                    rounds.one(number, fault)
                    print(f"round {number}: {fault}", flush=True)
            finally:
                rlplat.shutdown()
                for place in places:
                    place.close()
        await_(lambda: not left(mark), f"no process is left: {left(mark)}", 10.0)
        files = [name for name in set(os.listdir("/dev/shm")) - shm if name.startswith("rlplat-")]
        mine = [name for name in files if name.split("-")[1] == str(os.getpid())]
        check(not mine, f"files are left: {mine}")
    except Failed as error:
        print(f"FAILED in round {number}: {error}; logs in {folder}", flush=True)
        return 1
    known = ", ".join(f"{fault} {max(times):.1f}" for fault, times in rounds.known.items())
    print(
        f"{args.rounds} rounds in {time.monotonic() - began:.0f} s: {rounds.num_results} results and "
        f"{rounds.num_paid} payments, none lost and none twice; a machine's loss was known within (s): {known}"
    )
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
