"""How a run of AlphaZero plays: games against minimax of some depth, on either side.

python benchmarks/alphazero.py runs/ttt --games 100 --depth 9
"""

from __future__ import annotations

import argparse

import numpy as np

import rlplat
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.run.evaluation import play_episodes

SEED = 20_261_123


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--checkpoint")
    parser.add_argument("--games", type=int, default=100, help="on each side")
    parser.add_argument("--depth", type=int, nargs="+", default=[4], help="moves ahead; 0: at random")
    options = parser.parse_args()
    agent = rlplat.load(options.run, options.checkpoint)
    settings = agent.plan.config
    print(f"{settings.env}, seed {settings.seed}, {agent.checkpoint.info.env_steps:,} moves of self-play, "
          f"{settings.play_simulations or settings.num_simulations} simulations a move")  # fmt: skip
    print("| opponent | agent plays | won | drawn | lost | score |\n|---|---|---|---|---|---|")
    for depth in options.depth:
        for first in ("agent", "opponent"):
            kwargs = settings.env_kwargs | {"opponent_depth": depth, "first": first}
            with make_vector_env(settings.env, min(50, options.games), env_kwargs=kwargs) as env:
                played = play_episodes(agent.policy, env, options.games, seed=SEED)
            returns = np.array([episode.episode_return for episode in played])
            counts = " | ".join(str(int((returns == value).sum())) for value in (1, 0, -1))
            opponent = f"minimax of depth {depth}" if depth else "random moves"
            side = "first" if first == "agent" else "second"
            print(f"| {opponent} | {side} | {counts} | {returns.mean():+.2f} |", flush=True)


if __name__ == "__main__":
    main()
