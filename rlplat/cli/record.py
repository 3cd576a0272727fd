"""`rlplat record RUN --out DIR`: whole episodes of a trained agent as a data set to learn from."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlplat.errors import ConfigError

_EPILOG = """\
examples:
  rlplat record runs/demo --episodes 50 --out data/demo
  rlplat record runs/demo --episodes 50 --out data/mixed --sampled --random 0.3
  rlplat train --algo bc --data data/demo            learn from it (docs/offline.md)
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rlplat record",
        description="Play episodes with the trained agent of a run and write them to a data set: a directory of .npz "
        "files with a manifest, which appears whole or not at all. The rewards are raw, never clipped or scaled.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory, or one of its checkpoints")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="the data set to write")
    parser.add_argument("--episodes", metavar="N", type=int, default=50, help="how many (default: 50)")
    parser.add_argument(
        "--sampled", action="store_true", help="draw actions as in training, not the most likely ones"
    )
    parser.add_argument(
        "--random",
        metavar="SHARE",
        type=float,
        default=0.0,
        help="share of steps with any legal action (default: 0)",
    )
    parser.add_argument(
        "--checkpoint", metavar="NAME", help="latest (the newest valid one; default), best, or step_N"
    )
    parser.add_argument("--seed", metavar="N", type=int, help="another seed than the run's: other episodes")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser


def run(arguments: list[str]) -> int:
    options = build_parser().parse_args(arguments)
    if options.episodes < 1:
        raise ConfigError(f"--episodes is a positive number, not {options.episodes}")
    if not 0.0 <= options.random <= 1.0:
        raise ConfigError(f"--random is a share from 0 to 1, not {options.random}")
    from rlplat.rl.offline.recording import record
    from rlplat.rl.run.trained_agent import load

    agent = load(options.run, options.checkpoint, seed=options.seed)
    for line in agent.warnings:
        print(f"warning: {line}", file=sys.stderr)
    manifest = record(
        agent, options.episodes, options.out, greedy=not options.sampled, random_share=options.random
    )
    if manifest.episodes < options.episodes:
        print(
            f"warning: {manifest.episodes} of {options.episodes} episodes: some did not end within "
            "evaluation.max_episode_steps, and were cut off there",
            file=sys.stderr,
        )
    size, num_files = sum(file.bytes for file in manifest.files), len(manifest.files)
    print(f"{options.out}: {manifest}, {size:,} bytes in {num_files} file{'s' if num_files > 1 else ''}")
    return 0
