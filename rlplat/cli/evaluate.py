"""`rlplat evaluate RUN`: greedy episodes on raw rewards with a run's newest valid checkpoint, or another one."""

from __future__ import annotations

import argparse
import sys

from rlplat.cli.output import print_json
from rlplat.cli.parser import command
from rlplat.figures import figure

_HELP = """\
Play episodes with the trained agent of a run; the rewards are raw, never clipped or scaled.

RUN  a run directory, or one of its checkpoints
--episodes N>0:20  how many
--checkpoint NAME  latest (the newest valid one; default), best, or step_N
--seed N  another seed than the run's: other episodes
--json  print one JSON object

examples:
  rlplat evaluate runs/demo
  rlplat evaluate runs/demo --checkpoint best --episodes 100 --seed 7
  rlplat evaluate runs/demo --json
  rlplat evaluate runs/demo/checkpoints/step_204800      one checkpoint of it
"""


@command("evaluate", _HELP)
def run(options: argparse.Namespace) -> int:
    from rlplat.rl.interfaces import CutEpisode
    from rlplat.rl.run.evaluation import evaluation_metrics, what_was_cut
    from rlplat.rl.run.trained_agent import load

    agent = load(options.run, options.checkpoint, seed=options.seed)
    for line in agent.warnings:
        print(f"warning: {line}", file=sys.stderr)
    episodes = agent.evaluate(options.episodes)
    figures = evaluation_metrics(episodes)
    if cut := what_was_cut(episodes, options.episodes, agent.plan.config.evaluation.max_episode_steps):
        print(f"warning: {cut}", file=sys.stderr)
    episodes = [episode for episode in episodes if not isinstance(episode, CutEpisode)]
    if options.json:
        report = {
            "run": str(agent.directory),
            "checkpoint": agent.checkpoint.path.name,
            "env": agent.plan.config.env,
            "env_steps": agent.checkpoint.info.env_steps,
            **{name.removeprefix("eval/"): value for name, value in figures.items()},
            "returns": [episode.episode_return for episode in episodes],
            "lengths": [episode.length for episode in episodes],
        }
        print_json(report)
        return 0
    if not episodes:
        print(f"{agent.plan.config.env}: no episode ended, {agent.checkpoint.path}")
        return 1
    print(
        f"{agent.plan.config.env}: return {figure(figures['eval/return_mean'])} ± {figure(figures['eval/return_std'])} "
        f"(min {figure(figures['eval/return_min'])}, max {figure(figures['eval/return_max'])}), "
        f"length {figures['eval/length_mean']:.1f}, {len(episodes)} episodes, {agent.checkpoint.path} "
        f"({agent.checkpoint.info.env_steps:,} env steps)"
    )
    told = {name: value for name, value in figures.items() if name.startswith("eval/env/")}
    if told:
        print(", ".join(f"{name.removeprefix('eval/')} {figure(value)}" for name, value in told.items()))
    return 0
