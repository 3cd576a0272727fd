"""Evaluation with several agents: whole games, every policy with the weights that it is given.

with GamePlayer(config.model_dump(), plan, PPO.make_policy) as player:
    episodes = player.play(joined_weights, 20)          # one Episode per game, as in the run's headline
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic
from typing import Any

from rlplat.rl.envs.copies import Copies
from rlplat.rl.envs.watchdog import Limits
from rlplat.rl.interfaces import TELL_PERIOD_S, CutEpisode, Episode, MakePolicy, Weights
from rlplat.rl.learning.weights import split_weights
from rlplat.rl.multi_agent.columns import PolicyColumns
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan
from rlplat.rl.multi_agent.vector_env import (
    AgentEpisode,
    MultiAgentVectorEnv,
    game_episode,
    make_multi_agent_vector_env,
)
from rlplat.rl.policies.exploration import use_greedy_epsilon
from rlplat.rl.sampling.recorders import has_core
from rlplat.rl.seeding import PURPOSE_INDICES, Purpose, seed_sequences


class GamePlayer:
    """Self-play's opponent plays the newest snapshot. Every call for one purpose plays from the same seeds."""

    def __init__(self, settings: dict[str, Any], plan: MultiAgentPlan, make_policy: MakePolicy) -> None:
        self._settings, self._plan, self._make_policy = settings, plan, make_policy
        self._envs: dict[int, MultiAgentVectorEnv] = {}

    def play(
        self,
        weights: Weights,
        games: int,
        purpose: Purpose = "choice",
        tell: Callable[[int, int], None] | None = None,
    ) -> list[Episode]:
        """weights: of all policies, as `<policy>/<name>`; tell: as for `evaluation.play_episodes`."""
        played, cut = self._play_parts(weights, games, purpose, tell)
        is_sum = self._plan.episode_return == "sum"
        return [*(game_episode(parts, is_sum=is_sum) for parts in played), *cut]

    def _play_parts(
        self, weights: Weights, games: int, purpose: Purpose, tell: Callable[[int, int], None] | None
    ) -> tuple[list[list[AgentEpisode]], list[CutEpisode]]:
        """Exactly `games` games (fewer where one had to be cut off), each copy playing a share fixed beforehand; of
        each, the trained policies' agents."""
        num_copies = min(games, self._settings["evaluation"]["num_envs"])
        if num_copies not in self._envs:
            self._envs[num_copies] = make_multi_agent_vector_env(
                self._settings["env"],
                num_copies,
                self._plan,
                env_kwargs=self._settings["env_kwargs"],
                limits=Limits.of(self._settings),
                copies=Copies.of(self._settings, "evaluation"),
                env_metrics=self._settings.get("env_metrics", ()),
            )
        env = self._envs[num_copies]
        policy_seed, env_seed = seed_sequences(self._settings["seed"], "evaluation", PURPOSE_INDICES[purpose])
        columns = self._columns(env, weights, policy_seed)
        quotas = [games // num_copies + (copy < games % num_copies) for copy in range(num_copies)]
        finished: list[list[list[AgentEpisode]]] = [[] for _ in range(num_copies)]
        deterministic = self._settings["evaluation"]["deterministic"]
        limit: int = self._settings["evaluation"]["max_episode_steps"]
        ages, cut = [0] * num_copies, []
        tell_at = monotonic() + TELL_PERIOD_S
        turns = env.reset(env_seed)
        while any(len(done) < quota for done, quota in zip(finished, quotas, strict=True)):
            if tell is not None and monotonic() >= tell_at:
                tell_at = monotonic() + TELL_PERIOD_S
                tell(sum(map(len, finished)), max(ages))
            for name, each in columns.items():
                each.take(turns[name])
            turns = env.step({name: each.act(deterministic=deterministic) for name, each in columns.items()})
            over: dict[int, list[AgentEpisode]] = {}
            for name, parts in env.pop_episodes().items():
                for part in parts if name in self._plan.trained else ():
                    over.setdefault(part.game[2], []).append(part)
            for copy in range(num_copies):
                ages[copy] = 0 if copy in over else ages[copy] + 1
                if copy in over and len(finished[copy]) < quotas[copy]:
                    finished[copy].append(over[copy])
                if ages[copy] >= limit and len(finished[copy]) < quotas[copy]:
                    cut.append(CutEpisode(math.nan, ages[copy]))
                    quotas[copy] = len(finished[copy])  # it plays no more: the rest of its share is left out
        return [parts for of_copy in finished for parts in of_copy], cut

    def _columns(self, env: MultiAgentVectorEnv, weights: Weights, seed: Any) -> dict[str, PolicyColumns]:
        by_policy = split_weights(weights)
        columns = {}
        for (name, policy), policy_seed in zip(
            self._plan.policies.items(), seed.spawn(len(self._plan.policies)), strict=True
        ):
            settings = self._plan.settings(self._settings, name)
            acting = self._make_policy(settings, policy.spaces, policy_seed)
            acting.set_weights(by_policy[name])
            use_greedy_epsilon(acting, settings)
            num_columns = len(env.columns[name])
            columns[name] = PolicyColumns(
                acting,
                env.empty_obs(name, num_columns),
                policy.spaces.action,
                num_columns,
                has_core=has_core(settings["policy"]),
            )
        return columns

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
        self._envs.clear()

    def __enter__(self) -> GamePlayer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
