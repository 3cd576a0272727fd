"""Training against its peers: env steps/s with learning, and the time from pressing Enter to a threshold.

    ./scripts/bench train --peer sb3 --json train.jsonl --markdown benchmarks/results/train.md
    ./scripts/bench train --rows threshold --peer sb3 --seeds 1 2 3

Columns: rlplat (PPO on CartPole: one rollout worker; others: `rlplat_config` in train_peers.py), `--peer inproc`
(rlplat with everything in one process), `--peer torch` (rlplat with learner.backend=torch: PPO and A3C on CartPole),
`--peer overlap` (rlplat with overlap_sampling: PPO), `--peer sb3` (Stable-Baselines3), `--peer sample-factory` (IMPALA
on Pong; sample_factory.py says what it needs) and `--peer rejax`, `sbx`, `rlox` (newest_peers.py says what they need).
Each figure comes from a fresh process; the peers take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import newest_peers, sample_factory
from benchmarks.measure import ROOT, Report, Sample, add_output_options, hardware, number, summarize
from benchmarks.train_peers import THRESHOLD, WINDOW

PACKAGES = ("rlplat", "torch", "numpy", "gymnasium", "ale-py", "stable-baselines3", "opencv-python-headless")
RATES = {
    "cartpole": "PPO CartPole-v1, 8 x 128, 4 minibatches, 4 epochs, 64x64, env steps/s",
    "pong": "PPO Pong, 8 x 128, minibatch 256, 4 epochs, Nature CNN, env steps/s",
    "dqn": "DQN CartPole-v1, one gradient step per 2 env steps, batch 64, 256x256, env steps/s",
    "dqn-pong": "DQN Pong, one gradient step per 4 env steps, batch 32, Nature CNN, env steps/s",
    "a3c": "A3C (SB3: A2C) CartPole-v1, 16 environments in each process x 5 steps, 64x64, env steps/s",
    "es": "ES (sb3-contrib: ARS) CartPole-v1, tuned configs, env steps/s",
    "together": "PPO CartPole-v1, the first row with 32 seeds in one program, env steps/s of all",
    "ppo-cheetah": "PPO HalfCheetah-v5, 8 x 256, minibatch 128, 10 epochs, 64x64, env steps/s",
    "sac": "SAC HalfCheetah-v5, one gradient step per env step, batch 256, 256x256, env steps/s",
    "td3": "TD3 HalfCheetah-v5, one gradient step per env step, batch 256, 256x256, env steps/s",
    "impala-pong": "IMPALA (Sample Factory: APPO) Pong, 2 workers x 16 x 20, 640 samples, Nature CNN, env steps/s",
}
WARM_UP = {
    "cartpole": 5_000,
    "pong": 2_000,
    "dqn": 5_000,
    "dqn-pong": 1_500,
    "a3c": 5_000,
    "es": 20_000,
    "together": 10_240,
    "ppo-cheetah": 10_000,
    "sac": 400,
    "td3": 400,
    "impala-pong": 3_000,
}
TIMED = {
    "cartpole": 100_000,
    "pong": 20_000,
    "dqn": 20_000,
    "dqn-pong": 2_000,
    "a3c": 100_000,
    "es": 400_000,
    "together": 51_200,
    "ppo-cheetah": 40_000,
    "sac": 1_500,
    "td3": 1_500,
    "impala-pong": 20_000,
}
"""Env steps before the clock starts, and while it runs; of each seed."""
PYTHONS = {"sample-factory": sample_factory.PYTHON, **newest_peers.PYTHONS}
MAKERS = {peer: "sample_factory.py" if peer == "sample-factory" else "newest_peers.py" for peer in PYTHONS}
STOP = "CartPole-v1 >= 475: from Enter to the stop, s"
EXIT = "CartPole-v1 >= 475: from Enter to the prompt, s"
REACHED = "CartPole-v1 >= 475: share of seeds that reached it"
NOTES = (
    "Rates are with learning, after a warm-up. One env step is one decision of the agent (4 frames of Pong).",
    "`>= 475` is the mean return of the last 100 training episodes, looked at after every rollout. rlplat is "
    "`rlplat train --algo ppo --env CartPole-v1` with its tuned config; SB3 has rl-zoo3's tuned hyper-parameters and "
    "their 100,000 env steps.",
    "From Enter to the prompt: rlplat also saves a checkpoint and plays the evaluation of 20 episodes; SB3 only ends.",
)
_POLL_S = 0.01


@dataclass(frozen=True)
class Attempt:
    """One run to the threshold."""

    stop_s: float | None
    """Seconds from starting the process to the record that reached it; None where none did."""
    exit_s: float
    env_steps: int
    last_mean: float
    evaluation: float | None


def main() -> None:
    parser = build_parser()
    options = parser.parse_args()
    for peer in options.peer:
        if peer in PYTHONS and PYTHONS[peer] not in os.environ:
            parser.error(f"--peer {peer} needs ${PYTHONS[peer]}: benchmarks/{MAKERS[peer]} says how to make it")
    peers = ["rlplat", *dict.fromkeys(options.peer)]
    info = hardware(PACKAGES)
    samples: list[Sample] = []
    notes: list[str] = ["a --quick run: tiny budgets, the figures mean nothing"] if options.quick else []
    for task in RATES:
        if task in options.rows:
            samples += _rates(task, peers, options)
    if "threshold" in options.rows:
        found, missed = _thresholds([peer for peer in peers if peer in ("rlplat", "sb3")], options)
        samples += found
        notes += missed
    report = Report("Training", peers, summarize(samples), {*RATES.values(), REACHED}, info, [*notes, *NOTES])
    report.publish(options.json, options.markdown)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_output_options(parser, ["inproc", "torch", "overlap", "sb3", *PYTHONS])
    rows = [*RATES, "threshold"]
    parser.add_argument("--rows", nargs="+", choices=rows, default=rows)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5], metavar="N")
    return parser


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def _rates(task: str, peers: list[str], options: argparse.Namespace) -> list[Sample]:
    warm_up, env_steps = (1_000, 2_000) if options.quick else (WARM_UP[task], TIMED[task])
    samples = []
    only = {"torch": {"cartpole", "a3c"}, "overlap": {"cartpole", "pong"}, "sample-factory": {"impala-pong"}}
    only["inproc"] = RATES.keys() - {"sac", "td3", "together"}  # those are in one process anyway
    only["sb3"] = RATES.keys() - {"impala-pong", "together", "ppo-cheetah"}
    only |= newest_peers.TASKS
    peers = [peer for peer in peers if task in only.get(peer, RATES)]
    for repeat in range(options.repeats):
        for peer in peers if repeat % 2 == 0 else peers[::-1]:
            print(f"{task}, repeat {repeat + 1} of {options.repeats}: {peer}", file=sys.stderr, flush=True)
            if peer in newest_peers.PYTHONS:
                command = [os.environ[PYTHONS[peer]], str(ROOT / "benchmarks/newest_peers.py"), peer, task]
                command += [str(warm_up), str(env_steps)]
            else:
                command = [sys.executable, "-m", "benchmarks.train_peers", "rate", peer, task]
                command += ["--warm-up", str(warm_up), "--env-steps", str(env_steps)]
            done = subprocess.run(command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, text=True, check=True)
            *said, rate = done.stdout.splitlines()
            print(*said[-1:], rate, file=sys.stderr, flush=True)
            samples.append(Sample(peer, RATES[task], "", "env steps/s", float(rate)))
    return samples


# ---------------------------------------------------------------- time to the threshold


def _thresholds(peers: list[str], options: argparse.Namespace) -> tuple[list[Sample], list[str]]:
    samples: list[Sample] = []
    missed: list[str] = []
    for index, seed in enumerate(options.seeds):
        for peer in peers if index % 2 == 0 else peers[::-1]:
            print(f"threshold, seed {seed}: {peer}", file=sys.stderr, flush=True)
            attempt = _attempt(peer, seed, options.quick)
            row = f"CartPole-v1 >= 475, seed {seed}: s to the stop / env steps / greedy evaluation, 20 episodes"
            stop_s = attempt.exit_s if attempt.stop_s is None else attempt.stop_s
            if attempt.stop_s is None:
                missed.append(
                    f"{peer}, seed {seed}: not reached; the mean was {attempt.last_mean:.0f} after "
                    f"{attempt.env_steps:,} env steps, and its seconds are those of all of them"
                )
            samples += [
                Sample(peer, STOP, "", "s", stop_s),
                Sample(peer, EXIT, "", "s", attempt.exit_s),
                Sample(peer, row, "stop", "s", stop_s),
                Sample(peer, row, "env steps", "env steps", attempt.env_steps),
            ]
            if attempt.evaluation is not None:
                samples.append(Sample(peer, row, "greedy evaluation", "return", attempt.evaluation))
            samples.append(Sample(peer, REACHED + f", seed {seed}", "", "", float(attempt.stop_s is not None)))
    return _with_shares(samples), missed


def _with_shares(samples: list[Sample]) -> list[Sample]:
    """The seeds' hits and misses as one figure per peer."""
    kept = [sample for sample in samples if not sample.row.startswith(REACHED)]
    for peer in dict.fromkeys(sample.peer for sample in samples):
        hits = [sample.value for sample in samples if sample.peer == peer and sample.row.startswith(REACHED)]
        kept.append(Sample(peer, REACHED, "", "share", sum(hits) / len(hits)))
    return kept


