"""Evaluation with several agents: whole games, every policy with the weights that it is given.

with GamePlayer(config.model_dump(), plan, PPO.make_policy) as player:
    episodes = player.play(joined_weights, 20)          # one Episode per game, as in the run's headline
"""

from __future__ import annotations

from typing import Any

from rlplat.rl.evaluation import MakePolicy, use_greedy_epsilon
from rlplat.rl.interfaces import Episode, Weights
from rlplat.rl.multi_agent.agent_returns import AgentEpisode, game_episode
from rlplat.rl.multi_agent.columns import PolicyColumns, empty_actions
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan
from rlplat.rl.multi_agent.policy_rings import split_weights
from rlplat.rl.multi_agent.rows import NoRows
from rlplat.rl.multi_agent.vector_env import MultiAgentVectorEnv, make_multi_agent_vector_env
from rlplat.rl.seeding import seed_sequences


class GamePlayer:
    """Self-play's opponent plays the newest snapshot. Every call plays from the same seeds."""

    def __init__(self, settings: dict[str, Any], plan: MultiAgentPlan, make_policy: MakePolicy) -> None:
        self._settings, self._plan, self._make_policy = settings, plan, make_policy
        self._envs: dict[int, MultiAgentVectorEnv] = {}

    def play(self, weights: Weights, games: int) -> list[Episode]:
        """weights: of all policies, as `<policy>/<name>`."""
        return [
            game_episode(parts, is_sum=self._plan.episode_return == "sum")
            for parts in self.play_parts(weights, games)
        ]

    def play_parts(self, weights: Weights, games: int) -> list[list[AgentEpisode]]:
        """Exactly `games` games, each copy playing a share fixed beforehand; of each, the trained policies' agents."""
        num_copies = min(games, self._settings["evaluation"]["num_envs"])
        if num_copies not in self._envs:
            self._envs[num_copies] = make_multi_agent_vector_env(
                self._settings["env"], num_copies, self._plan, env_kwargs=self._settings["env_kwargs"]
            )
        env = self._envs[num_copies]
        policy_seed, env_seed = seed_sequences(self._settings["seed"], "evaluation")
        columns = self._columns(env, weights, policy_seed)
        quotas = [games // num_copies + (copy < games % num_copies) for copy in range(num_copies)]
        finished: list[list[list[AgentEpisode]]] = [[] for _ in range(num_copies)]
        deterministic = self._settings["evaluation"]["deterministic"]
        turns = env.reset(env_seed)
        while any(len(done) < quota for done, quota in zip(finished, quotas, strict=True)):
            for name, each in columns.items():
                each.take(turns[name])
            turns = env.step({name: each.act(deterministic=deterministic) for name, each in columns.items()})
            over: dict[int, list[AgentEpisode]] = {}
            for name, parts in env.pop_episodes().items():
                for part in parts if name in self._plan.trained else ():
                    over.setdefault(part.game[2], []).append(part)
            for copy, parts in over.items():
                if len(finished[copy]) < quotas[copy]:
                    finished[copy].append(parts)
        return [parts for of_copy in finished for parts in of_copy]

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
            section = settings["policy"]
            columns[name] = PolicyColumns(
                acting,
                NoRows(),
                env.empty_obs(name, len(env.columns[name])),
                empty_actions(policy.spaces.action, len(env.columns[name])),
                has_core=section["core"] != "none" or bool(section["custom"]),
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
