"""What a worker writes down of games that are written by hand: rows, rewards, ends, successors' values, validity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import EnvError
from rlplat.rl.algorithm_config import PolicyConfig
from rlplat.rl.multi_agent.policy_map import MultiAgentConfig, plan_multi_agent
from rlplat.rl.multi_agent.rollout_worker import MultiAgentRolloutWorker
from rlplat.rl.multi_agent.vector_env import AgentEpisode
from rlplat.rl.sampling.returns import gae
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.sampling.worker_group import RolloutWorkers
from tests.rl.multi_agent.fixture_games import make_table_policy

HERE = "tests.rl.multi_agent.fixture_games"


def settings(env: str, *, length: int = 8, copies: int = 1, core: str = "none", **multi_agent: Any) -> dict[str, Any]:
    kwargs = multi_agent.pop("env_kwargs", {})
    return {
        "env": f"{HERE}:{env}",
        "env_kwargs": kwargs,
        "vectorization": "auto",
        "seed": 0,
        "num_envs_per_worker": copies,
        "num_rollout_workers": 0,
        "rollout_length": length,
        "stop": {"env_steps": 1000},
        "policy": PolicyConfig(core=core).model_dump(),
        "multi_agent": MultiAgentConfig.model_validate(multi_agent).model_dump(),
    }


def worker_of(config: dict[str, Any], **options: Any) -> MultiAgentRolloutWorker:
    plan = plan_multi_agent(config)
    assert plan is not None
    worker = MultiAgentRolloutWorker(config, plan, 0, 0, None, make_table_policy, **options)
    for name in plan.policies:
        worker.set_weights(name, 3, {"scale": np.ones(1, np.float32)})
    return worker


@pytest.fixture
def rolled(request: Any) -> Iterator[Any]:
    workers: list[MultiAgentRolloutWorker] = []

    def roll(config: dict[str, Any], **options: Any) -> MultiAgentRolloutWorker:
        workers.append(worker_of(config, **options))
        return workers[-1]

    yield roll
    for worker in workers:
        worker.close()


def rows(batch: SampleBatch, column: int) -> list[tuple[float, ...]]:
    """(time, reward, terminated, truncated, value, next value) of a column's valid rows, which come first."""
    num = int(batch.valid[:, column].sum())
    assert batch.valid[:num, column].all()
    obs = next(iter(batch.obs.values())) if isinstance(batch.obs, dict) else batch.obs
    return [
        (
            float(obs[t, column, 1]),
            float(batch.rewards[t, column]),
            bool(batch.terminated[t, column]),
            bool(batch.truncated[t, column]),
            float(batch.values[t, column]),
            float(batch.next_values[t, column]),
        )
        for t in range(num)
    ]


def test_parallel_agents_that_die_early(rolled: Any) -> None:
    [batch] = rolled(settings("Dying", length=6)).roll_out()
    batch.check_valid()
    assert batch.shape == (6, 3) and batch.weights_version == 3
    # Time of the observation, reward 10 * number + time of the step; V = 10 * number + time.
    assert rows(batch, 0) == [
        (0, 11, False, False, 10, 11),
        (1, 12, False, False, 11, 12),
        (2, 13, False, False, 12, 13),
        (3, 14, True, False, 13, pytest.approx(10)),  # what follows is the next game: it does not count
        (0, 11, False, False, 10, 11),
        (1, 12, False, False, 11, 12),  # bootstrap: V of what it is to decide on next
    ]
    assert rows(batch, 1)[3] == (3, 24, False, True, 23, 24)  # cut off: V of its last observation
    # c is out after two steps, and there again in the next game: no gap, no row of its absence.
    assert rows(batch, 2) == [
        (0, 31, False, False, 30, 31),
        (1, 32, True, False, 31, pytest.approx(30)),
        (0, 31, False, False, 30, 31),
        (1, 32, True, False, 31, pytest.approx(0)),
    ]
    assert not batch.valid[4:, 2].any() and not batch.rewards[4:, 2].any()
    assert batch.env_steps == 16
    assert (batch.obs[:, :, 0][batch.valid] == np.array([[1, 2, 3]] * 6)[batch.valid]).all()


def test_rows_that_are_not_valid_do_not_change_advantages(rolled: Any) -> None:
    [batch] = rolled(settings("Dying", length=6)).roll_out()
    args = {"discount": 0.9, "gae_lambda": 0.8}
    names = ("rewards", "values", "next_values", "terminated", "truncated")
    whole, _ = gae(*(getattr(batch, name) for name in names), batch.valid, **args)
    alone, _ = gae(*(getattr(batch, name)[:4, 2:] for name in names), **args)
    np.testing.assert_allclose(whole[:4, 2:], alone, rtol=1e-6)


