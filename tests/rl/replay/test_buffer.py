"""The replay against a store that keeps whole histories and looks everything up the slow way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlplat.rl.algorithm_config import PolicyConfig
from rlplat.rl.interfaces import Array, Episode
from rlplat.rl.off_policy.apex_ring import ReplayShard
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.replay.buffer import (
    MIN_PRIORITY,
    Priorities,
    ReplayBuffer,
    ReplayShape,
    SequenceReplay,
    bytes_of_replay,
    make_replay,
)
from rlplat.rl.replay.step_store import GOES_ON, TERMINATED, TRUNCATED
from rlplat.rl.sampling.sample_batch import TransitionBatch
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from tests.rl.replay.invariants import check_buffer, check_tree

STACK = ObsSpec("image", (4, 2, 2), "uint8", "CHW")
NUMBER = ObsSpec("vector", (1,), "float32")
ACTION = ActionSpec("discrete", n=5)
DISCOUNT = 0.9
SHAPE = ReplayShape(capacity=60, num_lanes=3, n_step=1, discount=DISCOUNT, alpha=0.0, clip_rewards=False)
SEED = np.random.SeedSequence(5)


class Game:
    """One environment whose every frame is another number, and its whole history."""

    def __init__(self, lane: int, rng: np.random.Generator, mean_length: float) -> None:
        self.lane, self.rng, self.mean_length = lane, rng, mean_length
        self.next_frame = 100_000 * (lane + 1)
        self.history: list[dict[str, Any]] = []  # steps in order of time
        self.obs = np.zeros((4, 2, 2), np.uint8)
        self.is_resetting = False
        self.reset()

    def frame(self) -> Array:
        self.next_frame += 1
        return np.array([self.next_frame], np.uint32).view(np.uint8).reshape(2, 2)

    def reset(self) -> None:
        """Stacks begin with zeros, with one frame four times, or with four that were seen before anybody acted."""
        frames = [self.frame() for _ in range(4)]
        how = self.rng.integers(3)
        first = [0 * frames[0]] * 3 + frames[:1] if how == 0 else [frames[0]] * 4 if how == 1 else frames
        self.obs = np.stack(first)
        self.starts = True

    def step(self, autoreset: str) -> dict[str, Any]:
        if self.is_resetting:  # NEXT_STEP: this row only resets
            row: dict[str, Any] = {"obs": self.obs, "valid": False, "reward": 0.0, "action": 0}
            row |= {"terminated": False, "truncated": False}
            self.is_resetting = False
            self.reset()
            return row
        ends = self.rng.random() < 1.0 / self.mean_length
        terminated = bool(ends and self.rng.random() < 0.5)
        last = np.concatenate([self.obs[1:], self.frame()[None]])
        row = {
            "obs": self.obs, "valid": True, "reward": float(self.rng.integers(-3, 4)),
            "action": int(self.rng.integers(5)), "terminated": terminated,
            "truncated": bool(ends and not terminated), "next_obs": last, "starts": self.starts,
        }  # fmt: skip
        self.history.append(row)
        self.starts = False
        self.obs = last
        if ends and autoreset == "NEXT_STEP":
            self.is_resetting = True
        elif ends:
            self.reset()
        return row


def play(games: list[Game], num_steps: int, autoreset: str = "SAME_STEP", **settings: Any) -> TransitionBatch:
    rows = [[game.step(autoreset) for game in games] for _ in range(num_steps)]

    def column(name: str, dtype: Any) -> Array:
        return np.array([[row[name] for row in line] for line in rows], dtype)

    flat = [row for line in rows for row in line]
    cut = [i for i, row in enumerate(flat) if row["truncated"]]
    final = np.array([flat[i]["next_obs"] for i in cut], np.uint8).reshape(-1, 4, 2, 2)
    obs = column("obs", np.uint8)
    shape = obs.shape[:2]
    values = obs[:, :, -1].reshape(*shape, 4).astype(np.float32).sum(axis=-1) / 100.0  # some function of obs
    return TransitionBatch(
        obs={"stack": obs, "number": as_number(obs)}, actions=column("action", np.int64),
        rewards=column("reward", np.float32), terminated=column("terminated", np.bool_),
        truncated=column("truncated", np.bool_), valid=column("valid", np.bool_), q_taken=values, q_max=values,
        cut_rows=np.array(cut, np.int64), final_obs={"stack": final, "number": as_number(final)},
        core_states=np.stack([values, -values], axis=-1), **settings,
    )  # fmt: skip


def as_number(stacks: Array) -> Array:
    """The number of the newest frame."""
    newest = np.ascontiguousarray(stacks[..., -1, :, :]).reshape(*stacks.shape[:-3], 4)
    return newest.view(np.uint32).astype(np.float32)


def number_of(row: dict[str, Any]) -> float:
    return float(as_number(row["obs"])[0])


def expected_transition(history: list[dict[str, Any]], start: int, n: int) -> tuple[float, float, Array] | None:
    """(return, discount, next obs) by walking; None where the future has not come yet."""
    total = 0.0
    for k in range(n):
        if start + k >= len(history):
            return None
        row = history[start + k]
        if k and row.get("after_gap"):
            return None
        total += DISCOUNT**k * row["reward"]
        if row["terminated"]:
            return total, 0.0, row["next_obs"]
        if row["truncated"]:
            return total, DISCOUNT ** (k + 1), row["next_obs"]
    if start + n >= len(history) or history[start + n].get("after_gap"):
        return None  # what follows has not come into the replay
    return total, DISCOUNT**n, history[start + n]["obs"]


def check_everything(replay: ReplayBuffer, games: list[Game], n: int) -> int:
    """Every transition that the replay would draw is one of the history, and exactly that -> how many."""
    check_buffer(replay)
    store = replay.store
    rows = np.flatnonzero(store.is_complete)
    obs, next_obs = store.get_obs(rows), store.get_obs(store.bootstrap_rows(rows))
    assert isinstance(obs, dict) and isinstance(next_obs, dict)
    places = {number_of(row): (game, t) for game in games for t, row in enumerate(game.history)}
    seen = set()
    for i, row in enumerate(rows):
        game, t = places[float(obs["number"][i, 0])]
        assert game.lane == row // store.lane_capacity
        seen.add((game.lane, t))
        step = game.history[t]
        np.testing.assert_array_equal(obs["stack"][i], step["obs"])
        assert store.actions[row] == step["action"] and store.is_start[row] == step["starts"]
        expected = expected_transition(game.history, t, n)
        assert expected is not None, "drawn before its window was complete"
        assert store.returns[row] == pytest.approx(expected[0], abs=1e-5)
        assert store.discounts[row] == pytest.approx(expected[1], abs=1e-6)
        if expected[1]:
            np.testing.assert_array_equal(next_obs["stack"][i], expected[2])
            assert next_obs["number"][i] == as_number(expected[2])
    assert len(seen) == len(rows) == len(replay)
    return len(rows)


@pytest.mark.parametrize("autoreset", ["SAME_STEP", "NEXT_STEP"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("mean_length", [2.0, 12.0])
def test_holds_the_newest_transitions_and_nothing_else(autoreset: str, n: int, mean_length: float) -> None:
    rng = np.random.default_rng([n, int(mean_length)])
    games = [Game(lane, rng, mean_length) for lane in range(3)]
    replay = make_replay(
        replace(SHAPE, n_step=n, capacity=90, alpha=0.5), {"stack": STACK, "number": NUMBER}, ACTION, SEED
    )
    assert isinstance(replay, ReplayBuffer)
    for k in range(40):
        replay.add(play(games, int(rng.integers(1, 9)), autoreset, continues=k > 0), 0)
        num_rows = check_everything(replay, games, n)
    # 30 rows a lane, of which final observations take some, and short episodes many frames.
    assert num_rows >= (20 if mean_length == 2.0 else 65), num_rows
    for game in games:  # the newest are there
        complete = [t for t in range(len(game.history)) if expected_transition(game.history, t, n) is not None]
        newest = number_of(game.history[complete[-1]])
        obs = replay.store.get_obs(np.flatnonzero(replay.store.is_complete))
        assert isinstance(obs, dict) and newest in obs["number"]


def num_rows_of(batch: TransitionBatch) -> int:
    """The most rows that a lane gets."""
    return int((batch.valid.sum(axis=0) + np.bincount(batch.cut_rows % batch.shape[1], minlength=batch.shape[1])).max())


def played_at_the_edges(rng: np.random.Generator, games: list[Game], lane_capacity: int) -> Iterator[TransitionBatch]:
    """Batches of 1, about half and all of what a lane holds, some after a gap; ends with one that would not fit."""
    autoreset = str(rng.choice(["SAME_STEP", "NEXT_STEP"]))
    for k in range(15):
        half = lane_capacity // 2
        num_steps = max(1, int(rng.choice([1, half - 1, half, lane_capacity - 1, lane_capacity, rng.integers(1, 9)])))
        is_after_gap = k > 0 and rng.random() < 0.2
        begins_at = [len(game.history) for game in games]
        if is_after_gap:
            for game in games:
                game.reset()
                game.is_resetting = False
        batch = play(games, num_steps, autoreset, continues=k > 0 and not is_after_gap)
        for game, t in zip(games, begins_at, strict=True):
            if is_after_gap and t < len(game.history):
                game.history[t]["after_gap"] = True
        if num_rows_of(batch) + is_after_gap > lane_capacity:
            return
        yield batch


@pytest.mark.parametrize("seed", range(12))
def test_rings_of_every_size_wrap_around_and_are_restored_at_every_place(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, lanes = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    shape = replace(
        SHAPE,
        capacity=int(rng.integers(n + 2, 40)) * lanes,
        num_lanes=lanes,
        n_step=n,
        alpha=float(rng.choice([0, 0.5])),
    )
    games = [Game(lane, rng, float(rng.choice([1.0, 1.5, 3.0, 12.0]))) for lane in range(lanes)]
    replay = make_replay(shape, {"stack": STACK, "number": NUMBER}, ACTION, SEED)
    for batch in played_at_the_edges(rng, games, shape.lane_capacity):
        replay.add(batch, 0)
        if rng.random() < 0.2:
            restored = make_replay(shape, {"stack": STACK, "number": NUMBER}, ACTION, SEED)
            restored.set_state(replay.get_state())
            replay = restored
        assert isinstance(replay, ReplayBuffer)
        if check_everything(replay, games, n):
            replay.sample(3, 0.4)


def test_workers_fill_their_own_lanes_and_a_gap_joins_nothing() -> None:
    rng = np.random.default_rng(3)
    games = [Game(lane, rng, 6.0) for lane in range(3)]
    replay = make_replay(replace(SHAPE, n_step=3), {"stack": STACK, "number": NUMBER}, ACTION, SEED)
    assert isinstance(replay, ReplayBuffer)
    for k in range(30):
        if k % 7 == 6:  # the second worker is replaced: its fragment is lost, its environment begins anew
            games[2].reset()
            begins_at = len(games[2].history)
        replay.add(play(games[:2], 3, continues=k > 0), 0)
        replay.add(play(games[2:], 3, continues=k > 0 and k % 7 != 6), 2)
        if k % 7 == 6:
            games[2].history[begins_at]["after_gap"] = True
        check_everything(replay, games, 3)


def test_uniform_draws_are_uniform_over_what_is_complete() -> None:
    rng = np.random.default_rng(1)
    games = [Game(lane, rng, 5.0) for lane in range(3)]
    replay = make_replay(SHAPE, {"stack": STACK, "number": NUMBER}, ACTION, SEED)
    replay.add(play(games, 11), 0)
    draws = replay.sample(30_000).rows
    counts = np.bincount(draws, minlength=60)
    complete = replay.store.is_complete
    assert (counts[~complete] == 0).all()
    expected = 30_000 / complete.sum()
    assert (abs(counts[complete] - expected) < 6 * np.sqrt(expected)).all()


def test_prioritised_draws_and_importance_weights() -> None:
    """Schaul et al. 2016, eq. 1 and section 3.4, written out."""
    rng = np.random.default_rng(1)
    games = [Game(lane, rng, 5.0) for lane in range(3)]
    replay = make_replay(replace(SHAPE, alpha=0.7), {"stack": STACK, "number": NUMBER}, ACTION, SEED)
    replay.add(play(games, 11), 0)
    first = replay.sample(16, beta=0.5)
    np.testing.assert_array_equal(first.weights, np.ones(16))  # all new ones have the same priority
    rows = np.flatnonzero(replay.store.is_complete)
    errors = rng.random(len(rows)) * 3
    replay.update_priorities(rows, replay.store.stamps[rows], -errors)  # of any sign
    shares = (errors + MIN_PRIORITY) ** 0.7
    shares /= shares.sum()
    drawn = replay.sample(30_000, beta=0.5)
    counts = np.bincount(drawn.rows, minlength=60)[rows]
    assert (abs(counts - 30_000 * shares) <= 1 + 6 * np.sqrt(30_000 * shares)).all()
    weights = (len(rows) * shares) ** -0.5
    index = np.searchsorted(rows, drawn.rows)
    np.testing.assert_allclose(drawn.weights, weights[index] / weights[index].max(), rtol=1e-5)


def test_priorities_that_come_late_do_not_reach_what_took_the_place() -> None:
    rng = np.random.default_rng(1)
    games = [Game(lane, rng, 50.0) for lane in range(3)]
    replay = make_replay(replace(SHAPE, alpha=1.0), {"stack": STACK, "number": NUMBER}, ACTION, SEED)
    assert isinstance(replay, ReplayBuffer) and replay._priorities is not None
    replay.add(play(games, 15), 0)
    drawn = replay.sample(8)
    replay.add(play(games, 15), 0)  # 20 rows a lane: ten of the first are overwritten
    gone = replay.store.stamps[drawn.rows] != drawn.stamps
    assert gone.any() and not gone.all()
    before = replay._priorities.tree.get(drawn.rows)
    replay.update_priorities(drawn.rows, drawn.stamps, np.full(8, 9.0))
    after = replay._priorities.tree.get(drawn.rows)
    np.testing.assert_array_equal(after[gone], before[gone])
    np.testing.assert_allclose(after[~gone & replay.store.is_complete[drawn.rows]], 9.0 + MIN_PRIORITY)
    check_buffer(replay)


def test_actors_priorities_are_their_errors() -> None:
    """|R + discount^m max Q(s', .) - Q(s, a)|; where nobody acted at the end of the window, the largest so far."""
    rng = np.random.default_rng(2)
    games = [Game(lane, rng, 4.0) for lane in range(3)]
    replay = make_replay(replace(SHAPE, alpha=1.0, n_step=2), {"stack": STACK, "number": NUMBER}, ACTION, SEED)
    assert isinstance(replay, ReplayBuffer) and replay._priorities is not None
    batch = play(games, 11)
    replay.add(batch, 0, priorities_by_actor=True)

    def q(stack: Array) -> float:
        return float(stack[-1].astype(np.float32).sum() / 100.0)

    store, checked = replay.store, 0
    for row in np.flatnonzero(store.is_complete):
        obs = store.get_obs(np.array([row]))
        assert isinstance(obs, dict)
        total, discount, next_obs = (
            store.returns[row],
            store.discounts[row],
            store.bootstrap_rows(np.array([row])),
        )
        ends = store.kinds[store.ahead(np.array([row]), store.num_steps[row] - 1)][0]
        if ends == TRUNCATED:
            continue
        assert ends in (GOES_ON, TERMINATED)
        following = store.get_obs(next_obs)
        assert isinstance(following, dict)
        error = abs(total + (discount * q(following["stack"][0]) if discount else 0.0) - q(obs["stack"][0]))
        assert replay._priorities.tree.get(np.array([row]))[0] == pytest.approx(error + MIN_PRIORITY, rel=1e-4)
        checked += 1
    assert checked > 5


@pytest.mark.parametrize("distributional", ["none", "qr", "c51"])
def test_priorities_of_a_shard_have_one_scale(distributional: str) -> None:
    """What the learner sends back for C51 is a divergence in nats: an error of returns beside it would be drawn for
    its unit. There, new transitions get the largest so far."""
    settings = {"seed": 1, "save_replay": False, "distributional": distributional}
    spec = policy_spec(PolicyConfig().model_dump(), SpaceSpec({"stack": STACK, "number": NUMBER}, ACTION))
    shard = ReplayShard(settings, spec, replace(SHAPE, alpha=1.0), 0)
    shard.add(play([Game(lane, np.random.default_rng(2), 4.0) for lane in range(3)], 11), 0)
    replay = shard._replay
    assert isinstance(replay, ReplayBuffer) and replay._priorities is not None
    priorities = replay._priorities.tree.get(np.flatnonzero(replay.store.is_complete))
    assert (len(np.unique(priorities)) == 1) == (distributional == "c51")


def test_rewards_by_sign() -> None:
    games = [Game(lane, np.random.default_rng(0), 5.0) for lane in range(3)]
    replay = make_replay(replace(SHAPE, clip_rewards=True), {"stack": STACK, "number": NUMBER}, ACTION, SEED)
    replay.add(play(games, 11), 0)
    assert set(replay.sample(200).returns.tolist()) == {-1.0, 0.0, 1.0}


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("unroll", [0, 4])
def test_a_restored_replay_goes_on_draw_by_draw(alpha: float, unroll: int) -> None:
    rng = np.random.default_rng(4)
    games = [Game(lane, rng, 4.0) for lane in range(3)]
    shape = replace(SHAPE, alpha=alpha, n_step=2, unroll=unroll, burn_in=unroll // 2)
    one, other = (make_replay(shape, {"stack": STACK, "number": NUMBER}, ACTION, SEED) for _ in range(2))
    for k in range(9):
        one.add(play(games, 5, continues=k > 0), 0)
        if len(one):
            drawn = one.sample(4, 0.5)
            one.update_priorities(drawn.rows, drawn.stamps, rng.random(4))
    other.set_state(one.get_state())
    assert len(other) == len(one) > 0
    for _ in range(5):
        batch = play(games, 5)
        errors = rng.random(4)
        both = []
        for replay in (one, other):
            replay.add(batch, 0)
            drawn = replay.sample(4, 0.5)
            replay.update_priorities(drawn.rows, drawn.stamps, errors)
            both.append(drawn)
        for name in ("rows", "weights", "returns", "discounts", "actions"):
            np.testing.assert_array_equal(getattr(both[0], name), getattr(both[1], name), err_msg=name)
        for path in ("stack", "number"):
            np.testing.assert_array_equal(both[0].obs[path], both[1].obs[path])


@pytest.mark.parametrize("unroll", [0, 4])
@pytest.mark.parametrize("num_after", [1, 40])
def test_a_replay_that_is_taken_back_is_as_it_was(unroll: int, num_after: int) -> None:
    rng = np.random.default_rng(4)
    games = [Game(lane, rng, 4.0) for lane in range(3)]
    shape = replace(SHAPE, alpha=0.6, n_step=2, unroll=unroll, burn_in=unroll // 2)
    one, other = (make_replay(shape, {"stack": STACK, "number": NUMBER}, ACTION, SEED) for _ in range(2))
    for k in range(4):
        one.add(play(games, 5, continues=k > 0), 0)
    state = one.get_state()
    for _ in range(num_after):
        one.add(play(games, 5), 0)
    for replay in (one, other):
        replay.set_state(state)
        if isinstance(replay, ReplayBuffer):
            check_buffer(replay)
    for k in range(30):
        batch = play(games, 5, continues=k > 0)
        for replay in (one, other):
            replay.add(batch, 0)
        first, second = one.sample(4, 0.5), other.sample(4, 0.5)
        for name in ("rows", "weights", "returns", "discounts"):
            np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


@pytest.mark.parametrize("lost", ["a fragment", "all that was made between two workers", "nothing"])
def test_what_follows_a_lost_fragment_is_not_joined_to_what_came_before_it(lost: str) -> None:
    games = [Game(lane, np.random.default_rng(lane), 1e9) for lane in range(3)]
    replay = make_replay(replace(SHAPE, n_step=2), {"stack": STACK, "number": NUMBER}, ACTION, SEED)
    replay.add(play(games, 5, continues=False, number=0), 0)
    between = 0 if lost == "nothing" else 1
    for _ in range(between):
        play(games, 5)
    incarnation = int(lost.startswith("all"))
    replay.add(play(games, 5, number=1 + between - incarnation, incarnation=incarnation), 0)
    # Windows of two steps: without a gap those of the first fragment's last two rows are complete too.
    assert len(replay) == 3 * (8 if lost == "nothing" else 6)
    state = replay.get_state()
    other = make_replay(replace(SHAPE, n_step=2), {"stack": STACK, "number": NUMBER}, ACTION, SEED)
    other.set_state(state)
    other.add(play(games, 5, number=2 + between - incarnation, incarnation=incarnation), 0)
    assert len(other) == len(replay) + 3 * 5, "what was saved goes on"


def test_sequences_are_stretches_of_history_with_the_state_that_acted() -> None:
    rng = np.random.default_rng(8)
    games = [Game(lane, rng, 7.0) for lane in range(3)]
    burn_in, unroll, n = 3, 6, 2
    shape = replace(SHAPE, capacity=120, n_step=n, burn_in=burn_in, unroll=unroll, alpha=0.5)
    replay = make_replay(shape, {"stack": STACK, "number": NUMBER}, ACTION, SEED)
    assert isinstance(replay, SequenceReplay)
    checked = masked = 0
    for k in range(30):
        replay.add(play(games, int(rng.integers(2, 9)), continues=k > 0), 0)
        if len(replay):
            in_draw = check_draw(replay, shape, games, rng)
            checked, masked = checked + in_draw[0], masked + in_draw[1]
    assert checked > 500 and masked > 5


@pytest.mark.parametrize("seed", range(12))
def test_sequences_of_every_length_wrap_around_and_are_restored_at_every_place(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, lanes, burn_in, unroll = (int(rng.integers(*ends)) for ends in [(1, 4), (1, 3), (0, 4), (1, 8)])
    lane_capacity = burn_in + 2 * unroll + n + 2 + max(1, unroll // 2) + int(rng.integers(30))
    shape = replace(
        SHAPE, capacity=lane_capacity * lanes, num_lanes=lanes, n_step=n, burn_in=burn_in, unroll=unroll,
        alpha=float(rng.choice([0, 0.5])),
    )  # fmt: skip
    games = [Game(lane, rng, float(rng.choice([1.0, 1.5, 3.0, 12.0]))) for lane in range(lanes)]
    replay = make_replay(shape, {"stack": STACK, "number": NUMBER}, ACTION, SEED)
    for batch in played_at_the_edges(rng, games, shape.lane_capacity):
        replay.add(batch, 0)
        if rng.random() < 0.2:
            restored = make_replay(shape, {"stack": STACK, "number": NUMBER}, ACTION, SEED)
            restored.set_state(replay.get_state())
            replay = restored
        if len(replay):
            assert isinstance(replay, SequenceReplay)
            check_draw(replay, shape, games, rng, has_gaps=True)


def check_draw(
    replay: SequenceReplay,
    shape: ReplayShape,
    games: list[Game],
    rng: np.random.Generator,
    has_gaps: bool = False,
) -> tuple[int, int]:
    """What is drawn is a stretch of the history -> rows that are learnt from, and that are not."""
    burn_in, unroll, n = shape.burn_in, shape.unroll, shape.n_step
    checked = masked = 0
    places = {number_of(row): (game, t) for game in games for t, row in enumerate(game.history)}
    drawn = replay.sample(8, 1.0)
    obs = drawn.obs
    assert isinstance(obs, dict) and obs["number"].shape == (burn_in + unroll + n, 8, 1)
    for m in range(8):
        for u in range(unroll):
            number = float(obs["number"][burn_in + u, m, 0])
            if not drawn.mask[u, m]:
                masked += 1
                # Left out are final observations, and what a gap follows; a gap shows what was before it.
                assert number not in places or has_gaps
                continue
            game, t = places[number]
            expected = expected_transition(game.history, t, n)
            assert expected is not None
            assert drawn.actions[u, m] == game.history[t]["action"]
            assert drawn.returns[u, m] == pytest.approx(expected[0], abs=1e-5)
            assert drawn.discounts[u, m] == pytest.approx(expected[1], abs=1e-6)
            if expected[1]:
                end = int(drawn.bootstraps[u, m])
                np.testing.assert_array_equal(obs["stack"][end, m], expected[2])
            assert drawn.starts[burn_in + u, m] == game.history[t]["starts"]
            checked += 1
        first = float(obs["number"][0, m, 0])
        if first in places and not drawn.starts[0, m]:
            value = places[first][0].history[places[first][1]]["obs"][-1].astype(np.float32).sum() / 100.0
            np.testing.assert_allclose(drawn.core_states[m], [value, -value], rtol=1e-6)
    replay.update_priorities(drawn.rows, drawn.stamps, rng.random(8))
    check_tree(replay._priorities.tree)
    return checked, masked


@pytest.mark.parametrize("fragment", [4, 5, 12])
def test_a_sequence_forgets_where_the_acting_core_did(fragment: int) -> None:
    """After row 4, which is not valid (FIRE after a lost life): within a fragment, or with the end of one."""
    replay = make_replay(replace(SHAPE, capacity=40, num_lanes=1, unroll=8), NUMBER, ACTION, SEED)
    seen = np.array([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6], np.float32)  # by the core since it forgot
    for begin in range(0, 12, fragment):
        rows = slice(begin, begin + fragment)
        T = len(seen[rows])
        replay.add(
            TransitionBatch(
                obs=np.arange(12, dtype=np.float32)[rows].reshape(T, 1, 1),
                actions=np.zeros((T, 1), np.int64),
                rewards=np.ones((T, 1), np.float32),
                terminated=np.zeros((T, 1), np.bool_),
                truncated=np.zeros((T, 1), np.bool_),
                valid=(np.arange(12) != 4)[rows, None],
                cut_rows=np.empty(0, np.int64),
                final_obs=np.empty((0, 1), np.float32),
                core_states=seen[rows].reshape(T, 1, 1),
                continues=begin > 0,
            ),
            0,
        )
    assert isinstance(replay, SequenceReplay)
    drawn = replay.sample(8)
    first = int(np.flatnonzero(drawn.stamps == 0)[0])
    assert drawn.obs[:, first, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]  # type: ignore[index, call-overload]
    assert drawn.starts[:, first].tolist() == [True, False, False, False, True, *[False] * 4]


def test_sequence_parts_are_columns() -> None:
    games = [Game(lane, np.random.default_rng(0), 9.0) for lane in range(3)]
    replay = make_replay(replace(SHAPE, unroll=4, burn_in=2), {"stack": STACK, "number": NUMBER}, ACTION, SEED)
    replay.add(play(games, 18), 0)
    drawn = replay.sample(6, 0.0)
    part = drawn.part(2, 4)
    np.testing.assert_array_equal(part.obs["number"], drawn.obs["number"][:, 2:4])  # type: ignore[index, call-overload]
    np.testing.assert_array_equal(part.core_states, drawn.core_states[2:4])
    np.testing.assert_array_equal(part.mask, drawn.mask[:, 2:4])


def test_frames_are_kept_once() -> None:
    """A million Atari observations: 7 GB instead of 28, and instead of 56 with the next ones beside them."""
    atari = ObsSpec("image", (4, 84, 84), "uint8", "CHW")
    shape = replace(SHAPE, capacity=1_000_000)
    assert 7.0e9 < bytes_of_replay(shape, atari) < 7.2e9
    colours = ObsSpec("image", (3, 84, 84), "uint8", "CHW")
    assert bytes_of_replay(shape, colours) > 21e9


def test_newcomers_get_the_largest_priority_so_far() -> None:
    priorities = Priorities(10, alpha=0.5)
    priorities.add(np.array([0]))
    priorities.set(np.array([0]), np.array([16.0]))
    priorities.set(np.array([0]), np.array([4.0]))
    priorities.add(np.array([1]))
    np.testing.assert_allclose(priorities.tree.get(np.array([0, 1])), [2.0, 4.0], rtol=1e-6)


def test_batches_say_what_is_wrong_with_them() -> None:
    batch = play([Game(0, np.random.default_rng(0), 3.0)], 4, episodes=[Episode(1.0, 2)])
    assert batch.env_steps == 4
    batch.cut_rows = np.arange(9)
    with pytest.raises(AssertionError, match="one final observation per truncation"):
        batch.check_valid()


def test_a_part_of_a_prioritised_draw_spans_the_whole_replay() -> None:
    """Ape-X cuts one draw into the minibatches of several gradient steps."""
    priorities = Priorities(8_192, alpha=0.6)
    priorities.add(np.arange(8_192))
    indices, _ = priorities.draw(np.random.default_rng(0), 256, 8_192, beta=0.4)
    for part in np.split(indices, 8):
        assert part.min() < 2_000 and part.max() > 6_000
    assert sorted(indices // 32) == list(range(256))  # stratified all the same
