"""What the dashboard costs on many runs, in a browser, and beside a training.

    python -m benchmarks.dashboard --json rows.json                    # all parts
    python -m benchmarks.dashboard --parts browser training --quick

server: the first table, fifty curves, one new row, memory, the CPU of an idle server. The runs are made in a temporary
directory (1.9 GB for the default). Times are those of the server's answers, over HTTP on this machine, without a
browser; "cold" is the first request to a new server, with the files in the page cache.
browser: fifty runs drawn by a headless Chromium, and the page's weight.
training: the same PPO on CartPole-v1 with five tabs open on its page, or a tracker attached, and without, in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chromium import Chromium
from rlplat.paths import expanded

PARTS = ("server", "browser", "training")
NUM_NAMES = 40
NUM_TABS = 5


def make_runs(root: Path, num_runs: int, num_rows: int, group_size: int = 5) -> None:
    """Run directories: config.yaml, metrics.jsonl and log.txt; values differ from run to run by their seed. So many of
    them differ by nothing else."""
    for run in range(num_runs):
        directory = root / f"run-{run:04}"
        directory.mkdir()
        group = run // group_size
        config = {"algo": "ppo", "env": "CartPole-v1", "seed": run, "learning_rate": 1e-4 * (1 + group)}
        (directory / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in config.items()))
        (directory / "log.txt").write_text("2026-11-23 00:00:00  done\n")
        with open(directory / "metrics.jsonl", "w") as file:
            tail = ", ".join(f'"learner/value_{i}": {0.123456 + i + run:.6f}' for i in range(NUM_NAMES - 5))
            for row in range(1, num_rows + 1):
                file.write(line(row, run, tail))


def line(row: int, run: int, tail: str = "") -> str:
    return (
        f'{{"iteration": {row}, "env_steps": {1024 * row}, "wall_s": {0.5 * row}, "env_steps_per_s": 2048.0, '
        f'"episode_return_mean": {(row * (run % 7 + 1)) % 500}.5{", " if tail else ""}{tail}}}\n'
    )


class Server:
    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "rlplat.cli", "dashboard", str(root), "--port", "0"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        said = self._process.stderr.readline()
        match = re.search(r"http://\S+:\d+", said)
        assert match is not None, said
        self.address = match[0]
        self.process = psutil.Process(self._process.pid)

    def get(self, path: str, *pairs: tuple[str, str]) -> tuple[float, int, Any]:
        """Seconds, bytes, the answer."""
        url = f"{self.address}/api/{path}?{urllib.parse.urlencode(pairs)}"
        began_s = time.perf_counter()
        with urllib.request.urlopen(url, timeout=600) as answer:
            data = answer.read()
        return time.perf_counter() - began_s, len(data), json.loads(data)

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()


def measure(root: Path, num_runs: int, idle_s: float) -> dict[str, float]:
    server = Server(root)
    try:
        found: dict[str, float] = {}
        for name in ("cold", "warm"):
            before_s = server.cpu_s()
            found[f"first table {name}, s"], size, answer = server.get("runs")
            found[f"first table {name}, CPU s"] = server.cpu_s() - before_s
            assert len(answer["runs"]) == num_runs
        found["first table, KB"] = size / 1000
        chosen = [("run", f"run-{run:04}") for run in range(min(50, num_runs))]
        for name in ("cold", "warm"):
            before_s = server.cpu_s()
            found[f"compare {len(chosen)} runs {name}, s"], size, _ = server.get("compare", *chosen)
            found[f"compare {len(chosen)} runs {name}, CPU s"] = server.cpu_s() - before_s
        found[f"compare {len(chosen)} runs, KB"] = size / 1000
        _, _, first = server.get("metrics", ("run", "run-0000"))
        file = root / "run-0000" / "metrics.jsonl"
        last = file.read_text().splitlines()[-1]
        with open(file, "a") as more:
            more.write(last.replace('"iteration": ', '"iteration": 1') + "\n")
        seconds, size, answer = server.get("metrics", ("run", "run-0000"), ("cursor", first["cursor"]))
        assert len(answer["columns"]["env_steps"]) == 1 and not answer["reset"]
        found["one new row, ms"], found["one new row, KB"] = 1000 * seconds, size / 1000
        found["server RSS, MiB"] = server.process.memory_info().rss / 2**20
        before_s = server.cpu_s()
        time.sleep(idle_s)
        found["idle CPU, %"] = 100 * (server.cpu_s() - before_s) / idle_s
        return found
    finally:
        server.close()


# ---------------------------------------------------------------- in the browser

DRAWN = """
const names = NAMES.map(encodeURIComponent).join("|");
const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));
while (typeof current === "undefined" || current === null) await sleep(20);
const query = NAMES.map((name) => "run=" + name).join("&");
const answer = await (await fetch("/api/compare?" + query)).json();
const real = api;
api = async (name, ...pairs) => name === "compare" ? answer : real(name, ...pairs);
const began = performance.now();
const made = await comparePage("", names);
await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)));
const spent = performance.now() - began;
const curves = document.querySelector("canvas") ? document.querySelectorAll(".u-series").length - 1 : 0;
api = real;
made.destroy();
curves === NAMES.length ? spent : -1
"""
"""From the answer of the server to the picture: columns, table, uPlot, the frame in which it is painted."""


def measure_browser(root: Path, num_runs: int, repeats: int) -> dict[str, float]:
    server = Server(root)
    chromium = Chromium()
    try:
        tab = chromium.open(f"{server.address}/#/")
        names = [f"run-{run:04}" for run in range(num_runs)]
        times = [tab.evaluate(DRAWN.replace("NAMES", json.dumps(names))) for _ in range(repeats)]
        assert min(times) > 0, "nothing was drawn"
        found = {f"{num_runs} runs drawn, median ms": statistics.median(times)}
        found[f"{num_runs} runs drawn, least ms"], found[f"{num_runs} runs drawn, most ms"] = (
            min(times),
            max(times),
        )
        with urllib.request.urlopen(server.address, timeout=60) as answer:
            text = answer.read().decode()
        weight = len(text)
        for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', text):
            with urllib.request.urlopen(server.address + path, timeout=60) as answer:
                weight += len(answer.read())
        found["page weight, KB"] = weight / 1000
        return found
    finally:
        chromium.close()
        server.close()


# ---------------------------------------------------------------- beside a training


class LinesTracker:
    """The least that a tracker does: it writes what it is told. Measured is the copy, not a network."""

    package = ""

    def open(self, run: Any) -> int:
        self._file = open(run.directory / "tracked.jsonl", "a")
        return 0

    def log(self, rows: Sequence[Any]) -> None:
        for row in rows:
            self._file.write(json.dumps(row.values) + "\n")
        self._file.flush()

    def log_file(self, path: Path, kind: str, env_steps: int) -> None:
        pass

    def finish(self, state: str) -> None:
        self._file.close()


@contextlib.contextmanager
def tabs_open(out: Path) -> Iterator[None]:
    """Five tabs on the page of a run that trains."""
    server = Server(out.parent)
    chromium = Chromium()
    try:
        tabs = [chromium.open(f"{server.address}/#/run/{out.name}") for _ in range(NUM_TABS)]
        yield
        shown = [tab.evaluate('document.querySelectorAll("canvas").length') for tab in tabs]
        assert min(shown) > 0, "a tab shows no chart"
    finally:
        chromium.close()
        server.close()


@contextlib.contextmanager
def tracker_attached(out: Path) -> Iterator[None]:
    command = ["track", str(out), "--to", "benchmarks.dashboard:LinesTracker"]
    with subprocess.Popen([sys.executable, "-m", "rlplat.cli", *command], stdout=subprocess.DEVNULL) as process:
        yield
        assert process.wait(60) == 0
    assert (out / "tracked.jsonl").stat().st_size > 0, "nothing was copied"


def train(out: Path, env_steps: int, beside: Callable[[Path], AbstractContextManager[None]]) -> tuple[float, float]:
    """Seconds of wall time by the run's own clock (without its start and last evaluation), of CPU of its processes."""
    command = [
        sys.executable,
        "-m",
        "rlplat.cli",
        "train",
        "--algo",
        "ppo",
        "--env",
        "CartPole-v1",
        "--seed",
        "1",
    ]
    options = ["--stop.env-steps", str(env_steps), "--stop.episode-return-mean", "null", "--out", str(out)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
    while not (out / "config.yaml").exists():
        assert process.poll() is None, "the training did not start"
        time.sleep(0.01)
    with beside(out):
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    return last["wall_s"], cpu_s(used)


def cpu_s(used: resource.struct_rusage) -> float:
    """Of a process that has ended and the children that it waited for."""
    return used.ru_utime + used.ru_stime


def measure_training(root: Path, env_steps: int, pairs: int) -> dict[str, float]:
    """By how many per cent it was slower: median, least and most of the pairs. Which is first changes in turn."""
    found: dict[str, float] = {}
    kinds = {f"{NUM_TABS} tabs open": tabs_open, "a tracker attached": tracker_attached}
    for number, (name, beside) in enumerate(kinds.items()):
        slower: dict[str, list[float]] = {"wall": [], "CPU": []}
        for pair in range(pairs):
            times = {}
            for is_with in (pair % 2 == 0, pair % 2 == 1):
                out = root / f"training-{number}-{pair}-{int(is_with)}"
                times[is_with] = train(out, env_steps, beside if is_with else lambda out: contextlib.nullcontext())
            for clock, with_s, alone_s in zip(slower, times[True], times[False], strict=True):
                slower[clock].append(100 * (with_s / alone_s - 1))
        for clock, values in slower.items():
            found[f"{name}: {clock} +%, median"] = statistics.median(values)
            found[f"{name}: {clock} +%, least"] = min(values)
            found[f"{name}: {clock} +%, most"] = max(values)
    return found


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.dashboard", description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--idle-s", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=10, help="trainings with and without, of each kind")
    parser.add_argument("--env-steps", type=int, default=400_000, help="of each training")
    parser.add_argument("--repeats", type=int, default=9, help="of drawing")
    parser.add_argument("--quick", action="store_true", help="does it work? too little to report")
    parser.add_argument("--json", type=expanded)
    return parser


def main() -> None:
    options = build_parser().parse_args()
    if options.quick:
        options.runs, options.rows, options.idle_s, options.pairs, options.repeats = 60, 200, 1.0, 1, 2
        options.env_steps = 20_000
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="rlplat-dashboard-") as folder:
        if "server" in options.parts:
            (root := Path(folder, "server")).mkdir()
            make_runs(root, options.runs, options.rows)
            found |= measure(root, options.runs, options.idle_s)
        if "browser" in options.parts:
            (root := Path(folder, "browser")).mkdir()
            make_runs(root, 50, options.rows, group_size=1)
            found |= measure_browser(root, 50, options.repeats)
        if "training" in options.parts:
            (root := Path(folder, "training")).mkdir()
            found |= measure_training(root, options.env_steps, options.pairs)
    for name, value in found.items():
        print(f"{name:<40} {value:10.3f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
