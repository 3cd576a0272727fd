"""Hindsight, from a real environment through recorder and replay, against a reference that walks whole histories."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlplat.algorithms.dqn import DQNConfig
from rlplat.errors import ConfigError
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.interfaces import Array, PolicyOutput
from rlplat.rl.replay.buffer import ReplayBuffer, ReplayShape, make_replay
from rlplat.rl.replay.hindsight import GoalRewards, Hindsight, require_goals
from rlplat.rl.replay.step_store import GAP, TERMINATED
from rlplat.rl.sampling.recorders import make_recorder
from rlplat.rl.sampling.sample_batch import TransitionBatch
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from tests.rl.replay.invariants import check_buffer

DISCOUNT = 0.9
NUMBERS = itertools.count(1)
"""Every state of every environment here has a number of its own, which is what it achieves."""
EPISODES: list[dict[str, Any]] = []


class Numbered(gymnasium.Env[dict[str, Any], Any]):
    """Goals and rewards mean nothing, but all can be told apart. Ends at random, for good or cut off, whatever the
    goal; does not tell when it would terminate."""

    def __init__(self, mean_length: float = 6.0) -> None:
        self._share = 1.0 / mean_length
        one = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.observation_space = spaces.Dict({"observation": one, "achieved_goal": one, "desired_goal": one})
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode: dict[str, Any] = {
            "goal": -float(self.np_random.integers(1, 6)), "states": [float(next(NUMBERS))], "terminated": [],
        }  # fmt: skip
        EPISODES.append(self.episode)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        number, goal = float(next(NUMBERS)), self.episode["goal"]
        terminated = bool(self._terminates(number, goal))
        self.episode["states"].append(number)
        self.episode["terminated"].append(terminated)
        cut = not terminated and self.np_random.random() < self._share / 2
        return self._obs(), float(reward_of(number, goal)), terminated, bool(cut), {}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        return reward_of(achieved_goal[..., 0], desired_goal[..., 0])

    def _terminates(self, number: float, goal: float) -> bool:
        return bool(self.np_random.random() < self._share / 2)

    def _obs(self) -> dict[str, Any]:
        now = np.array([self.episode["states"][-1]])
        return {"observation": now, "achieved_goal": now, "desired_goal": np.array([self.episode["goal"]])}


class Telling(Numbered):
    """Terminates as its goal says, and tells so."""

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        return ends_of(achieved_goal[..., 0], desired_goal[..., 0])

    def _terminates(self, number: float, goal: float) -> bool:
        return bool(ends_of(number, goal))


class OneByOne(Telling):
    """Many goals at once give one number, as in PointMaze's compute_terminated."""

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> float:
        assert info == {}
        return float(reward_of(achieved_goal.sum(), desired_goal.sum()))

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> bool:
        return bool(ends_of(achieved_goal.sum(), desired_goal.sum()))


def reward_of(achieved: Any, desired: Any) -> Any:
    return (3 * achieved + 2 * desired) % 7 - 3


def ends_of(achieved: Any, desired: Any) -> Any:
    return (achieved + 3 * desired) % 8 == 0


class Played:
    """Environments in the lanes of a replay."""

    def __init__(self, env: type, strategy: str, *, n: int = 1, lane: int = 40, lanes: int = 2, **settings: Any):
        self.env: Any = None
        self.num_lanes, self.name, self.settings = lanes, f"{__name__}:{env.__name__}", settings
        self.begin()
        hindsight = Hindsight(strategy, 0.8, self.name, {})  # type: ignore[arg-type]
        self.shape = ReplayShape(
            capacity=lane * lanes, num_lanes=lanes, n_step=n, discount=DISCOUNT, alpha=0.0, clip_rewards=False,
            hindsight=hindsight,
        )  # fmt: skip
        self.replay = self.make()

    def make(self) -> ReplayBuffer:
        made = make_replay(self.shape, self.env.spec.obs, self.env.spec.action, np.random.SeedSequence(5))
        assert isinstance(made, ReplayBuffer)
        return made

    def begin(self) -> None:
        """A worker with new environments: what the old ones were at breaks off."""
        self.close()
        self.env = make_vector_env(self.name, self.num_lanes, seed=1 + len(EPISODES), env_kwargs=self.settings)
        self.obs, self.recorder = self.env.reset(), None

    def close(self) -> None:
        if self.env is not None:
            self.env.close()

    def play(self, num_steps: int) -> TransitionBatch:
        """Into the replay."""
        before = self.recorder
        self.recorder = make_recorder(
            "transitions_and_ends", num_steps, self.obs, self.env.spec.action, 0,
            values_of=lambda columns, obs: np.zeros(len(columns)), values_at_once=False,
        )  # fmt: skip
        if before is not None:
            self.recorder.continues, self.recorder.number = before.continues, before.number
        nothing = np.zeros(self.num_lanes, np.float32)
        for t in range(num_steps):
            output = PolicyOutput(np.zeros(self.num_lanes, np.int64), nothing, nothing)
            self.recorder.decided(t, self.obs, output, None)
            step = self.env.step(output.actions)
            self.recorder.answered(t, step.rewards, step.terminated, step.truncated, step.valid, step.final_obs)
            self.obs = step.obs
        batch: TransitionBatch = self.recorder.finish(lambda batch: (0, nothing))
        self.replay.add(batch, 0)
        return batch


