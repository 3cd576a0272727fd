"""`rlplat play RUN`: watch a trained agent, in a video or in a window."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlplat.cli.parser import command
from rlplat.errors import ConfigError
from rlplat.figures import figure
from rlplat.paths import GALLERY, shown

if TYPE_CHECKING:
    from rlplat.rl.interfaces import Episode

_HELP = """\
Play episodes with the trained agent of a run and record them as a video; prints their returns.

RUN  a run directory, or one of its checkpoints
--episodes N>0:1  how many
--out FILE.mp4  the video (default: RUN/videos/play_<checkpoint>.mp4)
--checkpoint NAME  latest (the newest valid one; default), best, or step_N
--seed N  another seed than the run's: other episodes
--show  in a window instead of a video

examples:
  rlplat play runs/demo                              writes runs/demo/videos/play_step_204800.mp4
  rlplat play runs/demo --checkpoint best --episodes 3 --out best.mp4
  rlplat play runs/demo --show                       in a window
  rlplat play gallery/lunarlander                    an agent that comes with rlplat (docs/gallery.md)

Needs PyAV for videos: pip install 'rlplat[video]'. No display is needed.
"""


@command("play", _HELP)
def run(options: argparse.Namespace) -> int:
    if options.show and options.out:
        raise ConfigError("--show opens a window, --out writes a video: omit one of them")
    if options.out and options.out.suffix.lower() != ".mp4":
        raise ConfigError(f"--out takes an .mp4 file, not '{options.out}'")
    if options.out and not options.out.absolute().parent.is_dir():
        raise ConfigError(f"--out {options.out}: there is no directory {options.out.parent}")
    from rlplat.rl.run.evaluation import evaluation_metrics, what_was_cut
    from rlplat.rl.run.trained_agent import load
    from rlplat.rl.run.video import VideoWriter, Window

    agent = load(options.run, options.checkpoint, seed=options.seed)
    for line in agent.warnings:
        print(f"warning: {line}", file=sys.stderr)
    name = agent.checkpoint.path.name
    env = agent.plan.config.env
    count = 0

    def tell(episode: Episode) -> None:
        nonlocal count
        count += 1
        print(f"episode {count}: return {figure(episode.episode_return)}, length {episode.length:,}", flush=True)

    folder = (
        Path(f"{agent.directory.name}-videos") if GALLERY in agent.directory.parents else agent.directory / "videos"
    )
    path = options.out or folder / f"play_{name}.mp4"
    with Window(f"{env} - {name}") if options.show else VideoWriter(path) as film:
        print(f"{env}, {shown(agent.checkpoint.path)} ({agent.checkpoint.info.env_steps:,} env steps)")
        episodes = agent.film(options.episodes, film, on_episode=tell)
    figures = evaluation_metrics(episodes)
    if cut := what_was_cut(episodes, options.episodes, agent.plan.config.evaluation.max_episode_steps):
        print(f"warning: {cut}", file=sys.stderr)
    if figures.get("eval/episodes", 0) > 1:
        print(f"return {figure(figures['eval/return_mean'])} ± {figure(figures['eval/return_std'])}")
    if not options.show:
        print(f"{film.num_frames:,} frames at {film.fps:g}/s: {shown(path)}")
    return 0
