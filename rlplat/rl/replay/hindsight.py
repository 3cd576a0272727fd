"""Hindsight experience replay, HER (Andrychowicz et al. 2017, arXiv:1707.01495): most transitions are drawn as if the
goal had been one that the episode did achieve later.

    k of k + 1 transitions     s_t, a_t, s_t+1 with another goal g:  reward = compute_reward(achieved_t+1, g)
    the others                 as they were recorded

    future     g = achieved_u, u drawn from t + 1, ..., T           T: the last observation of the episode
    final      g = achieved_T
    episode    g = achieved_u, u drawn from 1, ..., T

Goals are chosen when a transition is drawn, anew each time. Of an episode that is not over yet, or of which the oldest
steps are gone, what the replay holds is drawn from.

Such environments (gymnasium-robotics' GoalEnv) observe a Dict with `achieved_goal` and `desired_goal`, and promise, for
every step

    reward == env.compute_reward(obs["achieved_goal"], obs["desired_goal"], info)
    terminated == env.compute_terminated(obs["achieved_goal"], obs["desired_goal"], info)

the second of which many leave out. `obs` is what came of the step. A replay keeps no `info`: an empty one is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.envs.copies import Copies
from rlplat.rl.envs.make import make_single_env
from rlplat.rl.envs.names import resolve_env
from rlplat.rl.interfaces import Array
from rlplat.rl.replay.step_store import GAP, TERMINATED, StepStore
from rlplat.rl.sampling.recorders import Record
from rlplat.rl.spaces import SpaceSpec
from rlplat.section import Count, Section

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
PROBES = 16
"""Steps with random actions on which the promises above are tried."""


class GoalRewards:
    """Makes one environment, which is only asked; ConfigError where it does not keep its promises.

    rewards, terminated = GoalRewards("FetchReach-v4", {})(achieved, desired)       # [N, ...] -> float32[N], bool[N]
    """

    def __init__(self, env: str, env_kwargs: dict[str, Any], copies: Copies = Copies()) -> None:  # noqa: B008
        self._name = str(env)
        self._env = make_single_env(resolve_env(env), env_kwargs, copies)
        compute_reward = self._method("compute_reward")
        if compute_reward is None:
            raise self._refused("it has no compute_reward(achieved_goal, desired_goal, info)")
        self._compute_reward, self._compute_terminated = compute_reward, self._method("compute_terminated")
        self._in_batches: dict[Callable[..., Any], bool] = {}
        self._try_out()

    @property
    def tells_terminated(self) -> bool:
        """Whether the environment says which steps would have terminated the episode."""
        return self._compute_terminated is not None

    def rewards(self, achieved: Array, desired: Array) -> Array:
        """achieved, desired: [N, ...] -> float32[N]"""
        return self._ask(self._compute_reward, achieved, desired).astype(np.float32)

    def terminated(self, achieved: Array, desired: Array) -> Array:
        """-> bool[N]; only where `tells_terminated`."""
        assert self._compute_terminated is not None
        return self._ask(self._compute_terminated, achieved, desired).astype(np.bool_)

    def _ask(self, method: Callable[..., Any], achieved: Array, desired: Array) -> Array:
        if self._in_batches[method]:
            return np.asarray(method(achieved, desired, [{}] * len(achieved)))
        return self._by_rows(method, achieved, desired)

    @staticmethod
    def _by_rows(method: Callable[..., Any], achieved: Array, desired: Array) -> Array:
        # item(): a goal of one number may make a reward of shape (1,).
        alone = [np.asarray(method(a, d, {})).item() for a, d in zip(achieved, desired, strict=True)]
        return np.array(alone, np.float64)

    def _try_out(self) -> None:
        """Random steps: whether recorded rewards are what `compute_reward` says, and whether it takes many at once."""
        env, achieved, desired, rewards, terminated = self._env, [], [], [], []
        env.action_space.seed(0)
        env.reset(seed=0)
        for _ in range(PROBES):
            obs, reward, ends, cut, _ = env.step(env.action_space.sample())
            achieved.append(np.array(obs[ACHIEVED]))
            desired.append(np.array(obs[DESIRED]))
            rewards.append(float(np.asarray(reward).item()))
            terminated.append(bool(ends))
            if ends or cut:
                env.reset()
        goals = np.stack(achieved), np.stack(desired)
        self._require_same("compute_reward", self._compute_reward, goals, rewards)
        if self._compute_terminated is not None:
            self._require_same("compute_terminated", self._compute_terminated, goals, terminated)

    def _require_same(
        self, name: str, method: Callable[..., Any], goals: tuple[Array, Array], recorded: list[Any]
    ) -> None:
        try:
            alone = self._by_rows(method, *goals)
        except KeyError as error:
            raise self._refused(f"its {name} reads info[{error}], and a replay keeps no info") from error
        except Exception as error:
            raise self._refused(f"its {name} raised {type(error).__name__}: {error}") from error
        different = np.flatnonzero(~np.isclose(alone, np.array(recorded, np.float64), rtol=1e-4, atol=1e-5))
        if len(different):
            at = int(different[0])
            raise self._refused(
                f"its {name} says {alone[at]:g} of a step for which step() gave {float(recorded[at]):g}; they are to "
                "agree, from the goals alone"
            )
        try:
            together = np.asarray(method(*goals, [{}] * len(recorded)), np.float64)
        except Exception:  # it takes one at a time
            together = np.zeros(())
        self._in_batches[method] = together.shape == alone.shape and np.allclose(together, alone)

    def _method(self, name: str) -> Callable[..., Any] | None:
        """The environment's, or that of the outermost wrapper that has one."""
        env = self._env
        while env is not None:
            found = getattr(env, name, None)
            if found is not None:
                method: Callable[..., Any] = found
                return method
            env = getattr(env, "env", None)
        return None

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(
            f"hindsight cannot relabel {self._name}: {why}; mend the environment, or leave "
            "hindsight.goal_selection_strategy at none"
        )


