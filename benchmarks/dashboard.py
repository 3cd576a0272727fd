"""What the dashboard costs on many runs: the first table, fifty curves, one new row, memory, the CPU of an idle server.

    python -m benchmarks.dashboard --runs 1000 --rows 2000 --json rows.json

The runs are made in a temporary directory (1.9 GB for the default). Times are those of the server's answers, over HTTP
on this machine, without a browser; "cold" is the first request to a new server, with the files in the page cache.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import psutil

NUM_NAMES = 40


def make_runs(root: Path, num_runs: int, num_rows: int) -> None:
    """Run directories: config.yaml, metrics.jsonl and log.txt; values differ from run to run by their seed."""
    for run in range(num_runs):
        directory = root / f"run-{run:04}"
        directory.mkdir()
        group = run // 5
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
        self._address = match[0]
        self.process = psutil.Process(self._process.pid)

    def get(self, path: str, *pairs: tuple[str, str]) -> tuple[float, int, Any]:
        """Seconds, bytes, the answer."""
        url = f"{self._address}/api/{path}?{urllib.parse.urlencode(pairs)}"
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


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.dashboard", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--idle-s", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    return parser


def main() -> None:
    options = build_parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="rlplat-dashboard-") as folder:
        make_runs(Path(folder), options.runs, options.rows)
        found = measure(Path(folder), options.runs, options.idle_s)
    for name, value in found.items():
        print(f"{name:<32} {value:10.3f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
