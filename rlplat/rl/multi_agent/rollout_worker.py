"""Who plays games of several agents: `MultiAgentRolloutWorker` in a training, `GamePlayer` in an evaluation.

    worker = rlplat.remote(MultiAgentRolloutWorker).remote(settings, plan, 0, 0, pool, PPO.make_policy)
    refs = worker.sample.options(num_returns=len(plan.trained)).remote(*rings.latest())     # a batch per trained policy

    with GamePlayer(config.model_dump(), plan, PPO.make_policy) as player:
        episodes = player.play(joined_weights, 20)      # one Episode per game, as in the run's headline

Both have `PolicyColumns` of each policy:

    while not columns.is_full:
        turns = env.step({name: columns.act()})[name]
        columns.take(turns)
    batch = columns.finish(weights_version=version)

A decision that is not answered when a batch is finished becomes the first row of the next one: nothing is lost, and
nothing is learnt from half a row.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import rlplat
from rlplat.rl.envs.copies import Copies
from rlplat.rl.envs.guard import Ask
from rlplat.rl.interfaces import (
    TELL_PERIOD_S,
    Array,
    Closing,
    CutEpisode,
    Episode,
    MakePolicy,
    Obs,
    Policy,
    PolicyOutput,
    Weights,
)
from rlplat.rl.learning.weights import split_weights
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan
from rlplat.rl.multi_agent.vector_env import AgentEpisode, MultiAgentVectorEnv, Turns, game_episode, games_of
from rlplat.rl.obs_tree import copy_obs, put_obs, take_obs
from rlplat.rl.policies.exploration import use_greedy_epsilon
from rlplat.rl.policies.spec import cpu_share
from rlplat.rl.sampling.recorders import Record, has_core, make_recorder, values_in_columns
from rlplat.rl.seeding import PURPOSE_INDICES, Purpose, seed_process, seed_sequences
from rlplat.rl.spaces import ActionSpec, empty_actions

if TYPE_CHECKING:
    from rlplat import ActorHandle


class PolicyColumns:
    def __init__(
        self,
        policy: Policy,
        empty_obs: Obs,
        action: ActionSpec,
        num_columns: int,
        *,
        has_core: bool,
        record: Record | None = None,
        num_steps: int = 0,
    ) -> None:
        """empty_obs: [B, ...]; record: as what batches, of num_steps rows; None: a frozen policy, or evaluation."""
        self.policy = policy
        self._num_columns, self._num_steps, self._has_core = num_columns, num_steps, has_core
        self._obs = copy_obs(empty_obs)
        """[B, ...]: what each column is to decide on, or decided on."""
        self._acting = np.zeros(0, np.int64)
        """Columns that are to act, in the order in which their actions are given."""
        self._is_waiting = np.zeros(num_columns, np.bool_)
        """bool[B]: the same."""
        core_size = policy.core_state.shape[1]
        self._cores = np.zeros((num_columns, core_size), np.float32)
        """What the core's state was before each column's last decision."""
        zeros = np.zeros(num_columns, np.float32)
        self._last = PolicyOutput(empty_actions(action, num_columns), zeros, zeros.copy())
        """Each column's last decision."""
        self._count = np.zeros(num_columns, np.int64)
        """int64[B]: rows recorded since the last batch."""
        self._recorder = None
        if record is not None:
            self._recorder = make_recorder(
                record,
                num_steps,
                self._obs,
                action,
                core_size,
                values_of=self._values_of,
                values_at_once=True,
            )

    @property
    def is_full(self) -> bool:
        """Whether a column has its T rows."""
        return bool(self._count.max() >= self._num_steps)

    def act(self, *, deterministic: bool = False) -> Array:
        """Decide for the columns that are to act: actions [N, ...]."""
        columns = self._acting
        if not len(columns):
            return self._last.actions[:0]
        if self._has_core:
            output = self._act_through_core(columns, deterministic)
        else:
            output = self.policy.act(take_obs(self._obs, columns), deterministic=deterministic)
        if output.q_taken is not None and self._last.q_taken is None:
            self._last = self._last._replace(q_taken=np.zeros(self._num_columns, np.float32))
        for last, new in zip(self._last, output, strict=True):
            if last is not None:
                last[columns] = new
        self._is_waiting[columns] = False
        return output.actions

    def take(self, turns: Turns) -> None:
        """Record the decisions that are answered; keep what is to be decided next."""
        columns = turns.answered
        if len(columns):
            if self._recorder is not None:
                where = self._count[columns], columns
                obs, decided = take_obs(self._obs, columns), _rows(self._last, columns)
                self._recorder.decided(where, obs, decided, self._cores[columns])
                self._recorder.answered(where, turns.rewards, turns.terminated, turns.truncated, True, turns.final_obs)
                self._count[columns] += 1
            if self._has_core:
                ended = np.zeros(self._num_columns, np.bool_)
                ended[columns] = turns.terminated | turns.truncated
                self.policy.reset_core(ended)
        self._acting = turns.acting
        self._is_waiting[turns.acting] = True
        put_obs(self._obs, turns.acting, turns.obs)

    def finish(self, **metadata: Any) -> Any:
        """The rows since the last call; metadata: weights_version, worker_index, incarnation, ..."""
        assert self._recorder is not None
        batch = self._recorder.finish(self._following, **metadata)
        self._count[:] = 0
        return batch

    def forget(self) -> None:
        """New games begin everywhere: decisions that are open stay unanswered."""
        self._acting = np.zeros(0, np.int64)
        self._is_waiting[:] = False
        self._count[:] = 0
        if self._recorder is not None:
            self._recorder.drop()
        if self._has_core and len(self.policy.core_state) == self._num_columns:
            self.policy.reset_core(np.ones(self._num_columns, np.bool_))

    def _act_through_core(self, columns: Array, deterministic: bool) -> PolicyOutput:
        """All rows pass through the core; those that do not act keep the state that they had."""
        before = np.array(self.policy.core_state)
        if len(before) != self._num_columns:  # rows appear with the first decision
            before = np.zeros_like(self._cores)
        output = self.policy.act(self._obs, deterministic=deterministic)
        if len(columns) < self._num_columns:
            after = np.array(self.policy.core_state)
            others = ~self._is_waiting
            after[others] = before[others]
            self.policy.core_state = after
        self._cores[columns] = before[columns]
        return _rows(output, columns)

    def _following(self, batch: Any) -> tuple[tuple[Array, Array], Array]:
        """The last rows that no end follows, and the values of what comes after them."""
        columns = np.flatnonzero(self._count)
        last = self._count[columns] - 1
        goes_on = ~(batch.terminated[last, columns] | batch.truncated[last, columns])
        columns, last = columns[goes_on], last[goes_on]
        values = self._last.values[columns]  # of decisions that are not answered yet
        waiting = np.flatnonzero(self._is_waiting[columns])
        if len(waiting):
            undecided = columns[waiting]
            values[waiting] = self._values_of(undecided, take_obs(self._obs, undecided))
        return (last, columns), values

    def _values_of(self, columns: Array, obs: Obs) -> Array:
        """V of observations [K, ...] that these columns have now: float32[K]."""
        if self._has_core:
            return values_in_columns(self.policy, self._obs, columns, obs)
        return self.policy.values(obs)


