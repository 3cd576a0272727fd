"""Does memory level off? A workload for half an hour, and the private memory of each of its processes all the while.

    ./scripts/bench memory_growth ppo a3c dqn es tasks actors --minutes 30 --markdown memory-growth.md

All workloads run at the same time, each in a cluster of its own at the lowest priority: what counts is that memory
stays where it is, not how fast work is done. The four algorithms train CartPole-v1 with two rollout workers, in small
rounds, because what leaks does so by the round; they neither stop nor evaluate. `tasks` is a driver that only submits
tasks, `actors` one that creates and ends actors.

Private memory is `Private_Dirty` of /proc/PID/smaps_rollup: what this process alone has written to. The slope is that
of least squares. A process is flat when it grows by less than FLAT_KIB_PER_MIN in the last third of the time: what
happens once (the first checkpoint imports what writes it) is no leak.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from benchmarks.measure import ROOT, hardware
from benchmarks.process_memory import descendants, private_kib
from rlplat.paths import expanded

ALGORITHMS = ("ppo", "a3c", "dqn", "es")
FLAT_KIB_PER_MIN = 8.0
"""Less than that has its reason: a worker keeps 25 bytes of each of its last 10,000 calls (`rlplat timeline`)."""
_PACKAGES = ("rlplat", "torch", "numpy", "gymnasium", "pyzmq", "msgspec")
_ROUND_S = 0.02


@dataclass
class History:
    """One process over time."""

    role: str = ""
    seconds: list[float] = field(default_factory=list)
    kib: list[int] = field(default_factory=list)

    def at(self, second: float) -> int:
        """Its memory at the sample nearest to that time."""
        return min(zip(self.seconds, self.kib, strict=True), key=lambda sample: abs(sample[0] - second))[1]

    def slope(self, since_s: float) -> float:
        """KiB a minute from then on."""
        samples = [(s / 60, k) for s, k in zip(self.seconds, self.kib, strict=True) if s >= since_s]
        if len(samples) < 3:
            return 0.0
        return statistics.linear_regression(*zip(*samples, strict=True)).slope


@dataclass
class Load:
    name: str
    process: subprocess.Popen[bytes]
    began: float
    processes: dict[int, History] = field(default_factory=dict)

    def sample(self) -> None:
        now = time.monotonic() - self.began
        for pid in descendants(self.process.pid):
            kib = private_kib(pid)
            if kib:
                history = self.processes.setdefault(pid, History())
                history.seconds.append(now)
                history.kib.append(kib)

    def name_processes(self) -> None:
        """Ask the cluster once who is who (which opens a connection: not at every sample)."""
        from rlplat import state
        from rlplat.errors import RlplatError

        roles = {self.process.pid: "driver"}
        try:
            actors = state.list_actors(cluster=self.process.pid, limit=1000)
            classes = {row["actor"]: row["class"] for row in actors}
            for row in state.list_workers(cluster=self.process.pid, limit=1000):
                roles[row["pid"]] = classes.get(row["actor"], "worker without actor")
        except RlplatError as error:
            print(f"{self.name}: {error}", file=sys.stderr)
        below = sorted(pid for pid in self.processes if pid not in roles)
        for pid, history in self.processes.items():
            if not history.role:
                history.role = roles.get(pid) or ("node" if pid == below[0] else "other")

    def rows(self, minutes: float) -> list[str]:
        """Of those that were there for the last two thirds."""
        lines = []
        for history in self.processes.values():
            first, last = history.seconds[0], history.seconds[-1]
            if first > minutes * 20 or last < minutes * 60 * 0.9:
                continue
            slope, last_slope = history.slope(minutes * 20), history.slope(minutes * 40)
            early, late = history.at(min(300, minutes * 10)) / 1024, history.kib[-1] / 1024
            verdict = "flat" if last_slope < FLAT_KIB_PER_MIN else "**grows**"
            lines.append(
                f"| {self.name} | {history.role} | {early:.2f} | {late:.2f} | {slope:+.2f} | {last_slope:+.2f} "
                f"| {verdict} |"
            )
        return lines


def main() -> None:
    options = build_parser().parse_args()
    if options.run:
        WORKLOADS[options.run](options.minutes)
        return
    os.nice(19)
    loads = [_start(name, options.minutes) for name in options.workload or WORKLOADS]
    began, load_average = time.monotonic(), os.getloadavg()[0]
    num_samples = 0
    while time.monotonic() - began < options.minutes * 60:
        time.sleep(options.period_s)
        for load in loads:
            load.sample()
        num_samples += 1
        if num_samples == max(3, int(options.minutes * 12 / options.period_s)):  # ahead of the last two thirds
            for load in loads:
                load.name_processes()
        report = _report(loads, (time.monotonic() - began) / 60, load_average)
        if options.markdown is not None:
            options.markdown.write_text(report)
    print(report)
    for load in loads:
        if load.process.poll() is not None:
            print(f"{load.name} ended with {load.process.returncode} before the time was over", file=sys.stderr)
        load.process.terminate()
    for load in loads:
        load.process.wait()


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="memory_growth", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("workload", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--period-s", type=float, default=20.0, help="between samples")
    parser.add_argument("--markdown", type=expanded, help="written anew after each sample")
    parser.add_argument("--run", choices=sorted(WORKLOADS), help=argparse.SUPPRESS)
    return parser


def _start(name: str, minutes: float) -> Load:
    command = [sys.executable, "-m", "benchmarks.memory_growth", "--run", name, "--minutes", str(minutes)]
    return Load(name, subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL), time.monotonic())


def _report(loads: Sequence[Load], minutes: float, load_average: float) -> str:
    command = shlex.join(["./scripts/bench", "memory_growth", *sys.argv[1:]])
    info = hardware(_PACKAGES)
    info["load average at the start"] = f"{load_average:.2f}"
    lines = [
        "# Memory over time",
        "",
        f"`{command}`, {datetime.now():%Y-%m-%d}. Private memory of each process after 5 and after {minutes:.1f} "
        "minutes, and its slope over the last two thirds and the last third of that time. A process is flat when in "
        f"the last third it grows by less than {FLAT_KIB_PER_MIN:g} KiB a minute.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in info.items()),
        "",
        f"| workload | process | MiB at 5 min | MiB at {minutes:.1f} min | KiB/min | in the last third | |",
        "|---|---|---:|---:|---:|---:|---|",
        *(line for load in loads for line in load.rows(minutes)),
    ]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- the workloads, each in a process of its own


_SMALL_ROUNDS: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs_per_worker": 2, "rollout_length": 16, "num_epochs": 1, "minibatch_size": 64},
    "a3c": {"num_envs_per_worker": 2, "rollout_length": 5},
    # Its replay is full soon: what is meant to grow is over.
    "dqn": {"rollout_length": 16, "batch_size": 16, "learning_starts": 100, "replay_capacity": 5_000},
    "es": {"population_size": 4, "env_kwargs": {"max_episode_steps": 20}},
}


def _train(name: str) -> Callable[[float], None]:
    def run(minutes: float) -> None:
        import rlplat

        with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
            rlplat.train(
                name,
                env="CartPole-v1",
                out=f"{folder}/run",
                num_rollout_workers=2,
                policy={"hidden_sizes": [16]},
                evaluation={"episodes": 0},
                stop={"wall_s": (minutes + 5) * 60, "env_steps": 10**12, "episode_return_mean": 1e9},
                **_SMALL_ROUNDS[name],
            )

    return run


def _submit_tasks(minutes: float) -> None:
    import rlplat

    @rlplat.remote
    def square(number: int) -> int:
        return number * number

    rlplat.init(num_cpus=2)
    while True:
        rlplat.get([square.remote(number) for number in range(10)])
        time.sleep(_ROUND_S)


class _Counter:
    def add(self, number: int) -> int:
        return number + 1


def _make_actors(minutes: float) -> None:
    import rlplat

    rlplat.init(num_cpus=2)
    actor = rlplat.remote(num_cpus=0)(_Counter)
    while True:
        counter = actor.remote()
        rlplat.get(counter.add.remote(1))
        del counter
        time.sleep(_ROUND_S)


WORKLOADS: dict[str, Callable[[float], None]] = {name: _train(name) for name in ALGORITHMS} | {
    "tasks": _submit_tasks,
    "actors": _make_actors,
}

if __name__ == "__main__":
    main()
