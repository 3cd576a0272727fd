"""The newest peers, each in a Python of its own, with train_peers.py's hyper-parameters: env steps/s with learning.

    python3 -m venv rejax && rejax/bin/pip install rejax==0.1.3 gymnax==0.0.9
    python3 -m venv sbx && sbx/bin/pip install torch==2.13.0 && sbx/bin/pip install sbx-rl==0.28.0 \\
        'gymnasium[mujoco]==1.4.0' mujoco==4.0.0 ale-py==0.12.1 opencv-python-headless
    python3 -m venv rlox && rlox/bin/pip install torch==2.13.0 && rlox/bin/pip install rlox==1.2.0
    REJAX_PYTHON=rejax/bin/python SBX_PYTHON=sbx/bin/python RLOX_PYTHON=rlox/bin/python \\
        python -m benchmarks.train --rows cartpole together sac td3 --peer rejax --peer sbx --peer rlox

`PYTHON benchmarks/newest_peers.py PEER TASK WARM_UP ENV_STEPS` prints the rate last. What is compiled is compiled
before the clock starts; its seconds stand in the line before. This file imports nothing of rlplat.
"""

from __future__ import annotations

import sys
import time
from typing import Any

PYTHONS = {"rejax": "REJAX_PYTHON", "sbx": "SBX_PYTHON", "rlox": "RLOX_PYTHON"}
"""The variable that names the Python of each."""
TASKS = {
    "rejax": {"cartpole", "together"},
    "sbx": {"cartpole", "ppo-cheetah", "dqn-pong", "sac", "td3"},
    "rlox": {"cartpole"},
}

DQN_PONG: dict[str, Any] = {
    "learning_rate": 1e-4,
    "batch_size": 32,
    "buffer_size": 10_000,
    "learning_starts": 1_000,
    "target_update_interval": 1000,
    "train_freq": 4,
    "gradient_steps": 1,
    "exploration_fraction": 0.1,
    "exploration_final_eps": 0.01,
}
"""rl-zoo3's values for Atari with a smaller replay, of SBX and of Stable-Baselines3."""


def main() -> None:
    peer, task, warm_up, env_steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    print({"rejax": rejax_rate, "sbx": sbx_rate, "rlox": rlox_rate}[peer](task, warm_up, env_steps))


def rejax_rate(task: str, _warm_up: int, env_steps: int) -> float:
    """Its whole training is one program: the first call compiles and runs it, the second is timed. Nothing is
    evaluated; gymnax's CartPole."""
    import jax
    import rejax

    num_seeds = 32 if task == "together" else 1
    algorithm = rejax.PPO.create(
        env="CartPole-v1",
        num_envs=8,
        num_steps=128,
        num_minibatches=4,
        num_epochs=4,
        learning_rate=3e-4,
        max_grad_norm=0.5,
        total_timesteps=env_steps,
        eval_freq=env_steps,
        skip_initial_evaluation=True,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
    )
    algorithm = algorithm.replace(eval_callback=lambda *_: ())
    train = jax.jit(jax.vmap(algorithm.train))

    def once(seed: int) -> float:
        started = time.perf_counter()
        state, _ = train(jax.random.split(jax.random.key(seed), num_seeds))
        jax.block_until_ready(state)
        assert int(state.global_step[0]) >= env_steps
        return time.perf_counter() - started

    first_s, second_s = once(1), once(2)
    print(f"compiling: {first_s - second_s:.1f} s")
    return num_seeds * env_steps / second_s


def sbx_rate(task: str, warm_up: int, env_steps: int) -> float:
    """`learn()` after a first call of it, which compiles."""
    import sbx
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack

    model: Any
    if task == "cartpole":
        envs = make_vec_env("CartPole-v1", n_envs=8, seed=1)
        model = sbx.PPO("MlpPolicy", envs, n_steps=128, batch_size=256, n_epochs=4, seed=1)
    elif task == "ppo-cheetah":
        envs = make_vec_env("HalfCheetah-v5", n_envs=8, seed=1)
        model = sbx.PPO("MlpPolicy", envs, n_steps=256, batch_size=128, n_epochs=10, seed=1)
    elif task == "dqn-pong":
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        games = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=1, seed=1), n_stack=4)
        model = sbx.DQN("CnnPolicy", games, **DQN_PONG, seed=1)
    else:
        model = {"sac": sbx.SAC, "td3": sbx.TD3}[task](
            "MlpPolicy",
            make_vec_env("HalfCheetah-v5", n_envs=1, seed=1),
            learning_rate=3e-4,
            batch_size=256,
            learning_starts=100,
            policy_kwargs={"net_arch": [256, 256]},
            seed=1,
        )
    model.learn(warm_up)
    before, started = model.num_timesteps, time.perf_counter()
    model.learn(env_steps, reset_num_timesteps=False)
    return float(model.num_timesteps - before) / (time.perf_counter() - started)


def rlox_rate(_task: str, warm_up: int, env_steps: int) -> float:
    """Its own CartPole in Rust; `train()` after a first call of it."""
    import torch
    from rlox.trainer import Trainer

    torch.set_num_threads(1)
    settings = {"n_envs": 8, "n_steps": 128, "n_epochs": 4, "batch_size": 256, "learning_rate": 3e-4}
    trainer = Trainer("ppo", env="CartPole-v1", config=settings, seed=1)
    trainer.train(total_timesteps=warm_up)
    started = time.perf_counter()
    trainer.train(total_timesteps=env_steps)
    return env_steps / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