def columns_of(
    config: dict[str, Any],
    plan: MultiAgentPlan,
    env: MultiAgentVectorEnv,
    make_policy: MakePolicy,
    seeds: Sequence[np.random.SeedSequence],
    record: Record | None = None,
) -> dict[str, PolicyColumns]:
    """Of every policy, which have no weights yet; record: as what batches those that are trained, None for nobody."""
    columns: dict[str, PolicyColumns] = {}
    for name, seed in zip(plan.policies, seeds, strict=True):
        settings, spaces = plan.settings(config, name), plan.policies[name].spaces
        num_columns = len(env.columns[name])
        columns[name] = PolicyColumns(
            make_policy(settings, spaces, seed),
            env.empty_obs(name, num_columns),
            spaces.action,
            num_columns,
            has_core=has_core(settings["policy"]),
            record=record if name in plan.trained else None,
            num_steps=config["rollout_length"] if record is not None else 0,
        )
    return columns


def _rows(output: PolicyOutput, rows: Array) -> PolicyOutput:
    actions, log_probs, values, q_taken = output
    return PolicyOutput(actions[rows], log_probs[rows], values[rows], None if q_taken is None else q_taken[rows])


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
        copies = Copies.of(config, "rollout", worker_index)
        self._env = games_of(
            config,
            plan,
            config["num_envs_per_worker"],
            copies,
            seed=env_seed,
            game_id=(worker_index, incarnation),
        )
        self._versions = dict.fromkeys(plan.policies, -1)
        self._columns = columns_of(config, plan, self._env, make_policy, policy_seeds, record)
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


class GamePlayer(Closing):
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
            copies = Copies.of(self._settings, "evaluation")
            self._envs[num_copies] = games_of(self._settings, self._plan, num_copies, copies)
        env = self._envs[num_copies]
        policy_seed, env_seed = seed_sequences(self._settings["seed"], "evaluation", PURPOSE_INDICES[purpose])
        seeds = policy_seed.spawn(len(self._plan.policies))
        columns = columns_of(self._settings, self._plan, env, self._make_policy, seeds)
        by_policy = split_weights(weights)
        for name, each in columns.items():
            each.policy.set_weights(by_policy[name])
            use_greedy_epsilon(each.policy, self._plan.settings(self._settings, name))
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

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
        self._envs.clear()
