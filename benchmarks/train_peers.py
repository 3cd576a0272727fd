"""Algorithms by rlplat and its peers with the same hyper-parameters: how fast each goes through env steps.

    python -m benchmarks.train_peers rate PEER TASK --warm-up 5000 --env-steps 100000         prints env steps/s
    python -m benchmarks.train_peers threshold --seed 1 --out DIR --env-steps 100000          SB3, to the threshold

Run by benchmarks/train.py, each in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.newest_peers import DQN_PONG
from benchmarks.sample_factory import appo_rate
from rlplat.paths import expanded

NUM_ENVS, ROLLOUT_LENGTH, MINIBATCH_SIZE, NUM_EPOCHS = 8, 128, 256, 4
ROUND_STEPS = NUM_ENVS * ROLLOUT_LENGTH
A2C_ENVS, A2C_STEPS = 16, 5
OFF_POLICY_STARTS = 100
THRESHOLD, WINDOW = 475.0, 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_peers")
    commands = parser.add_subparsers(dest="command", required=True)
    rate = commands.add_parser("rate")
    rate.add_argument("peer", choices=["rlplat", "torch", "overlap", "inproc", "sb3", "sample-factory"])
    tasks = ["cartpole", "together", "pong", "dqn", "dqn-pong", "a3c", "es", "ppo-cheetah", "sac", "td3", "impala-pong"]
    rate.add_argument("task", choices=tasks)
    rate.add_argument("--warm-up", type=int, required=True, help="env steps that are not timed")
    rate.add_argument("--env-steps", type=int, required=True, help="env steps that are timed")
    threshold = commands.add_parser("threshold")
    threshold.add_argument("--seed", type=int, required=True)
    threshold.add_argument("--out", type=expanded, required=True)
    threshold.add_argument("--env-steps", type=int, required=True)
    options = parser.parse_args()
    if options.command == "threshold":
        sb3_to_threshold(options.seed, options.out, options.env_steps)
    elif options.peer == "sb3":
        print(sb3_rate(options.task, options.warm_up, options.env_steps))
    elif options.peer == "sample-factory":
        print(appo_rate(options.warm_up, options.env_steps))
    else:
        print(rlplat_rate(options.task, options.peer, options.warm_up, options.env_steps))


# ---------------------------------------------------------------- rlplat


def rlplat_rate(task: str, peer: str, warm_up: int, env_steps: int) -> float:
    """Env steps/s of `step()`: rollouts, updates and publishing, as in a run. peer: inproc is all in one process, torch
    learns there where auto would learn in numpy, overlap samples the next round during the update."""
    from rlplat.rl.run.registry import load_algorithm

    if task == "together":
        return together_rate(warm_up, env_steps)
    in_ppo = task in ("cartpole", "pong", "ppo-cheetah")
    algorithm_class = load_algorithm("ppo" if in_ppo else task.removesuffix("-pong"))
    config = rlplat_config(task, peer == "inproc")
    update: dict[str, Any] = {}
    if peer == "torch":
        update = {"learner": config.learner.model_copy(update={"backend": "torch"})}
    elif peer == "overlap":
        update = {"overlap_sampling": True}
    with algorithm_class(config.model_copy(update=update)) as algorithm:
        before = 0
        while before < warm_up:
            before = algorithm.step().env_steps
        started, after = time.perf_counter(), before
        while after < before + env_steps:
            after = algorithm.step().env_steps
        elapsed_s = time.perf_counter() - started
    return (after - before) / elapsed_s


def together_rate(warm_up: int, env_steps: int) -> float:
    """Of all 32 seeds: a run to `warm_up` env steps of each, and another of `env_steps` more, so that the start of 32
    runs does not count."""
    from rlplat import train_together

    config = rlplat_config("cartpole", in_one_process=True)
    settings = {name: getattr(config, name) for name in config.model_fields_set - {"env"}}

    def seconds(num: int) -> float:
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(sys.stderr):
            started = time.perf_counter()
            train_together(
                "ppo", config.env, seeds=range(32), out=directory, config=False, stop={"env_steps": num}, **settings
            )
            return time.perf_counter() - started

    return 32 * env_steps / (seconds(warm_up + env_steps) - seconds(warm_up))


def rlplat_config(task: str, in_one_process: bool) -> Any:
    """Pong: the published configs, PPO's has these rounds, DQN's a smaller replay here; CartPole with PPO: one rollout
    worker, 64x64 networks; DQN and ES: their tuned CartPole configs; A3C: SB3's A2C (5 steps, 64x64), 16 environments
    in each of two workers; SAC, TD3: defaults (256x256, batch 256, a gradient step per env step), learning from the
    100th env step on."""
    from rlplat.algorithms.ppo import PPOConfig
    from rlplat.config import layer_from_arguments
    from rlplat.rl.run.registry import tuned_config
    from rlplat.rl.run.training_plan import plan_from_file

    if task == "cartpole":
        return PPOConfig(
            env="CartPole-v1",
            num_rollout_workers=0 if in_one_process else 1,
            num_envs_per_worker=NUM_ENVS,
            rollout_length=ROLLOUT_LENGTH,
            num_epochs=NUM_EPOCHS,
            minibatch_size=MINIBATCH_SIZE,
        )
    if task == "a3c":
        from rlplat.algorithms.a3c import A3CConfig

        return A3CConfig(
            env="CartPole-v1",
            num_rollout_workers=0 if in_one_process else 2,
            num_envs_per_worker=A2C_ENVS,
            rollout_length=A2C_STEPS,
            learning_rate=7e-4,
        )
    if task == "ppo-cheetah":
        return PPOConfig(
            env="HalfCheetah-v5",
            num_rollout_workers=0 if in_one_process else 2,
            num_envs_per_worker=8 if in_one_process else 4,
            rollout_length=256,
            num_epochs=10,
            minibatch_size=128,
            normalize_observations=True,
            normalize_rewards=True,
        )
    if task in ("sac", "td3"):
        from rlplat.rl.run.registry import load_algorithm

        return load_algorithm(task).config_class(env="HalfCheetah-v5", learning_starts=OFF_POLICY_STARTS)
    if task in ("dqn", "dqn-pong", "es", "impala-pong"):
        names = {"dqn-pong": ("dqn", "Pong-published"), "impala-pong": ("impala", "Pong-published")}
        name, env = names.get(task, (task, "CartPole-v1"))
        path = tuned_config(name, env)
        assert path is not None, f"configs/{name}/{env}.yaml is part of rlplat"
        changes = {"num_rollout_workers": 0} if in_one_process else {}
        if task == "dqn-pong":
            changes |= {
                "learning_starts": DQN_PONG["learning_starts"],
                "replay_capacity": DQN_PONG["buffer_size"],
            }
        return plan_from_file(path, [layer_from_arguments(changes)]).config
    path = tuned_config("ppo", "Pong-published")
    assert path is not None, "configs/ppo/Pong-published.yaml is part of rlplat"
    changes = {"num_rollout_workers": 0, "num_envs_per_worker": NUM_ENVS} if in_one_process else {}
    config = plan_from_file(path, [layer_from_arguments(changes)]).config
    samples = max(1, config.num_rollout_workers) * config.num_envs_per_worker * config.rollout_length
    found = (samples, config.minibatch_size, config.num_epochs)
    assert found == (ROUND_STEPS, MINIBATCH_SIZE, NUM_EPOCHS), f"{path} is not this benchmark's PPO any more"
    return config


# ---------------------------------------------------------------- Stable-Baselines3


def sb3_rate(task: str, warm_up: int, env_steps: int) -> float:
    """Env steps/s of `learn()` after a first call of it."""
    makers = {
        "cartpole": sb3_cartpole,
        "pong": sb3_pong,
        "dqn": sb3_dqn,
        "dqn-pong": sb3_dqn_pong,
        "a3c": sb3_a2c,
        "es": sb3_ars,
    }
    model = sb3_off_policy(task) if task in ("sac", "td3") else makers[task]()
    model.learn(warm_up)
    before, started = model.num_timesteps, time.perf_counter()
    model.learn(env_steps, reset_num_timesteps=False)
    elapsed_s = time.perf_counter() - started
    return float(model.num_timesteps - before) / elapsed_s


def sb3_cartpole() -> Any:
    """The settings of `rlplat_config("cartpole")`; one torch thread, which is its fastest."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    envs = make_vec_env("CartPole-v1", n_envs=NUM_ENVS, seed=1)
    rollout: dict[str, Any] = {
        "n_steps": ROLLOUT_LENGTH,
        "batch_size": MINIBATCH_SIZE,
        "n_epochs": NUM_EPOCHS,
    }
    return PPO("MlpPolicy", envs, **rollout, seed=1, device="cpu")


