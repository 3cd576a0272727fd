"""From Enter to a mean return of 18 on Pong: `rlplat train --algo ppo --env Pong`, seed by seed, on a quiet machine.

    ./scripts/bench pong --seeds 1 2 3 --peer sb3 --out runs --markdown benchmarks/results/pong.md

Each seed is one process that is started, stops at its config's `stop` and saves its checkpoint; the seconds are those
of the whole process. `--peer sb3`: env steps/s of Stable-Baselines3 and of rlplat with the published values (the row
`pong` of train.py). SB3's time to 18 is that rate times the env steps that it needs: hours, which are not run here.
`--out DIR` keeps the run directories, of which `./scripts/bench curves` draws the curves.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Report, Sample, add_output_options, hardware, number, summarize
from rlplat.paths import expanded

PACKAGES = ("rlplat", "torch", "numpy", "gymnasium", "ale-py", "stable-baselines3")
WALL = "Pong >= 18: from Enter to the prompt, minutes"
STEPS = "Pong >= 18: env steps / CPU seconds per 1,000 env steps"
REACHED = "Pong >= 18: share of seeds that reached it"
RATE = "PPO Pong with the published values, env steps/s"
NOTES = (
    "`>= 18` is the mean return of the last 100 training episodes, looked at after every round: raw rewards, "
    "whole games.",
    "One env step is one decision of the agent (4 frames); no sticky actions.",
    "CPU seconds are user and system time of all processes of the run.",
)


def main() -> None:
    options = build_parser().parse_args()
    info = hardware(PACKAGES)
    samples: list[Sample] = []
    notes = ["a --quick run: the figures mean nothing"] if options.quick else []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in options.seeds:
            found, note = _attempt(seed, expanded(options.out or scratch) / f"pong-{seed}", options.quick)
            samples += found
            notes.append(note)
    hits = [sample.value for sample in samples if sample.row == REACHED]
    samples = [sample for sample in samples if sample.row != REACHED]
    samples.append(Sample("rlplat", REACHED, "", "share", sum(hits) / len(hits)))
    if options.peer:
        samples += [_published_rate(peer, options.quick) for peer in ("rlplat", *options.peer)]
    peers = ["rlplat", *options.peer]
    report = Report("Pong", peers, summarize(samples), {RATE, REACHED}, info, [*notes, *NOTES])
    report.publish(options.json, options.markdown)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pong",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_output_options(parser, ["sb3"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N")
    parser.add_argument("--out", metavar="DIR", help="keep the run directories here")
    return parser


def _attempt(seed: int, out: Path, quick: bool) -> tuple[list[Sample], str]:
    """One run to the config's stop: (samples, a line that says how it went)."""
    print(f"seed {seed}", file=sys.stderr, flush=True)
    command = ["rlplat.cli", "train", "--algo", "ppo", "--env", "Pong", "--seed", str(seed)]
    command += ["--evaluation.episodes", "0", "--out", str(out)]
    command += ["--stop.env-steps", "2048"] if quick else []
    cpu_before, started = _children_cpu_s(), time.perf_counter()
    subprocess.run([sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    wall_s, cpu_s = time.perf_counter() - started, _children_cpu_s() - cpu_before
    last = _last_record(out / "metrics.jsonl")
    mean, env_steps = last["episode_return_mean"], last["env_steps"]
    reached = mean is not None and last["episodes"] >= 100 and mean >= 18.0
    shown = "-" if mean is None else f"{mean:.1f}"
    note = f"seed {seed}: a mean of {shown} after {env_steps:,} env steps, {number(wall_s)} s"
    return [
        Sample("rlplat", WALL, "", "minutes", wall_s / 60.0),
        Sample("rlplat", STEPS, "env steps", "env steps", env_steps),
        Sample("rlplat", STEPS, "CPU s per 1,000", "s", cpu_s / env_steps * 1000.0),
        Sample("rlplat", REACHED, "", "share", float(reached)),
    ], note


def _published_rate(peer: str, quick: bool) -> Sample:
    """Env steps/s with configs/ppo/Pong-published.yaml, learning included."""
    print(f"the published values: {peer}", file=sys.stderr, flush=True)
    warm_up, env_steps = (1_000, 2_000) if quick else (2_000, 20_000)
    command = [sys.executable, "-m", "benchmarks.train_peers", "rate", peer, "pong"]
    command += ["--warm-up", str(warm_up), "--env-steps", str(env_steps)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return Sample(peer, RATE, "", "env steps/s", float(done.stdout.split()[-1]))


def _children_cpu_s() -> float:
    """Of all processes that have ended and were waited for, theirs included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _last_record(metrics: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(metrics.read_text().splitlines()[-1])
    return record


if __name__ == "__main__":
    main()