def test_an_agent_that_comes_later(rolled: Any) -> None:
    worker = rolled(settings("Dying", length=4, env_kwargs={"late": True}))
    [batch] = worker.roll_out()
    assert rows(batch, 2) == [(1, 32, True, False, 31, pytest.approx(0))]
    by_agent = {each.agent: each for each in batch.episodes}
    assert (by_agent["c"].episode_return, by_agent["c"].length) == (32.0, 1)


def test_a_turn_is_rewarded_until_the_agent_moves_again(rolled: Any) -> None:
    worker = rolled(settings("Turns", length=3))
    [batch] = worker.roll_out()
    # x moves in turns 0, 2, 4 and gets 1 - 0.5, 1 - 0.5, 1 + 10; y in 1, 3: 1 - 0.5, 1 - 0.5 - 10.
    assert rows(batch, 0) == [
        (0, 0.5, False, False, 10, 12),
        (2, 0.5, False, False, 12, 14),
        (4, 11.0, True, False, 14, pytest.approx(0)),
    ]
    # y got -0.5 before its first turn: part of its return, of no row.
    assert rows(batch, 1) == [
        (1, 0.5, False, False, 21, 23),
        (3, -9.5, True, False, 23, pytest.approx(0)),
    ]
    assert not batch.valid[2, 1] and batch.env_steps == 5
    x, y = batch.episodes
    assert x == AgentEpisode(12.0, 3, "x", (0, 0, 0, 0), 5)
    assert y == AgentEpisode(-9.5, 2, "y", (0, 0, 0, 0), 5)


def test_cut_off_turns_bootstrap_from_the_last_observation(rolled: Any) -> None:
    [batch] = rolled(settings("Turns", length=3, env_kwargs={"is_cut": True})).roll_out()
    assert rows(batch, 0)[2] == (4, 11.0, False, True, 14, 15)
    assert rows(batch, 1)[1] == (3, -9.5, False, True, 23, 25)


@pytest.mark.parametrize(("env", "last_values"), [("Dying", 24), ("Turns", 15 + 25)])
def test_the_last_observation_outlives_a_reset_into_the_same_memory(
    rolled: Any, monkeypatch: pytest.MonkeyPatch, env: str, last_values: float
) -> None:
    from tests.rl.multi_agent import fixture_games

    memory: dict[str, Any] = {}

    def reused(key: str, obs: Any) -> Any:
        memory.setdefault(key, obs.copy())[:] = obs
        return memory[key]

    if env == "Dying":
        fresh = fixture_games.Dying._obs
        monkeypatch.setattr(
            fixture_games.Dying,
            "_obs",
            lambda self, agents: {agent: reused(agent, obs) for agent, obs in fresh(self, agents).items()},
        )
    else:  # one array for both sides
        observe = fixture_games.Turns.observe
        monkeypatch.setattr(fixture_games.Turns, "observe", lambda self, agent: reused("", observe(self, agent)))
    kwargs = {} if env == "Dying" else {"is_cut": True, "mask_in_info": True}
    batches = rolled(settings(env, length=4, env_kwargs=kwargs)).roll_out()
    assert sum(batch.next_values[batch.truncated].sum() for batch in batches) == last_values


def test_a_decision_without_answer_opens_the_next_batch(rolled: Any) -> None:
    worker = rolled(settings("Turns", length=2, env_kwargs={"num_turns": 7}))
    [first], [second], [third] = worker.roll_out(), worker.roll_out(), worker.roll_out()
    # After x's turns 0 and 2 are answered (x is to move: turn 4), y's turn 3 is not.
    assert rows(first, 0) == [(0, 0.5, False, False, 10, 12), (2, 0.5, False, False, 12, 14)]
    assert rows(first, 1) == [(1, 0.5, False, False, 21, 23)]
    assert rows(second, 0) == [(4, 0.5, False, False, 14, 16), (6, 11.0, True, False, 16, pytest.approx(0))]
    assert rows(second, 1) == [(3, 0.5, False, False, 23, 25), (5, -9.5, True, False, 25, pytest.approx(0))]
    assert rows(third, 0) == [(0, 0.5, False, False, 10, 12), (2, 0.5, False, False, 12, 14)]
    assert sum(batch.env_steps for batch in (first, second, third)) == 3 + 4 + 3