def sb3_dqn() -> Any:
    """rl-zoo3's tuned CartPole-v1, from which configs/dqn/CartPole-v1.yaml has its values; one torch thread."""
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    return DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=1, seed=1),
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1000,
        gamma=0.99,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=1,
        device="cpu",
    )


def sb3_a2c() -> Any:
    """Its defaults (RMSProp, 5 steps, 64x64) on 16 environments; one torch thread."""
    import torch
    from stable_baselines3 import A2C
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    return A2C(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=A2C_ENVS, seed=1),
        n_steps=A2C_STEPS,
        seed=1,
        device="cpu",
    )


def sb3_off_policy(task: str) -> Any:
    """The settings of `rlplat_config`: SB3's defaults, for TD3 with SAC's networks and batch; one torch thread."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    algorithm = {"sac": stable_baselines3.SAC, "td3": stable_baselines3.TD3}[task]
    return algorithm(
        "MlpPolicy",
        make_vec_env("HalfCheetah-v5", n_envs=1, seed=1),
        learning_rate=3e-4,
        batch_size=256,
        learning_starts=OFF_POLICY_STARTS,
        policy_kwargs={"net_arch": [256, 256]},
        seed=1,
        device="cpu",
    )


def sb3_ars() -> Any:
    """Augmented random search (sb3-contrib), SB3's nearest to ES, with rl-zoo3's tuned CartPole-v1."""
    import torch
    from sb3_contrib import ARS
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    return ARS("LinearPolicy", make_vec_env("CartPole-v1", n_envs=1, seed=1), n_delta=2, seed=1, device="cpu")


def sb3_pong_envs(num_envs: int) -> Any:
    """AtariWrapper, DummyVecEnv, four frames stacked."""
    import ale_py
    import gymnasium
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)
    return VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=num_envs, seed=1), n_stack=4)


def sb3_dqn_pong() -> Any:
    """rl-zoo3's values for Atari with a smaller replay; torch's own number of threads."""
    from stable_baselines3 import DQN

    return DQN("CnnPolicy", sb3_pong_envs(1), **DQN_PONG, seed=1, device="cpu")


def sb3_pong() -> Any:
    """rl-zoo3's values for Atari; torch's own number of threads."""
    from stable_baselines3 import PPO

    return PPO(
        "CnnPolicy",
        sb3_pong_envs(NUM_ENVS),
        n_steps=ROLLOUT_LENGTH,
        batch_size=MINIBATCH_SIZE,
        n_epochs=NUM_EPOCHS,
        learning_rate=lambda left: 2.5e-4 * left,
        clip_range=lambda left: 0.1 * left,
        ent_coef=0.01,
        vf_coef=0.5,
        seed=1,
        device="cpu",
    )


def sb3_to_threshold(seed: int, out: Path, env_steps: int) -> None:
    """rl-zoo3's tuned CartPole-v1 until the mean of the last 100 episodes is 475; a line of metrics per rollout."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    out.mkdir(parents=True, exist_ok=True)

    class UntilThreshold(BaseCallback):
        """Looks after every rollout, as rlplat does after every round."""

        def __init__(self, metrics: Any) -> None:
            super().__init__()
            self._metrics, self._episodes = metrics, 0

        def _on_training_start(self) -> None:
            self._started = time.perf_counter()

        def _on_step(self) -> bool:
            self._episodes += int(sum(self.locals["dones"]))
            return True

        def _on_rollout_end(self) -> None:
            window = self.model.ep_info_buffer
            assert window is not None
            mean = sum(info["r"] for info in window) / len(window) if window else None
            record = {
                "env_steps": self.num_timesteps,
                "wall_s": time.perf_counter() - self._started,
                "episodes": self._episodes,
                "episode_return_mean": mean,
            }
            print(json.dumps(record), file=self._metrics, flush=True)
            if mean is not None and self._episodes >= WINDOW and mean >= THRESHOLD:
                # At once: the update that would follow is not part of reaching it.
                raise StopTraining

    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        ent_coef=0.0,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        stats_window_size=WINDOW,
        seed=seed,
        device="cpu",
    )
    with open(out / "metrics.jsonl", "a", encoding="utf-8") as metrics:
        try:
            model.learn(env_steps, callback=UntilThreshold(metrics))
        except StopTraining:
            sys.exit(0)


class StopTraining(Exception):
    """The threshold is reached."""


if __name__ == "__main__":
    main()
