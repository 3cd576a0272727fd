"""Evaluation: whole episodes on raw rewards with frozen weights and statistics, in environments of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import rlplat
from rlplat.rl.envs import VectorEnv, make_vector_env
from rlplat.rl.interfaces import Episode, Policy
from rlplat.rl.policy_spec import make_policy, policy_spec
from rlplat.rl.seeding import seed_sequences

if TYPE_CHECKING:
    from rlplat import ActorHandle


def play_episodes(
    policy: Policy,
    env: VectorEnv,
    episodes: int,
    *,
    seed: int | np.random.SeedSequence,
    deterministic: bool = True,
) -> list[Episode]:
    """Exactly `episodes` episodes, each environment playing a share fixed beforehand.

    Taking the first ones to finish would favour short episodes: good ones where the aim is speed, bad ones where it is
    survival. Episodes come back in order of environment, then time.
    """
    num_envs = env.num_envs
    quotas = [episodes // num_envs + (b < episodes % num_envs) for b in range(num_envs)]
    finished: list[list[Episode]] = [[] for _ in range(num_envs)]
    returns, lengths = np.zeros(num_envs, np.float64), np.zeros(num_envs, np.int64)
    obs = env.reset(seed)
    while any(len(done) < quota for done, quota in zip(finished, quotas, strict=True)):
        step = env.step(policy.act(obs, deterministic=deterministic).actions)
        obs = step.obs
        returns += step.rewards * step.valid
        lengths += step.valid
        for b in np.flatnonzero(step.terminated | step.truncated):
            if len(finished[b]) < quotas[b]:
                finished[b].append(Episode(float(returns[b]), int(lengths[b])))
            returns[b], lengths[b] = 0.0, 0
    env.pop_episodes()
    return [episode for done in finished for episode in done]


class Evaluator:
    """An actor: `evaluator.run.remote(episodes)` plays with the newest weights of the parameter server.

    Every call plays from the same seeds, so that evaluations of one run differ by the weights alone.
    """

    def __init__(self, config: dict[str, Any], parameter_server: ActorHandle) -> None:
        self._config = config
        self._parameter_server = parameter_server
        self._envs: dict[int, VectorEnv] = {}

    def run(self, episodes: int) -> list[Episode]:
        config = self._config
        num_envs = min(episodes, config["evaluation"]["num_envs"])
        if num_envs not in self._envs:
            self._envs[num_envs] = make_vector_env(config["env"], num_envs, env_kwargs=config["env_kwargs"])
        env = self._envs[num_envs]
        policy_seed, env_seed = seed_sequences(config["seed"], "evaluation")
        spec = policy_spec(config["policy"], env.spec)
        policy = make_policy(spec, policy_seed, precision=config["learner"]["precision"])
        newest = rlplat.get(self._parameter_server.latest.remote())
        assert newest is not None, "the learner publishes its first weights before anybody evaluates"
        policy.set_weights(newest[1])
        deterministic = config["evaluation"]["deterministic"]
        return play_episodes(policy, env, episodes, seed=env_seed, deterministic=deterministic)
