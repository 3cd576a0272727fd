"""A3C beside Stable-Baselines3's A2C, both with rl-zoo3's A2C values: which of RMSProp's epsilons learns.

python -m benchmarks.a3c_zoo LunarLander-v3 --who outside sb3 inside --seeds 0 1 2 3 4 >> runs.jsonl
python -m benchmarks.a3c_zoo --table runs.jsonl

outside, inside: A3C here with RMSProp's epsilon outside or under the root, in one process (the synchronous A2C); sb3:
needs `pip install stable-baselines3`. Each run is a process of its own with one thread, which prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

from rlplat.paths import expanded

EPISODES = 50
"""Of the greedy evaluation at the end."""
NUM_ENVS = 8
LUNAR_LANDER: dict[str, Any] = {
    "rollout_length": 5,
    "discount": 0.995,
    "learning_rate": {"schedule": "linear", "start": 8.3e-4, "end": 0.0},
    "entropy_coef": 1e-5,
    "value_coef": 1.0,  # of half the squared error: SB3's 0.5
    "gae_lambda": 1.0,
}
PENDULUM: dict[str, Any] = {
    "rollout_length": 8,
    "discount": 0.99,
    "learning_rate": {"schedule": "linear", "start": 7e-4, "end": 0.0},
    "entropy_coef": 0.0,
    "value_coef": 0.8,  # SB3's 0.4
    "gae_lambda": 0.9,
    "normalize_observations": True,
    "normalize_rewards": True,
    "policy": {"initial_log_std": -2.0, "orthogonal_init": False},
}
SETTINGS = {"LunarLander-v3": (LUNAR_LANDER, 200_000), "Pendulum-v1": (PENDULUM, 1_000_000)}
"""By environment: hyperparameters/a2c.yml of rl-zoo3 (commit 02846e4) in our words, and its env steps. Pendulum's
state-dependent exploration, which only SB3 has, is left out here."""


def run_rlplat(env: str, seed: int, env_steps: int, is_inside: bool) -> tuple[float | None, list[float]]:
    """(mean return of the last 100 training episodes, returns of the evaluation)."""
    from rlplat.algorithms.a3c import A3C, A3CConfig

    config = A3CConfig(
        env=env,
        seed=seed,
        num_rollout_workers=0,
        num_envs_per_worker=NUM_ENVS,
        optimizer_epsilon=1e-5,
        epsilon_inside_root=is_inside,
        learner={"num_threads": 1},
        stop={"env_steps": env_steps},
        **SETTINGS[env][0],
    )
    with A3C(config) as a3c:
        while (result := a3c.step()).env_steps < env_steps:
            pass
        return result.episode_return_mean, [episode.episode_return for episode in a3c.evaluate(EPISODES)]


def run_sb3(env: str, seed: int, env_steps: int) -> tuple[float | None, list[float]]:
    from stable_baselines3 import A2C
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    values, own = SETTINGS[env][0], {}
    train: Any = make_vec_env(env, n_envs=NUM_ENVS, seed=seed)
    test: Any = make_vec_env(env, n_envs=NUM_ENVS, seed=seed + 10_000)
    if "policy" in values:
        own = {"use_sde": True, "policy_kwargs": {"log_std_init": -2, "ortho_init": False}}
    if values.get("normalize_observations"):
        train = VecNormalize(train, gamma=values["discount"])
        test = VecNormalize(test, training=False, norm_reward=False)
        test.obs_rms = train.obs_rms
    start = values["learning_rate"]["start"]
    model = A2C(
        "MlpPolicy",
        train,
        seed=seed,
        device="cpu",
        n_steps=values["rollout_length"],
        gamma=values["discount"],
        learning_rate=lambda left: left * start,
        ent_coef=values["entropy_coef"],
        vf_coef=values["value_coef"] / 2,
        gae_lambda=values["gae_lambda"],
        **own,
    )
    model.learn(env_steps)
    last = fmean(episode["r"] for episode in model.ep_info_buffer)
    returns, _ = evaluate_policy(model, test, n_eval_episodes=EPISODES, return_episode_rewards=True)
    return last, [float(each) for each in returns]


def run_one(env: str, who: str, seed: int, env_steps: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    started_s = time.monotonic()
    last, returns = run_sb3(env, seed, env_steps) if who == "sb3" else run_rlplat(env, seed, env_steps, who == "inside")
    return {
        "env": env,
        "who": who,
        "seed": seed,
        "env_steps": env_steps,
        "train_last100": last,
        "eval_mean": fmean(returns),
        "eval_std": pstdev(returns),
        "wall_s": time.monotonic() - started_s,
    }


def table(lines: Sequence[str]) -> str:
    """Markdown: a row per environment and competitor, seeds in their order."""
    runs = sorted((json.loads(line) for line in lines), key=lambda run: run["seed"])
    rows = [
        "| environment | who | seeds | greedy evaluation: mean (each seed) | last 100 training episodes: mean |",
        "|---|---|---|---|---|",
    ]
    for env, who in dict.fromkeys((run["env"], run["who"]) for run in runs):
        group = [run for run in runs if (run["env"], run["who"]) == (env, who)]
        means = [run["eval_mean"] for run in group]
        rows.append(
            f"| {env} | {who} | {len(group)} | {fmean(means):.1f} ({', '.join(f'{mean:.0f}' for mean in means)}) | "
            f"{fmean(run['train_last100'] for run in group):.1f} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("env", nargs="?", choices=[*SETTINGS], default="LunarLander-v3")
    parser.add_argument("--who", nargs="+", choices=("outside", "inside", "sb3"), default=["outside", "inside"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--env-steps", type=int, help="default: rl-zoo3's")
    parser.add_argument("--table", type=expanded, metavar="FILE", help="the lines of runs as a Markdown table")
    options = parser.parse_args()
    if options.table:
        return print(table(options.table.read_text().splitlines()))
    env_steps = options.env_steps or SETTINGS[options.env][1]
    if len(options.seeds) == len(options.who) == 1:
        return print(json.dumps(run_one(options.env, options.who[0], options.seeds[0], env_steps)))
    for seed in options.seeds:
        for who in options.who:
            one = [options.env, "--who", who, "--seeds", str(seed), "--env-steps", str(env_steps)]
            subprocess.run([sys.executable, "-m", "benchmarks.a3c_zoo", *one], check=True)


if __name__ == "__main__":
    main()
