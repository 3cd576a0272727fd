"""A3C: gradient updates per second against the number of workers, with the time a worker waits for its weights.

    ./scripts/bench a3c_scaling --json a3c.jsonl --markdown benchmarks/results/a3c_scaling.md
    python -m benchmarks.a3c_scaling --rows cartpole --workers 1 2 4

A figure is taken after a warm-up, in a process of its own, from the parameter server's count of applied gradients. It
should grow with the workers until the cores are full; beyond that staleness grows instead.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from benchmarks.measure import ROOT, Report, Sample, add_output_options, hardware, summarize

PACKAGES = ("rlplat", "torch", "numpy", "gymnasium", "ale-py")
SETTINGS: dict[str, dict[str, Any]] = {
    "cartpole": {"env": "CartPole-v1", "num_envs_per_worker": 8, "rollout_length": 5},
    "pong": {"env": "Pong", "num_envs_per_worker": 4, "rollout_length": 5, "clip_rewards": True},
}
NAMES = {
    "cartpole": "CartPole-v1, 8 envs x 5 steps a gradient, 64x64",
    "pong": "Pong, 4 envs x 5 steps a gradient, Nature CNN",
}
UPDATES, WAIT, STALENESS = "updates/s", "exchange, ms", "staleness, mean"


def main() -> None:
    options = build_parser().parse_args()
    if options.measure:
        settings = json.loads(options.measure)
        print(json.dumps(measure(settings.pop("task"), **settings)))
        return
    warm_up_s, seconds = (0.2, 0.5) if options.quick else (3.0, options.seconds)
    samples: list[Sample] = []
    for repeat in range(options.repeats):
        for task in options.rows:
            for num_workers in options.workers:
                case = f"{task}, {num_workers} workers"
                print(f"repeat {repeat + 1} of {options.repeats}: {case}", file=sys.stderr, flush=True)
                asked = {"task": task, "num_workers": num_workers, "warm_up_s": warm_up_s, "seconds": seconds}
                command = [sys.executable, "-m", "benchmarks.a3c_scaling", "--measure", json.dumps(asked)]
                done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
                figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
                row = f"{NAMES[task]}; workers {num_workers}: " + " / ".join(figures)
                samples += [Sample("rlplat", row, part, part, value) for part, value in figures.items()]
    notes = ["a --quick run: the figures mean nothing"] if options.quick else []
    notes.append("One update is one gradient applied by the parameter server; the exchange is a worker's wait for it.")
    Report("A3C scaling", ["rlplat"], summarize(samples), set(), hardware(PACKAGES), notes).publish(
        options.json, options.markdown
    )


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.a3c_scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_output_options(parser, [])
    parser.add_argument("--rows", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 3, 4, 8], metavar="N")
    parser.add_argument("--seconds", type=float, default=10.0, help="of measuring, for each figure")
    parser.add_argument("--measure", metavar="JSON", help=argparse.SUPPRESS)
    return parser


def measure(task: str, num_workers: int, warm_up_s: float, seconds: float) -> dict[str, float]:
    """The figures of one case, in this process."""
    from rlplat.algorithms.a3c import A3C, A3CConfig

    config = A3CConfig.model_validate(
        SETTINGS[task]
        | {
            "num_rollout_workers": num_workers,
            "max_staleness": 10_000,
            "stop": {"env_steps": 1_000_000_000},
        }
    )
    with A3C(config) as a3c:
        _learn_for(a3c, warm_up_s)
        return _learn_for(a3c, seconds)


def _learn_for(a3c: Any, seconds: float) -> dict[str, float]:
    began = time.perf_counter()
    updates = waited = stale = 0.0
    while (elapsed := time.perf_counter() - began) < seconds:
        metrics = a3c.step().metrics
        applied = metrics["learner/applied_gradients"]
        updates += applied
        waited += applied * metrics["time/exchange_s"]
        stale += applied * metrics["learner/staleness_mean"]
    return {UPDATES: updates / elapsed, WAIT: 1e3 * waited / updates, STALENESS: stale / updates}


if __name__ == "__main__":
    main()