@pytest.mark.parametrize("mask_in_info", [False, True])
def test_masks_reach_the_policy_and_the_batch(rolled: Any, mask_in_info: bool) -> None:
    config = settings("Turns", length=3, env_kwargs={"mask_in_info": mask_in_info, "is_cut": True})
    [batch] = rolled(config).roll_out()  # the environment itself asserts that actions are legal
    assert isinstance(batch.obs, dict)
    mask = batch.obs["action_mask"]
    assert mask.dtype == np.bool_
    assert list(batch.obs) == ["obs" if mask_in_info else "observation", "action_mask"]
    for column, turns in ((0, [0, 2, 4]), (1, [1, 3])):
        for t, turn in enumerate(turns):
            assert mask[t, column].tolist() == [action != turn % 3 for action in range(3)]
    assert mask[2, 1].all(), "where a row means nothing, nothing is forbidden"
    assert batch.actions[:, 0].tolist() == [1, 0, 0]


def test_sides_that_differ_have_their_masks_in_their_infos(rolled: Any) -> None:
    """Also the side that does not begin; the game itself fails where an action is illegal."""
    worker = rolled(settings("Different", length=3, env_kwargs={"mask_in_info": True}))
    for begins, batch in enumerate(worker.roll_out()):
        rows = [[action != turn % 3 for action in range(3)] for turn in (begins, begins + 2)]
        assert batch.obs["action_mask"][:2, 0].tolist() == rows