def check_draws(played: Played, num_draws: int = 600) -> Counter[tuple[str, int, int]]:
    """Every draw is what the history says -> how often (what, t, u) came, u that of the goal."""
    store, n, strategy = played.replay.store, played.shape.n_step, played.shape.hindsight.strategy  # type: ignore[union-attr]
    tells = played.name.rpartition(":")[2] != "Numbered"
    place = {number: (episode, t) for episode in EPISODES for t, number in enumerate(episode["states"])}
    rows = store.rows_in_use()
    stored = set(store.get_leaf("achieved_goal", rows[store.kinds[rows] != GAP])[:, 0].tolist())
    drawn = played.replay.sample(num_draws)
    assert isinstance(drawn.obs, dict) and isinstance(drawn.next_obs, dict)
    seen: Counter[tuple[str, int, int]] = Counter()
    for i in range(num_draws):
        number, goal = float(drawn.obs["observation"][i, 0]), float(drawn.obs["desired_goal"][i, 0])
        assert drawn.next_obs["desired_goal"][i, 0] == goal
        episode, t = place[number]
        states = episode["states"]
        there = [u for u in range(len(states)) if states[u] in stored]  # in order, and without a gap
        assert there == list(range(there[0], there[-1] + 1))
        if goal < 0:
            assert goal == episode["goal"]
            seen["kept", t, 0] += 1
        else:
            source, u = place[goal]
            assert source is episode, "a goal of another episode"
            allowed = {
                "future": range(t + 1, there[-1] + 1),
                "final": [there[-1]],
                "episode": range(there[0] + 1, there[-1] + 1),
            }[strategy]
            assert u in allowed, (strategy, t, u, there)
            seen["other", t, u] += 1
        total, discount = 0.0, 1.0
        for k in range(n):
            total += discount * reward_of(states[t + 1 + k], goal)
            discount *= DISCOUNT
            recorded = episode["terminated"][t + k]
            if ends_of(states[t + 1 + k], goal) if tells else recorded:
                discount = 0.0
                break
            if t + 2 + k == len(states):  # it ended there in truth, which says nothing about this goal
                break
        assert drawn.returns[i] == pytest.approx(total, abs=1e-5)
        assert drawn.discounts[i] == pytest.approx(discount, abs=1e-6)
        if discount:
            assert drawn.next_obs["observation"][i, 0] == states[t + 1 + k]
            assert drawn.next_obs["achieved_goal"][i, 0] == states[t + 1 + k]
    return seen


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("env", [Numbered, Telling, OneByOne])
def test_draws_are_what_the_history_says(env: type, n: int, strategy: str) -> None:
    """Through several turns of the ring, with gaps, episodes of one step and some longer than a lane."""
    EPISODES.clear()
    rng = np.random.default_rng([n, len(strategy)])
    played = Played(env, strategy, n=n, mean_length=4.0)
    for k in range(14):
        if k in (4, 9):
            played.begin()
        played.play(int(rng.choice([1, 2, 5, 13, 19])))
        if len(played.replay):
            seen = check_draws(played, 80)
        check_buffer(played.replay)
    assert {what for what, _, _ in seen} == {"kept", "other"}
    played.close()


def test_an_episode_longer_than_its_lane_keeps_to_what_is_there() -> None:
    EPISODES.clear()
    for strategy in ("future", "final", "episode"):
        played = Played(Numbered, strategy, lane=12, lanes=1, mean_length=1e9)
        for num_steps in (2, 3, 5, 5, 5):
            played.play(num_steps)
            check_draws(played, 200)
        played.close()


def test_goals_are_drawn_evenly_from_the_future() -> None:
    """8 states after the first, so 8 goals for t = 0, 7 for t = 1; 0.8 of all transitions have another goal."""
    EPISODES.clear()
    played = Played(Numbered, "future", lanes=1, mean_length=1e9)
    played.play(9)  # eight windows are complete
    assert len(played.replay) == 8
    seen = check_draws(played, 4_000)
    others = sum(count for (what, _, _), count in seen.items() if what == "other")
    assert abs(others - 0.8 * 4_000) < 6 * np.sqrt(4_000 * 0.8 * 0.2)
    for t in range(8):
        expected = 400 / (8 - t)
        for u in range(t + 1, 9):
            assert abs(seen["other", t, u] - expected) < 6 * np.sqrt(expected)
    played.close()


