"""`MultiAgentRolloutWorker`: the rollout worker for environments with several agents.

worker = rlplat.remote(MultiAgentRolloutWorker).remote(settings, plan, 0, 0, pool, PPO.make_policy)
refs = worker.sample.options(num_returns=len(plan.trained)).remote(*rings.latest())     # a batch per trained policy
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import rlplat
from rlplat.rl.envs.copies import Copies
from rlplat.rl.envs.guard import Ask
from rlplat.rl.envs.watchdog import Limits
from rlplat.rl.interfaces import MakePolicy, Weights
from rlplat.rl.multi_agent.columns import PolicyColumns
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan
from rlplat.rl.multi_agent.vector_env import make_multi_agent_vector_env
from rlplat.rl.policies.spec import cpu_share
from rlplat.rl.sampling.recorders import Record, has_core
from rlplat.rl.seeding import seed_process, seed_sequences

if TYPE_CHECKING:
    from rlplat import ActorHandle


class MultiAgentRolloutWorker:
    """Steps E copies; E is `num_envs_per_worker`. A trained policy with A agents gets B = E * A columns.

    A fragment ends as soon as one column of a trained policy has its T rows (in a parallel environment, all of them at
    once, where no agent dies early).
    """

    def __init__(
        self,
        config: dict[str, Any],
        plan: MultiAgentPlan,
        worker_index: int,
        incarnation: int,
        pool: ActorHandle | None,
        make_policy: MakePolicy,
        *,
        record: Record = "samples",
    ) -> None:
        """pool: where the opponent of self-play draws its weights; make_policy: of the algorithm's class; record: as
        what batches."""
        self.worker_index, self.incarnation = worker_index, incarnation
        self._plan = plan
        self._pool = pool
        policy_seed, env_seed = seed_sequences(config["seed"], "rollout", worker_index, incarnation)
        seed_process(config["seed"], "rollout", worker_index, incarnation)
        *policy_seeds, opponent_seed = policy_seed.spawn(len(plan.policies) + 1)
        self._rng = np.random.Generator(np.random.PCG64(opponent_seed))
        num_copies = config["num_envs_per_worker"]
        self._env = make_multi_agent_vector_env(
            config["env"],
            num_copies,
            plan,
            seed=env_seed,
            env_kwargs=config["env_kwargs"],
            game_id=(worker_index, incarnation),
            limits=Limits.of(config),
            copies=Copies.of(config, "rollout", worker_index),
            env_metrics=config.get("env_metrics", ()),
        )
        self._versions = dict.fromkeys(plan.policies, -1)
        self._columns: dict[str, PolicyColumns] = {}
        for name, seed in zip(plan.policies, policy_seeds, strict=True):
            settings, spaces = plan.settings(config, name), plan.policies[name].spaces
            num_columns = len(self._env.columns[name])
            self._columns[name] = PolicyColumns(
                make_policy(settings, spaces, seed),
                self._env.empty_obs(name, num_columns),
                spaces.action,
                num_columns,
                has_core=has_core(settings["policy"]),
                record=record if name in plan.trained else None,
                num_steps=config["rollout_length"],
            )
        torch = sys.modules.get("torch")
        if torch is not None and config["num_rollout_workers"] > 0:
            # The policies have set it as if they were alone; an MLP wants one.
            torch.set_num_threads(min(torch.get_num_threads(), cpu_share(config["num_rollout_workers"])))
        self._is_within = False
        """A fragment has begun and has not ended: an error or Ctrl-C came out of it."""
        self._begin_games()

    def sample(self, *latest: tuple[int, Weights]) -> Any:
        """One batch per trained policy, in the order of `plan.trained`; alone where there is one.

        latest: (version, weights) of every policy, in the order of `plan.policies` and without the opponent: that one
        draws one of its snapshots.
        """
        started = perf_counter()
        self._take_weights(latest)
        weights_s = perf_counter() - started
        batches = self.roll_out()
        for batch in batches:
            batch.timing |= {"weights_s": weights_s, "sample_s": perf_counter() - started}
        return batches[0] if len(batches) == 1 else tuple(batches)

    def set_weights(self, policy: str, version: int, weights: Weights) -> None:
        """The weights that this policy acts with from now on."""
        self._versions[policy] = version
        self._columns[policy].policy.set_weights(weights)

    def roll_out(self) -> list[Any]:
        """One batch per trained policy under the weights that are there."""
        missing = [name for name, version in self._versions.items() if version < 0]
        assert not missing, f"policies {missing} have no weights; every source has some before workers sample"
        if self._is_within:
            self._begin_games()
        self._is_within = True
        trained = [self._columns[name] for name in self._plan.trained]
        act_s = env_s = 0.0
        before = perf_counter()
        while not any(columns.is_full for columns in trained):
            actions = {name: columns.act() for name, columns in self._columns.items()}
            between = perf_counter()
            turns = self._env.step(actions)
            after = perf_counter()
            act_s += between - before
            env_s += after - between
            before = after
            for name, columns in self._columns.items():
                columns.take(turns[name])
        episodes = self._env.pop_episodes()
        batches = [
            self._columns[name].finish(
                weights_version=self._versions[name],
                worker_index=self.worker_index,
                incarnation=self.incarnation,
                episodes=episodes.get(name, []),
                timing={"act_s": act_s, "env_s": env_s},
            )
            for name in self._plan.trained
        ]
        self._is_within = False
        return batches

    def get_state(self) -> dict[str, Any]:
        return {
            "policies": {name: columns.policy.get_state() for name, columns in self._columns.items()},
            "rng": self._rng.bit_generator.state,
            "env": None,  # see `not_saved`; `RolloutWorkers` asks for it
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there, with new games."""
        for name, columns in self._columns.items():
            columns.policy.set_state(state["policies"][name])
        self._rng.bit_generator.state = state["rng"]
        self._begin_games()

    def not_saved(self) -> str:
        """What `get_state` leaves out."""
        return "the states of PettingZoo environments: after a resume new games start"

    def ask_envs(self, what: Ask, name: str, *arguments: Any, **keywords: Any) -> list[Any]:
        """Of every copy's game: `MultiAgentVectorEnv.ask`."""
        return self._env.ask(what, name, *arguments, **keywords)

    def close(self) -> None:
        self._env.close()

    def _begin_games(self) -> None:
        turns = self._env.reset()
        for name, columns in self._columns.items():
            columns.forget()
            columns.take(turns[name])

    def _take_weights(self, latest: Sequence[tuple[int, Weights]]) -> None:
        opponent = self._plan.opponent
        names = [name for name in self._plan.policies if name != opponent]
        for name, (version, weights) in zip(names, latest, strict=True):
            if version != self._versions[name]:
                self.set_weights(name, version, weights)
        if self._pool is not None:
            drawn = rlplat.get(self._pool.draw.remote(self._rng.random(), self._versions[opponent]))
            if drawn is not None:
                self.set_weights(opponent, *drawn)
