"""`rlplat evaluate RUN`: greedy episodes on raw rewards with a run's newest valid checkpoint."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlplat.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from rlplat.checkpoints import Checkpoint

_EPILOG = """\
examples:
  rlplat evaluate runs/demo
  rlplat evaluate runs/demo --episodes 100 --json
  rlplat evaluate runs/demo/checkpoints/step_204800      one checkpoint of it
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rlplat evaluate",
        description="Play episodes with the trained agent of a run; the rewards are raw, never clipped or scaled.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory, or one of its checkpoints")
    parser.add_argument("--episodes", metavar="N", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--seed", metavar="N", type=int, help="another seed than the run's: other episodes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser


def run(arguments: list[str]) -> int:
    options = build_parser().parse_args(arguments)
    if options.episodes < 1:
        raise ConfigError(f"--episodes is a positive number, not {options.episodes}")
    from rlplat.checkpoints import load
    from rlplat.config import layer_from_flags
    from rlplat.rl.training_loop import evaluation_metrics, restore
    from rlplat.rl.training_plan import plan_from_file

    directory: Path = options.run
    if directory.parent.name == "checkpoints":
        checkpoint, directory = load(directory), directory.parent.parent
    else:
        checkpoint = _newest(directory)
    # one process is enough: nothing is trained
    flags = [("num_rollout_workers", "0")] + (
        [("seed", str(options.seed))] if options.seed is not None else []
    )
    plan = plan_from_file(directory / "config.yaml", [layer_from_flags(flags)])
    with plan.algorithm_class(plan.config) as algorithm:
        restore(algorithm, checkpoint)
        episodes = algorithm.evaluate(options.episodes)
    figures = evaluation_metrics(episodes)
    if options.json:
        report = {
            "run": str(directory),
            "checkpoint": checkpoint.path.name,
            "env": plan.config.env,
            "env_steps": checkpoint.info.env_steps,
            **{name.removeprefix("eval/"): value for name, value in figures.items()},
            "returns": [episode.episode_return for episode in episodes],
            "lengths": [episode.length for episode in episodes],
        }
        print(json.dumps(report))
        return 0
    print(
        f"{plan.config.env}: return {figures['eval/return_mean']:.1f} ± {figures['eval/return_std']:.1f} "
        f"(min {figures['eval/return_min']:.1f}, max {figures['eval/return_max']:.1f}), "
        f"length {figures['eval/length_mean']:.1f}, {len(episodes)} episodes, {checkpoint.path}"
    )
    return 0


def _newest(directory: Path) -> Checkpoint:
    """The newest valid checkpoint of a run; damaged ones are named."""
    from rlplat.checkpoints import latest_valid

    if not (directory / "config.yaml").exists():
        raise ConfigError(f"no run in {directory}: it has no config.yaml; `rlplat runs` lists the runs")
    checkpoint, refused = latest_valid(directory)
    if checkpoint is None:
        raise CheckpointError("\n".join([*refused, f"no valid checkpoint in {directory}"]))
    for line in refused:
        print(f"warning: {line}", file=sys.stderr)
    return checkpoint
