"""`rlplat record RUN --out DIR`: whole episodes of a trained agent, or of Minari's, as a data set to learn from."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rlplat.cli.parser import command
from rlplat.errors import ConfigError
from rlplat.paths import expanded

if TYPE_CHECKING:
    from rlplat.rl.offline.dataset import Manifest

_HELP = """\
Play episodes with the trained agent of a run and write them to a data set: a directory of .npz files with a
manifest, which appears whole or not at all. The rewards are raw, never clipped or scaled. minari:ID in the place of
RUN copies the episodes of a data set of Minari's; in that of DIR it writes one.

RUN  a run directory, or one of its checkpoints; or minari:ID, or a data set
--out! DIR  the data set to write; or minari:ID
--episodes N>0  how many (default: 50; all of minari:ID, else its first N)
--sampled  draw actions as in training, not the most likely ones
--random SHARE:0.0  share of steps with any legal action
--checkpoint NAME  latest (the newest valid one; default), best, or step_N
--seed N  another seed than the run's: other episodes

examples:
  rlplat record runs/demo --episodes 50 --out data/demo
  rlplat record runs/demo --episodes 50 --out data/mixed --sampled --random 0.3
  rlplat record minari:D4RL/pen/human-v2 --out data/pen        copy a data set of Minari's
  rlplat record runs/demo --out minari:own/demo-v0             write one of Minari's; data/demo in its place is copied
  rlplat train --algo bc --data data/demo            learn from it (docs/offline.md)
"""


@command("record", _HELP, {"DIR": expanded, "N": int, "SHARE": float})
def run(options: argparse.Namespace) -> int:
    if not 0.0 <= options.random <= 1.0:
        raise ConfigError(f"--random is a share from 0 to 1, not {options.random}")
    from rlplat.rl.offline.dataset import MINARI

    if str(options.out).startswith(MINARI):
        return _for_minari(options, str(options.out).removeprefix(MINARI))
    manifest = _copied(options) if options.run.startswith(MINARI) else _played(options)
    size, num_files = sum(file.bytes for file in manifest.files), len(manifest.files)
    print(f"{options.out}: {manifest}, {size:,} bytes in {num_files} file{'s' if num_files > 1 else ''}")
    return 0


def _for_minari(options: argparse.Namespace, name: str) -> int:
    from rlplat.rl.offline.dataset import MINARI
    from rlplat.rl.offline.minari import require_free, write_minari

    if options.run.startswith(MINARI):
        raise ConfigError(f"{options.run} is Minari's already: minari combine, or --out DIR for one of rlplat's")
    require_free(name)
    with tempfile.TemporaryDirectory(prefix="rlplat-record-") as folder:
        recorded = expanded(options.run)
        if not (recorded / "episodes-00000.npz").exists():
            options.out = recorded = Path(folder) / "data"
            _played(options)
        elif options.episodes or options.sampled or options.random or options.checkpoint or options.seed is not None:
            raise ConfigError(
                f"{options.run} is a data set, which is copied as it is: omit --episodes, --sampled, --random, "
                "--checkpoint and --seed, which are for runs"
            )
        manifest = write_minari(recorded, name)
    print(f"{MINARI}{name}: {manifest}")
    return 0


def _played(options: argparse.Namespace) -> Manifest:
    from rlplat.rl.offline.recording import record
    from rlplat.rl.run.trained_agent import load

    agent = load(options.run, options.checkpoint, seed=options.seed)
    for line in agent.warnings:
        _warn(line)
    episodes = options.episodes or 50
    manifest = record(agent, episodes, options.out, greedy=not options.sampled, random_share=options.random)
    if manifest.episodes < episodes:
        _warn(
            f"{manifest.episodes} of {episodes} episodes: some did not end within evaluation.max_episode_steps, and "
            "were cut off there"
        )
    return manifest


def _copied(options: argparse.Namespace) -> Manifest:
    from rlplat.rl.offline.dataset import MINARI
    from rlplat.rl.offline.minari import copy_minari

    if options.sampled or options.random or options.checkpoint or options.seed is not None:
        raise ConfigError(
            f"{options.run} is copied as it is: omit --sampled, --random, --checkpoint and --seed, which are for runs"
        )
    manifest = copy_minari(options.run.removeprefix(MINARI), options.out, episodes=options.episodes)
    if clipped := manifest.source["clipped_actions"]:
        _warn(f"{clipped:,} of {manifest.env_steps:,} actions were beyond their bounds, and are clipped to them")
    if not manifest.env:
        _warn("the data set names no environment that rlplat makes: learn from it with --env NAME")
    return manifest


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
