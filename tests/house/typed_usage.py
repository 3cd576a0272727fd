"""What users write, for type checkers: `test_typing.py` has mypy and pyright read this; nothing runs it. A line whose
comment is `error` must be one to both, and no other."""

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np

import rlplat
from rlplat import ObjectRef
from rlplat.algorithms.bc import BCConfig
from rlplat.algorithms.dqn import DQN, DQNConfig
from rlplat.algorithms.ppo import PPO, PPOConfig
from rlplat.algorithms.sac import SACConfig
from rlplat.rl.algorithm_config import AlgorithmConfig, PolicyConfig, StopConfig

LINEAR: Any = {"schedule": "linear", "start": 1e-3, "end": 0}

PPO(PPOConfig(env="CartPole-v1"))
PPOConfig(env="CartPole-v1", policy={"custom": "./net.py:Net"}, stop={"env_steps": 1000}, callbacks=["./c.py:C"])
PPOConfig(env="CartPole-v1", learning_rate={"schedule": "linear", "start": 1e-3, "end": 0}, clip_range=LINEAR)
PPOConfig(env="CartPole-v1", entropy_coef={"schedule": "piecewise", "points": [[0, 1e-3], (1, 0)]})
PPOConfig(env="CartPole-v1", policy=PolicyConfig(hidden_sizes=[3]), stop=StopConfig(env_steps=1), seed=3)
DQN(DQNConfig(env="CartPole-v1", policy={"hidden_sizes": (3,)}, value_range=[-10, 10], stop={"episode_return": 3}))
SACConfig(env="Pendulum-v1", entropy_coef="auto", hindsight={"goal_selection_strategy": "future"})
BCConfig(data="data/cartpole")
PPOConfig(env="CartPole-v1", n_steps=3)  # error
PPOConfig()  # error
PPOConfig(env="CartPole-v1", stop={"steps": 3})  # error


class OwnConfig(PPOConfig):
    own: int = 3


class OtherConfig(AlgorithmConfig):
    own: int = 3


OwnConfig(env="CartPole-v1", own=4, seed=3)
OtherConfig(env="CartPole-v1", own=4, num_rollout_workers=0)
OtherConfig(env="CartPole-v1", owm=4)  # error

run = rlplat.train("ppo", "CartPole-v1", stop={"wall_s": 60}, policy={"hidden_sizes": [8, 8]}, out="runs/x")
assert_type(run.wall_s, float)
rlplat.train("r2d2", env="CartPole-v1", config=False, policy={"core": "lstm"}, evaluation={"epsilon": 0.05})
rlplat.train("bc", data="data/cartpole", seed=3)
settings_of_mine: dict[str, Any] = {"own": 3}
rlplat.train("./algo.py:Mine", env=dict, num_epochs=3, **settings_of_mine)
rlplat.train(resume="runs/demo", stop={"env_steps": 10})
rlplat.train("ppo", environ="CartPole-v1")  # error
rlplat.train("ppo", env="CartPole-v1", policy={"hiden_sizes": [3]})  # error
rlplat.train("ppo", env="CartPole-v1", flags=[])  # error

agent = rlplat.load("runs/demo", "best")
assert_type(agent.act(np.zeros(3)), np.ndarray)


@rlplat.remote
def square(x: int) -> int:
    return x * x


@rlplat.remote
def numbers() -> Iterator[int]:
    yield 3


@rlplat.remote(num_returns=2, num_cpus=1)
def both() -> tuple[int, str]:
    return 1, ""


class Total:
    def add(self, x: int) -> int:
        return x


ref = square.remote(3)
assert_type(ref, ObjectRef[int])
assert_type(rlplat.get(ref), int)
assert_type(rlplat.get([square.remote(i) for i in range(3)]), list[int])
assert_type(rlplat.get(rlplat.put(3.0)), float)
assert_type(rlplat.wait([ref], num_returns=1)[0], list[ObjectRef[int]])
for each in numbers.remote():
    assert_type(rlplat.get(each), int)
one, two = both.remote()
one, two = square.options(num_returns=2).remote(3)
assert_type(list(rlplat.map(square, [1, 2])), list[int])
total = rlplat.remote(Total).remote()
rlplat.get([total.add.remote(3), ref])
rlplat.get(3)  # error


async def wait_for(made: ObjectRef[int]) -> int:
    return await made