def test_a_mask_that_comes_only_later_ends_the_run(rolled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.rl.multi_agent import fixture_games

    def only_who_moves(self: Any) -> None:
        self.infos = {agent: {} for agent in self.agents}
        self.infos[self.agent_selection] = {"action_mask": self.mask()}

    monkeypatch.setattr(fixture_games.Turns, "_set_infos", only_who_moves)
    worker = rolled(settings("Different", length=3, env_kwargs={"mask_in_info": True}))
    with pytest.raises(EnvError, match=r"step 1 .*'y' has an action mask in its info.*infos\['y'\]\['action_mask'\]"):
        worker.roll_out()


def test_a_mask_may_be_missing_where_an_agent_is_cut_off(rolled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.rl.multi_agent import fixture_games

    right = fixture_games.Turns._set_infos

    def none_at_the_end(self: Any) -> None:
        right(self)
        if self.turn == self.num_turns:
            self.infos = {agent: {} for agent in self.agents}

    monkeypatch.setattr(fixture_games.Turns, "_set_infos", none_at_the_end)
    config = settings("Turns", length=3, env_kwargs={"mask_in_info": True, "is_cut": True})
    [batch] = rolled(config, record="transitions").roll_out()
    assert batch.final_obs["action_mask"].all() and len(batch.final_obs["action_mask"]) == 2


def test_a_mask_without_a_legal_action_is_named(rolled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.rl.multi_agent import fixture_games

    worker = rolled(settings("Turns", length=3))
    monkeypatch.setattr(fixture_games.Turns, "mask", lambda self: np.zeros(3, np.int8))
    monkeypatch.setattr(fixture_games.Turns, "step", _step_without_assertion)
    with pytest.raises(EnvError, match=r"Turns, step 1 .*agent 'y' is to act, but its action mask .* legal action"):
        worker.roll_out()


def _step_without_assertion(self: Any, action: Any) -> None:
    self.turn += 1
    self.agent_selection = "y"


def test_one_batch_per_trained_policy_and_none_of_frozen_ones(rolled: Any) -> None:
    config = settings(
        "Dying",
        length=2,
        copies=2,
        policies={"mine": {}, "frozen": {"trained": False}, "other": {}},
        mapping={"a": "mine", "b": "frozen", "*": "other"},
    )
    worker = rolled(config)
    worker.set_weights("other", 5, {"scale": np.full(1, 2.0, np.float32)})
    mine, other = worker.roll_out()
    assert mine.shape == other.shape == (2, 2)
    assert (mine.obs[..., 0] == 1).all() and (other.obs[..., 0] == 3).all()
    assert (mine.weights_version, other.weights_version) == (3, 5)
    assert (other.values == 2 * (10 * other.obs[..., 0] + other.obs[..., 1])).all()
    batches = worker.roll_out()
    assert [{each.agent for each in batch.episodes} for batch in batches] == [{"a"}, {"c"}]
    assert {each.game for each in batches[0].episodes} == {each.game for each in batches[1].episodes}


def test_a_core_sees_only_its_own_turns(rolled: Any) -> None:
    """The fixture's core counts an agent's decisions since the episode began: V = 10 * number + time + 1000 * count."""
    worker = rolled(settings("Turns", length=2, core="gru", env_kwargs={"num_turns": 7, "is_cut": True}))
    [first], [second] = worker.roll_out(), worker.roll_out()
    assert [row[4] for row in rows(first, 0)] == [10, 1012]
    assert [row[5] for row in rows(first, 0)] == [1012, 2014]
    assert first.core_state.tolist() == [[0], [0]]
    # x's next row is its third decision; y's, made before the first batch was finished, its second.
    assert second.core_state.tolist() == [[2], [1]]
    assert [row[4] for row in rows(second, 0)] == [2014, 3016]
    assert [row[4] for row in rows(second, 1)] == [1023, 2025]
    assert [row[5] for row in rows(second, 1)] == [
        2025,
        3000 + 20 + 7,
    ]  # cut off: with the core as it is then
    [third] = worker.roll_out()
    assert third.core_state.tolist() == [[0], [0]], "a new game begins with an empty core"


def test_swapped_sides(rolled: Any) -> None:
    config = settings(
        "Turns",
        length=3,
        copies=2,
        policies={"main": {}, "old": {"trained": False}},
        mapping={"x": "main", "y": "old"},
        self_play={"opponent": "old"},
    )
    [batch] = rolled(config).roll_out()
    assert batch.shape == (3, 2)
    assert batch.obs["observation"][0, :, 0].tolist() == [1, 2], "x in copy 0, y in copy 1"
    assert [each.agent for each in batch.episodes] == ["x", "y"]


def test_transitions_for_replay(rolled: Any) -> None:
    worker = rolled(settings("Turns", length=2, env_kwargs={"num_turns": 3, "is_cut": True}), record="transitions")
    [first], [second] = worker.roll_out(), worker.roll_out()
    assert not first.continues and second.continues
    # x: turns 0, 2 (cut off with reward 11), y: turn 1 (cut off).
    assert first.valid.tolist() == [[True, True], [True, False]]
    assert first.rewards[first.valid].tolist() == [0.5, -9.5, 11.0]
    assert first.cut_rows.tolist() == [1, 2]  # t * B + b: y's row 0, x's row 1
    assert first.final_obs["observation"].tolist() == [[2, 3], [1, 3]]
    assert (first.q_max[first.valid] == first.q_taken[first.valid] + 1).all()
    assert first.q_max[first.valid].tolist() == [10, 21, 12]
    worker.set_state(worker.get_state())
    [third] = worker.roll_out()
    assert not third.continues and third.obs["observation"][0, 0].tolist() == [1, 0], "new games"


def test_a_fragment_that_was_broken_off_leaves_nothing_behind(rolled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings("Turns", length=3, env_kwargs={"num_turns": 3, "is_cut": True})
    worker, fresh = rolled(config, record="transitions"), rolled(config, record="transitions")
    step, steps = worker._env.step, iter(range(100))

    def interrupted(actions: Any) -> Any:
        turns = step(actions)
        if next(steps) == 4:  # in the second game
            raise KeyboardInterrupt
        return turns

    monkeypatch.setattr(worker._env, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        worker.roll_out()
    [batch], [first] = worker.roll_out(), fresh.roll_out()
    assert not batch.continues
    for name in ("valid", "rewards", "truncated", "cut_rows"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(first, name), err_msg=name)


def test_transitions_in_a_replay_follow_each_other(rolled: Any) -> None:
    """One lane per column; windows reach over batches, whatever the other agents do between."""
    from rlplat.rl.replay.step_store import StepStore

    config = settings("Turns", length=2, env_kwargs={"num_turns": 9})
    worker = rolled(config, record="transitions")
    plan = plan_multi_agent(config)
    assert plan is not None
    spaces = plan.policies["shared"].spaces
    store = StepStore(spaces.obs, spaces.action, num_lanes=2, lane_capacity=30, n_step=1, discount=0.5)
    for _ in range(4):
        [batch] = worker.roll_out()
        store.add(batch, 0)
    for lane, first_turn in ((0, 0), (1, 1)):
        decisions = np.flatnonzero(store.is_complete[lane * 30 : (lane + 1) * 30]) + lane * 30
        turns = store.get_obs(decisions)["observation"][:, 1].tolist()
        assert turns[:4] == [first_turn + 2 * i for i in range(4)]
        following = store.get_obs(store.bootstrap_rows(decisions[:3]))["observation"][:, 1].tolist()
        assert following == turns[1:4]


def test_sample_gives_each_batch_as_a_ref_of_its_own(cluster: None) -> None:
    config = settings("Dying", length=2, mapping={"a": "mine", "*": "other"})
    plan = plan_multi_agent(config)
    worker = rlplat.remote(MultiAgentRolloutWorker).remote(config, plan, 0, 0, None, make_table_policy)
    latest = (0, {"scale": np.ones(1, np.float32)})
    refs = worker.sample.options(num_returns=2).remote(latest, latest)
    mine, other = rlplat.get(refs)
    assert mine.shape == (2, 1) and other.shape == (2, 2)
    assert mine.timing.keys() == {"act_s", "env_s", "weights_s", "sample_s"}
    rlplat.kill(worker)


def test_an_error_names_copy_step_and_actions(rolled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.rl.multi_agent import fixture_games

    worker = rolled(settings("Dying", copies=2))
    monkeypatch.setattr(fixture_games.Dying, "step", lambda self, actions: 1 / 0)
    expected = (
        r"Dying \(copy 0 of 0..1\), step 1 \(step 1 of its game\), actions {'a': 0, 'b': 0, 'c': 0}: step\(\) raised "
        "ZeroDivisionError"
    )
    with pytest.raises(EnvError, match=expected):
        worker.roll_out()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("reward", r"the reward of 'b' is nan"),
        ("observation", r"NaN or infinity in the observation at index .* of agent 'b'"),
        ("missing", r"rewards lack 'b' \(there are a, c\)"),
        ("vanished", r"'b' left `agents` in step\(\) although"),
        ("kept", r"step 3 .*'c' has ended, but is still in `agents`; remove"),
    ],
)
def test_what_is_wrong_is_said(rolled: Any, monkeypatch: pytest.MonkeyPatch, broken: str, message: str) -> None:
    from tests.rl.multi_agent import fixture_games

    worker = rolled(settings("Dying"))
    right = fixture_games.Dying.step

    def wrong(self: Any, actions: Any) -> Any:
        obs, rewards, terminations, truncations, infos = right(self, actions)
        if broken == "reward":
            rewards["b"] = float("nan")
        if broken == "observation":
            obs["b"] = np.full(2, np.nan, np.float32)
        if broken == "missing":
            del rewards["b"]
        if broken == "vanished":
            self.agents.remove("b")
        if broken == "kept":
            dead = self.time >= 2
            obs["c"], rewards["c"], terminations["c"], truncations["c"] = (
                np.zeros(2, np.float32),
                0.0,
                dead,
                False,
            )
            self.agents = ["a", "b", "c"]
        return obs, rewards, terminations, truncations, infos

    monkeypatch.setattr(fixture_games.Dying, "step", wrong)
    with pytest.raises(EnvError, match=message):
        worker.roll_out()


def test_an_agent_may_leave_one_step_late_and_come_back(rolled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Still in `agents` after the step that ends it, gone in the next one, there again in the last one."""
    from tests.rl.multi_agent import fixture_games

    worker = rolled(settings("Dying", length=4))
    right = fixture_games.Dying.step

    def late(self: Any, actions: Any) -> Any:
        assert ("c" in actions) == (self.time in (0, 1, 3))
        if "c" in self.agents and self.time == 2:
            self.agents.remove("c")
        obs, rewards, terminations, truncations, infos = right(self, actions)
        if self.time in (2, 3):
            self.agents.append("c")
            obs["c"] = np.array([3.0, self.time], np.float32)
        return obs, rewards, terminations, truncations, infos

    monkeypatch.setattr(fixture_games.Dying, "step", late)
    [batch] = worker.roll_out()
    assert batch.env_steps == 2 * 4 + 3


def test_workers_go_on_from_their_state_with_new_games() -> None:
    """As `RolloutWorkers` does it: the next incarnation, new games, and nothing that joins them to the old ones."""
    config = settings("Turns", length=2)
    plan = plan_multi_agent(config)
    rlplat.init(num_cpus=2, num_gpus=0, backend="inproc")
    try:
        latest = (0, {"scale": np.ones(1, np.float32)})

        def make_worker(index: int, incarnation: int) -> Any:
            return rlplat.remote(MultiAgentRolloutWorker).remote(
                config, plan, index, incarnation, None, make_table_policy, record="transitions"
            )

        workers, again = RolloutWorkers(make_worker, 2), RolloutWorkers(make_worker, 2)
        rlplat.get(workers.sample(latest))
        assert [batch.continues for batch in rlplat.get(workers.sample(latest))] == [True, True]
        again.set_state(workers.get_state())
        batches = rlplat.get(again.sample(latest))
        assert [(batch.worker_index, batch.incarnation, batch.continues) for batch in batches] == [
            (0, 1, False),
            (1, 1, False),
        ]
        assert batches[0].obs["observation"][0].tolist() == [[1, 0], [2, 1]], "new games"
        assert again.not_saved() == ("the states of PettingZoo environments: after a resume new games start",)
        workers.close()
        again.close()
    finally:
        rlplat.shutdown()