Strategy = Literal["none", "future", "final", "episode"]
OPEN = np.iinfo(np.int64).max
"""In the place of the last row of an episode that is not over."""


class HindsightConfig(Section):
    """Hindsight experience replay, for environments with goals (docs/hindsight.md)."""

    goal_selection_strategy: Strategy = "none"
    """Which achieved goals take the place of the desired one: a later one of the episode, its last, or any; none: every
    transition keeps its goal."""
    n_sampled_goal: Count = 4
    """k: k of k + 1 transitions that are drawn get another goal."""


@dataclass(frozen=True)
class Hindsight:
    """How a replay relabels, in whatever process it is."""

    strategy: Strategy
    share: float
    """Of the transitions that get another goal."""
    env: str
    env_kwargs: dict[str, Any]
    copies: Copies = Copies()  # noqa: RUF009
    """Which of a run's environments is asked for rewards."""


def hindsight_of(config: Any) -> Hindsight | None:
    """config: of an algorithm with a section `hindsight`."""
    strategy, k = config.hindsight.goal_selection_strategy, config.hindsight.n_sampled_goal
    return (
        None
        if strategy == "none"
        else Hindsight(strategy, k / (k + 1), config.env, config.env_kwargs, Copies.of(config.model_dump(), "goals"))
    )


def record_of(config: Any) -> Record:
    """What rollout workers record: hindsight needs to know where an episode ended, wherever that was."""
    return "transitions" if hindsight_of(config) is None else "transitions_and_ends"


def require_goals(config: Any, spaces: Any) -> None:
    """In the driver, before any actor starts: ConfigError where hindsight is asked for and cannot be had.

    spaces: a SpaceSpec, or the plan of several agents.
    """
    if hindsight_of(config) is None:
        return
    problem, obs = "", getattr(spaces, "obs", None)
    if getattr(config, "prioritized", False):
        problem = "a priority is of the goal that was pursued, not of another: set prioritized to false"
    elif config.policy.core != "none":
        problem = "it relabels single transitions, not sequences: set policy.core to none"
    elif not isinstance(spaces, SpaceSpec):
        problem = "it is for one agent"
    elif not isinstance(obs, dict) or not {ACHIEVED, DESIRED} <= obs.keys():
        problem = (
            f"{config.env} observes {spaces}, and it needs a Dict of observation, {ACHIEVED} and {DESIRED}, "
            "each one array (gymnasium-robotics' GoalEnv)"
        )
    elif obs[ACHIEVED] != obs[DESIRED] or obs[ACHIEVED].kind not in ("vector", "multi_binary"):
        problem = f"{ACHIEVED} is {obs[ACHIEVED]} and {DESIRED} {obs[DESIRED]}: both are to be the same Box or "
        problem += "MultiBinary"
    if problem:
        raise ConfigError(f"hindsight.goal_selection_strategy={config.hindsight.goal_selection_strategy}: {problem}")


