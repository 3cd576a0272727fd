"""A trained agent plays, and whole episodes are written to a data set: what `rlplat record` does.

manifest = record(load("runs/demo"), 50, "data", random_share=0.1)
"""

from __future__ import annotations

import os

import numpy as np

from rlplat.errors import ConfigError
from rlplat.paths import user_path
from rlplat.rl.envs.copies import Copies
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.statistics import of_weights
from rlplat.rl.envs.watchdog import Limits
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.obs_tree import copy_obs, map_obs, take_obs
from rlplat.rl.offline.dataset import DataWriter, Manifest
from rlplat.rl.offline.episodes import Episodes
from rlplat.rl.policies.exploration import RandomActions, use_greedy_epsilon
from rlplat.rl.run.evaluation import raw_env_kwargs
from rlplat.rl.run.trained_agent import Agent
from rlplat.rl.seeding import process_seeded, seed_sequences
from rlplat.rl.spaces import ActionSpec, action_leaves
from rlplat.rl.user_code import names_in, record_code


def record(
    agent: Agent,
    episodes: int,
    out: str | os.PathLike[str],
    *,
    greedy: bool = True,
    random_share: float = 0.0,
) -> Manifest:
    """Exactly `episodes` whole episodes on raw rewards; each environment plays a share fixed beforehand, because the
    first ones to finish would be the short ones.

    greedy: False draws actions as in training; random_share: of the steps, in which any legal action is taken instead.
    An episode that reaches `evaluation.max_episode_steps` is cut off there, and its environment plays no more. The
    random numbers are not those of an evaluation of the same seed.
    """
    if agent.policies != [""]:
        raise ConfigError(
            f"{agent.directory} has several agents, of which no data set can be recorded: use one with one"
        )
    settings = agent.plan.config.model_dump()
    num_envs = min(episodes, settings["evaluation"]["num_envs"])
    limit = settings["evaluation"]["max_episode_steps"]
    policy_seed, env_seed = seed_sequences(settings["seed"], "evaluation", 1)
    spaces, policy = agent.spaces.spec, agent.policy
    random = RandomActions(spaces.action, policy_seed.spawn(1)[0], settings["env"]) if random_share else None
    policy.seed(policy_seed)
    use_greedy_epsilon(policy, settings)
    source = {
        "run": str(agent.directory),
        "checkpoint": agent.checkpoint.path.name,
        "algorithm": agent.plan.algo,
        "actions": "greedy" if greedy else "sampled",
        "random_share": random_share,
        "seed": settings["seed"],
        "code": record_code(names_in({"env": settings["env"], "env_kwargs": settings["env_kwargs"]}), user_path(out)),
    }
    kwargs = raw_env_kwargs(settings)
    with (
        DataWriter(out, env=settings["env"], spaces=spaces, env_kwargs=kwargs, source=source) as writer,
        process_seeded(settings["seed"], "evaluation", 1),
        make_vector_env(
            settings["env"],
            num_envs,
            env_kwargs=kwargs,
            copies=Copies.of(settings, "evaluation"),
            any_number=True,
            **Limits.of(settings).arguments(),
        ) as env,
    ):
        num_envs = env.num_envs
        if statistics := of_weights(agent.weights()):
            env.take_statistics(statistics, is_frozen=True)
        quotas = [episodes // num_envs + (b < episodes % num_envs) for b in range(num_envs)]
        tracks = [Track() for _ in range(num_envs)]
        obs = copy_obs(env.reset(env_seed))
        while any(quotas):
            actions = policy.act(obs, deterministic=greedy).actions
            if random is not None:
                actions = random.instead_of(actions, obs, random_share)
            actions = within_bounds(spaces.action, actions)
            step = env.step(actions)
            ended = step.terminated | step.truncated
            for b in np.flatnonzero(quotas):
                track = tracks[b]
                if step.valid[b]:
                    track.add(take_obs(obs, b), actions[b], step.rewards[b])
                is_cut = len(track.rewards) >= limit and not ended[b]
                if not ended[b] and not is_cut:
                    continue
                last = step.obs if step.final_obs is None or is_cut else step.final_obs
                writer.add(track.end(take_obs(last, b), is_terminated=bool(step.terminated[b])))
                quotas[b] = 0 if is_cut else quotas[b] - 1
            policy.reset_core(step.forgets)
            obs = copy_obs(step.obs)
        return writer.close()


class Track:
    """One environment's episode, as far as it has come."""

    def __init__(self) -> None:
        self.obs: list[Obs] = []
        self.actions: list[Array] = []
        self.rewards: list[float] = []

    def add(self, obs: Obs, action: Array, reward: float) -> None:
        """obs: of which nobody changes the memory."""
        self.obs.append(obs)
        self.actions.append(action)
        self.rewards.append(reward)

    def end(self, last: Obs, *, is_terminated: bool) -> Episodes:
        """The episode; from here on this is the next one's."""
        episode = Episodes(
            obs=map_obs(lambda *rows: np.stack(rows), *self.obs, last),
            actions=np.stack(self.actions),
            rewards=np.array(self.rewards, np.float32),
            lengths=np.array([len(self.rewards)], np.int64),
            terminated=np.array([is_terminated]),
        )
        self.obs, self.actions, self.rewards = [], [], []
        return episode


def within_bounds(action: ActionSpec, actions: Array) -> Array:
    """What the environment will take of actions [B, ...]: those of a Box clipped, the others as they are."""
    if action.kind not in ("box", "composite"):
        return actions
    clipped, start = np.array(actions), 0
    for part in action_leaves(action):
        its = slice(start, start := start + part.flat_size)
        if part.kind == "box":
            clipped[:, its] = np.clip(clipped[:, its], np.array(part.low, np.float32), np.array(part.high, np.float32))
    return clipped