def _attempt(peer: str, seed: int, quick: bool) -> Attempt:
    """Start the process, and watch its metrics file from outside for the record that reaches the threshold."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        if peer == "rlplat":
            command = ["rlplat.cli", "train", "--algo", "ppo", "--env", "CartPole-v1", "--seed", str(seed)]
            command += ["--out", str(out), *(["--stop.env-steps", "4096"] if quick else [])]
        else:
            command = ["benchmarks.train_peers", "threshold", "--seed", str(seed), "--out", str(out)]
            command += ["--env-steps", "2048" if quick else "100000"]
        log = open(Path(directory) / "output", "w+", encoding="utf-8")
        with log:
            started = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=ROOT, env=_environment(), stdout=log, stderr=log
            )
            stop_s = _watch(process, out / "metrics.jsonl", started)
            exit_s = time.perf_counter() - started
            if process.returncode:
                log.seek(0)
                raise RuntimeError(f"{' '.join(command)} failed ({process.returncode}):\n{log.read()}")
        records = _records(out / "metrics.jsonl")
    last = records[-1]
    mean, evaluation = last["episode_return_mean"], last.get("eval/return_mean")
    print(f"  {number(exit_s)} s, {last['env_steps']:,} env steps, mean {mean:.1f}", file=sys.stderr, flush=True)
    return Attempt(stop_s, exit_s, last["env_steps"], mean, evaluation)


def _watch(process: subprocess.Popen[Any], metrics: Path, started: float) -> float | None:
    """Seconds from `started` to the record that reached the threshold; returns when the process has ended."""
    size, stop_s = 0, None
    while process.poll() is None:
        time.sleep(_POLL_S)
        if stop_s is None and metrics.exists() and metrics.stat().st_size != size:
            size = metrics.stat().st_size
            if _is_reached(_records(metrics)):
                stop_s = time.perf_counter() - started
    if stop_s is None and _is_reached(_records(metrics)):
        stop_s = time.perf_counter() - started
    return stop_s


def _is_reached(records: list[dict[str, Any]]) -> bool:
    if not records or records[-1]["episodes"] < WINDOW:
        return False
    mean = records[-1]["episode_return_mean"]
    return mean is not None and mean >= THRESHOLD


def _records(metrics: Path) -> list[dict[str, Any]]:
    """Whole lines only: the last one may be in the making."""
    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    main()