def test_each_goal_has_its_own_end() -> None:
    """A step that ended its episode does not end it for other goals, and bootstraps from the last observation; one that
    went on may have reached another goal."""
    EPISODES.clear()
    played = Played(Telling, "future", mean_length=4.0)
    for _ in range(4):
        played.play(9)
    drawn = played.replay.sample(1_000)
    had_ended = played.replay.store.kinds[drawn.rows] == TERMINATED
    ends = drawn.discounts == 0
    assert (had_ended & ~ends).any() and (~had_ended & ends).any() and (had_ended & ends).any()
    played.close()


def test_resumes_with_the_same_draws() -> None:
    EPISODES.clear()
    played = Played(Telling, "future", n=3)
    for _ in range(6):
        played.play(11)
    again = played.make()
    again.set_state(played.replay.get_state())
    for _ in range(3):
        one, other = played.replay.sample(64), again.sample(64)
        assert isinstance(one.obs, dict) and isinstance(other.obs, dict)
        np.testing.assert_array_equal(one.obs["desired_goal"], other.obs["desired_goal"])
        np.testing.assert_array_equal(one.returns, other.returns)
        again.add(played.play(5), 0)
    played.close()


@pytest.mark.parametrize("num_before", [1, 4, 9])
def test_a_replay_that_is_taken_back_draws_goals_of_episodes_that_it_has(num_before: int) -> None:
    played = Played(Numbered, "future", n=2)
    for _ in range(num_before):
        played.play(7)
    state = played.replay.get_state()
    for _ in range(3):
        played.play(7)
    played.replay.set_state(state)
    played.begin()
    for _ in range(6):
        played.play(7)
        check_draws(played)
    played.close()


class WithoutReward(Numbered):
    compute_reward = None  # type: ignore[assignment]


class Boxed(WithoutReward):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)


class WithAnotherReward(Numbered):
    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        return super().compute_reward(achieved_goal, desired_goal, info) - 0.5


class WithInfo(Numbered):
    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        return info["effort"]


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (WithoutReward, "has no compute_reward"),
        (WithAnotherReward, r"compute_reward says .* for which step\(\) gave"),
        (WithInfo, r"compute_reward reads info\['effort'\], and a replay keeps no info"),
    ],
)
def test_what_cannot_tell_its_rewards_is_refused(env: type, says: str) -> None:
    with pytest.raises(ConfigError, match=f"hindsight cannot relabel .*{says}"):
        GoalRewards(f"{__name__}:{env.__name__}", {})


class AsLongAsItsGoal(Numbered):
    """What `abs(achieved - desired)` makes of goals of one number: rewards of shape (1,)."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}), *rest

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        return -np.abs(achieved_goal - desired_goal)


def test_rewards_of_goals_of_one_number_are_numbers() -> None:
    """numpy 2.4 makes no float of an array with an axis."""
    goals = np.array([[1.0], [5.0]]), np.array([[3.0], [4.0]])
    assert GoalRewards(f"{__name__}:AsLongAsItsGoal", {}).rewards(*goals).tolist() == [-2.0, -1.0]


VECTOR = ObsSpec("vector", (2,), "float32")
GOALS = {"observation": VECTOR, "achieved_goal": VECTOR, "desired_goal": VECTOR}


@pytest.mark.parametrize(
    ("settings", "obs", "says"),
    [
        ({"prioritized": True}, GOALS, "set prioritized to false"),
        ({"policy": {"core": "lstm"}}, GOALS, "not sequences: set policy.core to none"),
        ({}, {"observation": VECTOR, "achieved_goal": VECTOR}, "needs a Dict of observation, achieved_goal"),
        (
            {},
            GOALS | {"desired_goal": ObsSpec("vector", (3,), "float32")},
            "are to be the same Box or MultiBinary",
        ),
    ],
)
def test_what_does_not_go_with_hindsight_is_refused(
    settings: dict[str, Any], obs: dict[str, ObsSpec], says: str
) -> None:
    config = DQNConfig(env="Some", hindsight={"goal_selection_strategy": "final"}, **settings)
    with pytest.raises(ConfigError, match=f"hindsight.goal_selection_strategy=final: .*{says}"):
        require_goals(config, SpaceSpec(obs, ActionSpec("discrete", n=2)))
    require_goals(DQNConfig(env="Some", **settings), SpaceSpec(obs, ActionSpec("discrete", n=2)))
