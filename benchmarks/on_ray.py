"""What rlplat costs on Ray: PPO on CartPole-v1 and one actor call, beside the same written with Ray alone.

    ./scripts/bench on_ray --repeats 3 --markdown benchmarks/results/on-ray.md

Both PPOs have two rollout workers with 16 environments each, rounds of 32 steps, four epochs over minibatches of 256,
two layers of 64, and learn with torch on one thread in a process of their own (on_ray_ppo.py). Each repeat of each peer
is one process with a Ray of its own; the peers take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

from benchmarks.measure import (
    ROOT,
    Report,
    Sample,
    add_output_options,
    hardware,
    percentile,
    summarize,
)

PACKAGES = ("rlplat", "ray", "torch", "numpy", "gymnasium")
RATE = "PPO CartPole-v1, two rollout workers: env steps/s"
CALL = "actor call, no arguments: µs"
BATCH = "actor call that returns 1 MB: µs"
SETTINGS = {
    "num_rollout_workers": 2,
    "num_envs_per_worker": 16,
    "rollout_length": 32,
    "num_epochs": 4,
    "minibatch_size": 256,
    "learning_rate": 3e-3,
}


def main() -> None:
    options = build_parser().parse_args()
    if options.one:
        measured = {"rlplat": _measure_rlplat, "ray": _measure_ray}[options.one](options.quick)
        print(json.dumps(measured))
        return
    samples = []
    for repeat in range(options.repeats):
        for peer in ("rlplat", "ray")[:: 1 if repeat % 2 == 0 else -1]:
            print(f"repeat {repeat + 1}: {peer}", file=sys.stderr, flush=True)
            samples += [Sample(peer, *each) for each in _in_a_process(peer, options.quick)]
    notes = ["a --quick run: the figures mean nothing"] if options.quick else []
    report = Report("On Ray", ["rlplat", "ray"], summarize(samples), {RATE}, hardware(PACKAGES), notes)
    report.publish(options.json, options.markdown)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.on_ray",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_output_options(parser, [])
    parser.add_argument("--one", choices=["rlplat", "ray"], help=argparse.SUPPRESS)
    return parser


def _in_a_process(peer: str, quick: bool) -> Any:
    command = [sys.executable, "-m", "benchmarks.on_ray", "--one", peer, *(["--quick"] if quick else [])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _measure_rlplat(quick: bool) -> list[tuple[str, str, str, float]]:
    import numpy as np

    import rlplat

    class Echo:
        def small(self) -> int:
            return 1

        def large(self) -> Any:
            return np.zeros(125_000)

    rlplat.init(backend="ray", num_cpus=2, log_to_driver=False)
    echo: Any = rlplat.remote(Echo).remote()
    found = _calls(lambda: rlplat.get(echo.small.remote()), lambda: rlplat.get(echo.large.remote()), quick)
    rlplat.kill(echo)
    found.append((RATE, "", "env steps/s", _rlplat_rate(quick)))
    rlplat.shutdown()
    return found


def _rlplat_rate(quick: bool) -> float:
    from rlplat.algorithms.ppo import PPO, PPOConfig

    config = PPOConfig.model_validate(SETTINGS | {"env": "CartPole-v1", "seed": 1, "learner": {"backend": "torch"}})
    with PPO(config) as algorithm:
        return _rate(lambda: algorithm.step().env_steps, quick)


def _measure_ray(quick: bool) -> list[tuple[str, str, str, float]]:
    import numpy as np
    import ray

    from benchmarks.on_ray_ppo import RayPPO

    @ray.remote(num_cpus=0)
    class Echo:
        def small(self) -> int:
            return 1

        def large(self) -> Any:
            return np.zeros(125_000)

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    echo = Echo.remote()
    found = _calls(lambda: ray.get(echo.small.remote()), lambda: ray.get(echo.large.remote()), quick)
    ray.kill(echo)
    found.append((RATE, "", "env steps/s", _rate(RayPPO(SETTINGS).step, quick)))
    ray.shutdown()
    return found


def _calls(small: Any, large: Any, quick: bool) -> list[tuple[str, str, str, float]]:
    """Round trips one after another: p50 and p99."""
    found: list[tuple[str, str, str, float]] = []
    for row, call, count in ((CALL, small, 3000), (BATCH, large, 1000)):
        count = 50 if quick else count
        taken = []
        for index in range(count + count // 10):
            began = time.perf_counter()
            call()
            if index >= count // 10:
                taken.append((time.perf_counter() - began) * 1e6)
        found += [(row, "p50", "µs", percentile(taken, 50)), (row, "p99", "µs", percentile(taken, 99))]
    return found


def _rate(step: Any, quick: bool) -> float:
    """`step` runs one round and returns the env steps so far."""
    warm_up, env_steps = (2_000, 3_000) if quick else (10_000, 60_000)
    while (start := step()) < warm_up:
        pass
    began = time.perf_counter()
    while (end := step()) < start + env_steps:
        pass
    return float((end - start) / (time.perf_counter() - began))


if __name__ == "__main__":
    main()