class EpisodeSpans:
    """Which rows of a store are of one episode: its steps, and its last observation."""

    def __init__(self, store: StepStore) -> None:
        self._store = store
        self._first = np.zeros(len(store.stamps), np.int64)
        self._last = np.full(len(store.stamps), OPEN, np.int64)
        self._open = np.zeros(store.num_lanes, np.int64)  # stamp where the newest episode begins
        self._seen = np.zeros(store.num_lanes, np.int64)  # stamps up to here are done

    def begin_anew(self) -> None:
        """All that the store holds has come at once, from a checkpoint."""
        self._open[:] = self._seen[:] = 0
        self.extend()

    def extend(self) -> None:
        """Rows have come since the last call."""
        for lane in np.flatnonzero(self._seen < self._store.heads):
            self._extend_lane(int(lane))

    def first_and_last(self, rows: Array) -> tuple[Array, Array]:
        """Stamps of the first and the last row of these rows' episodes that the store holds."""
        store = self._store
        lanes = rows // store.lane_capacity
        return (
            np.maximum(self._first[rows], store.tails[lanes]),
            np.minimum(self._last[rows], store.heads[lanes] - 1),
        )

    def _extend_lane(self, lane: int) -> None:
        store, base = self._store, lane * self._store.lane_capacity
        tail, head = int(store.tails[lane]), int(store.heads[lane])
        stamps = np.arange(max(tail, int(self._seen[lane])), head)
        rows = base + stamps % store.lane_capacity
        begins = stamps[store.is_start[rows] | (store.kinds[rows] == GAP)]
        spans = np.concatenate([self._open[lane : lane + 1], begins])
        self._first[rows] = spans[np.searchsorted(begins, stamps, side="right")]
        self._last[rows] = OPEN
        for start, after in zip(spans[:-1].tolist(), begins.tolist(), strict=True):
            ended = np.arange(max(start, tail), after)
            self._last[base + ended % store.lane_capacity] = after - 1
        self._open[lane], self._seen[lane] = spans[-1], head


class Relabeller:
    """Gives transitions that were drawn other goals."""

    def __init__(self, hindsight: Hindsight, store: StepStore) -> None:
        """Makes an environment for its rewards; ConfigError where it cannot tell them."""
        self._hindsight, self._store = hindsight, store
        self._rewards = GoalRewards(hindsight.env, hindsight.env_kwargs, hindsight.copies)
        self.spans = EpisodeSpans(store)

    def relabel(self, drawn: Any, rng: np.random.Generator) -> None:
        """Changes a share of a `Minibatch` in place: desired goals, returns, discounts, and where the episode had ended
        the observation at the end of the window."""
        store = self._store
        chosen = np.flatnonzero(rng.random(len(drawn.rows)) < self._hindsight.share)
        rows = drawn.rows[chosen]
        first, last = self.spans.first_and_last(rows)
        now, num_steps = store.stamps[rows], store.num_steps[rows]
        # What a checkpoint without hindsight recorded lacks the last observations of episodes that terminated.
        is_whole = now + num_steps <= last
        chosen, rows, num_steps = chosen[is_whole], rows[is_whole], num_steps[is_whole]
        if not len(chosen):
            return
        goals = store.get_leaf(ACHIEVED, self._goal_rows(rows, first[is_whole], last[is_whole], rng))

        steps = np.arange(store.n_step)
        is_used = steps < num_steps[:, None]  # [K, n]
        which, k = np.nonzero(is_used)
        achieved, desired = store.get_leaf(ACHIEVED, store.ahead(rows[which], k + 1)), goals[which]
        rewards, ends = np.zeros(is_used.shape, np.float32), np.zeros(is_used.shape, np.bool_)
        rewards[is_used] = store.learnt_rewards(self._rewards.rewards(achieved, desired))
        if self._rewards.tells_terminated:
            ends[is_used] = self._rewards.terminated(achieved, desired)
        else:
            ends[is_used] = store.kinds[store.ahead(rows[which], k)] == TERMINATED
        is_used[:, 1:] &= ~np.logical_or.accumulate(ends, axis=1)[:, :-1]
        used = is_used.sum(axis=1)
        terminated = ends[np.arange(len(rows)), used - 1]

        drawn.returns[chosen] = store.discounted(rewards * is_used)
        had_ended = drawn.discounts[chosen] == 0  # the replay gave no observation after it
        drawn.discounts[chosen] = store.powers[used] * ~terminated
        final = store.get_obs(store.ahead(rows[had_ended], used[had_ended]))
        assert isinstance(final, dict)
        for path, leaf in final.items():
            drawn.next_obs[path][chosen[had_ended]] = leaf
        drawn.obs[DESIRED][chosen] = drawn.next_obs[DESIRED][chosen] = goals

    def _goal_rows(self, rows: Array, first: Array, last: Array, rng: np.random.Generator) -> Array:
        """int64[K]: where the goals were achieved, for rows of episodes from `first` to `last`."""
        store = self._store
        now = store.stamps[rows]
        if self._hindsight.strategy == "final":
            goals = last
        else:
            earliest = now if self._hindsight.strategy == "future" else first
            goals = rng.integers(earliest + 1, last + 1)
        return rows - rows % store.lane_capacity + goals % store.lane_capacity
