"""Rollout workers over an environment whose observations say where they come from; the in-process backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ActorDied, EnvError, UsageError
from rlplat.rl.algorithm_config import PolicyConfig
from rlplat.rl.interfaces import Episode, Step
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.policies.make import policy_for
from rlplat.rl.policies.spec import cpu_share
from rlplat.rl.sampling import rollout_worker as rollout_worker_module
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.sampling.worker_group import RestartLimit, RolloutWorkers
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec

CONFIG: dict[str, Any] = {
    "env": "Counting",
    "env_kwargs": {},
    "seed": 0,
    "framework": "torch",
    "deterministic": False,
    "num_envs_per_worker": 2,
    "vectorization": "auto",
    "num_rollout_workers": 1,
    "rollout_length": 4,
    "learner": {"precision": "auto", "num_threads": 0},
    "policy": PolicyConfig(hidden_sizes=[1], activation="relu", share_encoder=True).model_dump(),
}


class CountingEnv:
    """Environment b counts from 10 * (b + 1); its episodes last 3 steps: environment 0 terminates, 1 is cut off.

    Resets within the step that ended the episode, so the last observation comes in `final_obs` only.
    """

    spec = SpaceSpec(ObsSpec("vector", (1,), "float32", ""), ActionSpec("discrete", n=2))
    not_saved = "the count"

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.starts = 10.0 * np.arange(1, num_envs + 1, dtype=np.float32)
        self.t = 0
        self.obs = np.zeros((num_envs, 1), np.float32)
        self.finished: list[Episode] = []

    def reset(self) -> np.ndarray:
        self.t = 0
        self.obs[:, 0] = self.starts
        return self.obs

    def step(self, actions: np.ndarray) -> Step:
        self.t += 1
        rewards = self.obs[:, 0].copy()
        final_obs = None
        self.obs += 1  # in place, as some environments do
        ended = self.t % 3 == 0
        if ended:
            final_obs = self.obs.copy()
            self.obs[:, 0] = self.starts
            self.finished += [Episode(3 * start + 3, 3) for start in self.starts.tolist()]
        terminated = np.array([ended, False])
        return Step(self.obs, rewards, terminated, ended & ~terminated, np.ones(2, np.bool_), final_obs)

    def pop_episodes(self) -> list[Episode]:
        finished, self.finished = self.finished, []
        return finished

    def close(self) -> None:
        pass


VALUE_IS_OBS = {
    "actor_encoder.layers.0.weight": np.ones((1, 1), np.float32),
    "actor_encoder.layers.0.bias": np.zeros(1, np.float32),
    "actor_head.weight": np.zeros((2, 1), np.float32),
    "actor_head.bias": np.zeros(2, np.float32),
    "critic_head.weight": np.ones((1, 1), np.float32),
    "critic_head.bias": np.zeros(1, np.float32),
}
WEIGHTS = (0, VALUE_IS_OBS)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rollout_worker_module, "make_vector_env", lambda env, num_envs, **_: CountingEnv(num_envs))
    rlplat.init(backend="inproc")
    yield
    rlplat.shutdown()


def test_a_fragment_holds_what_happened(counting: None) -> None:
    batch = RolloutWorker(CONFIG, 3, 1).sample(WEIGHTS)
    np.testing.assert_array_equal(batch.obs[..., 0], [[10, 20], [11, 21], [12, 22], [10, 20]])
    np.testing.assert_array_equal(batch.rewards, batch.obs[..., 0])
    np.testing.assert_array_equal(batch.values, batch.obs[..., 0])
    np.testing.assert_array_equal(batch.terminated, [[0, 0], [0, 0], [1, 0], [0, 0]])
    np.testing.assert_array_equal(batch.truncated, [[0, 0], [0, 0], [0, 1], [0, 0]])
    # The cut-off environment bootstraps from its last observation, 23, not from the 20 it was reset to.
    expected = np.float32([[11, 21], [12, 22], [0, 23], [11, 21]])
    np.testing.assert_array_equal(np.where(batch.terminated, 0, batch.next_values), expected)
    np.testing.assert_allclose(batch.log_probs, np.log(0.5), rtol=1e-6)
    assert batch.episodes == [Episode(33.0, 3), Episode(63.0, 3)]
    assert (batch.worker_index, batch.incarnation, batch.weights_version, batch.env_steps) == (3, 1, 0, 8)


@pytest.mark.parametrize(("num_workers", "expected"), [(0, 7), (1, cpu_share(1))])
def test_a_worker_beside_the_learner_keeps_its_number_of_threads(
    counting: None, num_workers: int, expected: int
) -> None:
    def make_policy(*args: Any, num_threads: int) -> Any:
        asked.append(num_threads)
        return policy_for(*args)

    asked: list[int] = []
    learner = {"precision": "auto", "num_threads": 7}
    RolloutWorker(CONFIG | {"num_rollout_workers": num_workers, "learner": learner}, 0, 0, make_policy)
    assert asked == [expected]


def test_fragments_follow_on_each_other_with_the_newest_weights(counting: None) -> None:
    worker = RolloutWorker(CONFIG, 0, 0)
    worker.sample(WEIGHTS)
    batch = worker.sample((7, VALUE_IS_OBS | {"critic_head.bias": np.float32([100])}))
    assert batch.weights_version == 7
    np.testing.assert_array_equal(batch.obs[:, 0, 0], [11, 12, 10, 11])
    np.testing.assert_array_equal(batch.values, batch.obs[..., 0] + 100)


def test_same_seed_same_actions_other_worker_or_incarnation_other_actions(counting: None) -> None:
    config = CONFIG | {"rollout_length": 64}

    def actions(worker_index: int, incarnation: int) -> bytes:
        return RolloutWorker(config, worker_index, incarnation).sample(WEIGHTS).actions.tobytes()

    assert actions(0, 0) == actions(0, 0)
    assert len({actions(0, 0), actions(1, 0), actions(0, 1)}) == 3


def test_sampling_without_weights_is_a_bug_that_is_named(counting: None) -> None:
    empty = rlplat.get(rlplat.remote(ParameterServer).remote().latest.remote())
    with pytest.raises(AssertionError, match="publishes its first weights"):
        RolloutWorker(CONFIG, 0, 0).sample(empty)


def make_group(num_workers: int = 2, **options: Any) -> RolloutWorkers:
    def make_worker(worker_index: int, incarnation: int) -> Any:
        return rlplat.remote(RolloutWorker).remote(CONFIG, worker_index, incarnation)

    return RolloutWorkers(make_worker, num_workers, **options)


def test_a_dead_worker_is_replaced_and_its_fragment_sampled_anew(counting: None) -> None:
    group = make_group()
    rlplat.get(group.sample(WEIGHTS))
    rlplat.kill(group.handles[1])
    refs = group.sample(WEIGHTS)
    with pytest.raises(ActorDied) as caught:
        rlplat.get(refs)
    batches: list[SampleBatch] = rlplat.get(group.replace_lost(refs, caught.value))
    assert [(b.worker_index, b.incarnation) for b in batches] == [(0, 0), (1, 1)]
    assert batches[0].obs[0, 0, 0] == 11 and batches[1].obs[0, 0, 0] == 10  # one went on, one began
    assert group.restarts == 1


def test_the_metrics_of_a_round(counting: None) -> None:
    group = make_group()
    assert group.metrics() == {"rollout/worker_restarts": 0, "time/sample_s": 0.0, "time/update_s": 0.0}
    group.deliver(group.sample(WEIGHTS), rlplat.get)
    first = group.metrics()
    rlplat.kill(group.handles[1])
    group.deliver(group.sample(WEIGHTS), rlplat.get)
    second = group.metrics()
    assert (first.pop("rollout/worker_restarts"), second.pop("rollout/worker_restarts")) == (0, 1)
    assert all(second[name] != seconds > 0.0 for name, seconds in first.items())


def test_an_error_that_is_not_a_workers_is_passed_on(counting: None) -> None:
    group = make_group()
    with pytest.raises(ActorDied, match="the learner"):
        group.replace_lost(group.sample(WEIGHTS), ActorDied("the learner died"))
    assert group.restarts == 0


def test_a_worker_that_keeps_dying_ends_the_run(counting: None) -> None:
    group = make_group(max_restarts=2, clock=lambda: 0.0)
    with pytest.raises(ActorDied, match="rollout worker 0 was lost more than 2 times within 60 s"):
        for _ in range(3):
            rlplat.kill(group.handles[0])
            group.replace_lost(group.sample(WEIGHTS), ActorDied("a worker died"))
    assert group.restarts == 2


def test_a_worker_that_cannot_be_made_is_not_made_again(counting: None) -> None:
    class Lazy(RolloutWorker):
        def __init__(self, *arguments: Any) -> None:
            raise RuntimeError("a parameter has no shape yet")

    group = RolloutWorkers(lambda *_: rlplat.remote(Lazy).remote(), 1)
    refs = group.sample(WEIGHTS)
    with pytest.raises(ActorDied) as caught:
        rlplat.get(refs)
    with pytest.raises(ActorDied, match="rollout worker 0 could not be made: RuntimeError: a parameter has no shape"):
        group.replace_lost(refs, caught.value)
    assert group.restarts == 0


def test_a_hang_in_every_episode_reaches_the_limit(counting: None) -> None:
    now = 0.0
    group = make_group(max_restarts=3, clock=lambda: now)
    with pytest.raises(ActorDied, match="lost more than 3 times within 60 s"):
        for _ in range(20):
            rlplat.kill(group.handles[0])
            fragment = group.start_fragment(0, WEIGHTS)
            now += 61.0  # it hung until the watchdog ended it
            group.replace_lost([fragment], ActorDied("a worker died"))
    assert group.restarts == 3


@pytest.mark.parametrize("restart", [False, True])
def test_an_environment_that_raises(counting: None, monkeypatch: pytest.MonkeyPatch, restart: bool) -> None:
    group = make_group(restart_on_env_error=restart)
    raised: list[int] = []

    def step_once_broken(self: CountingEnv, actions: np.ndarray, step: Any = CountingEnv.step) -> Step:
        if not raised:
            raised.append(1)
            raise EnvError("Counting raised in step(): out of numbers")
        return step(self, actions)

    monkeypatch.setattr(CountingEnv, "step", step_once_broken)
    refs = group.sample(WEIGHTS)
    with pytest.raises(EnvError) as caught:
        rlplat.get(refs)
    if restart:
        batches = rlplat.get(group.replace_lost(refs, caught.value))
        assert [b.incarnation for b in batches] == [1, 0]
    else:
        with pytest.raises(EnvError, match="out of numbers"):
            group.replace_lost(refs, caught.value)


def test_a_resumed_group_goes_on_with_the_next_incarnation(counting: None) -> None:
    group, resumed = make_group(), make_group()
    rlplat.get(group.sample(WEIGHTS))
    resumed.set_state(group.get_state())
    assert [b.incarnation for b in rlplat.get(resumed.sample(WEIGHTS))] == [1, 1]
    assert resumed.get_state()["workers"][0] != group.get_state()["workers"][1]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_resumed_group_of_another_size_repeats_no_incarnation(counting: None, num_workers: int) -> None:
    group, resumed = make_group(), make_group(num_workers)
    group._incarnations[1] = 4
    resumed.set_state(group.get_state())
    assert [b.incarnation for b in rlplat.get(resumed.sample(WEIGHTS))] == [5] * num_workers


def test_restart_limit_is_over_a_sliding_window() -> None:
    limit = RestartLimit(2, window_s=60.0)
    assert [limit.allows(now) for now in (0.0, 30.0, 59.0, 60.0, 61.0, 90.0)] == [
        True,
        True,
        False,
        True,
        False,
        True,
    ]
    limit = RestartLimit(1, window_s=60.0)
    assert limit.allows(0.0) and not limit.allows(100.0, lost_s=50.0) and limit.allows(120.0, lost_s=0.0)


def test_the_config_says_how_environments_are_stepped() -> None:
    settings = CONFIG | {"env": "LunarLander-v3", "vectorization": "native"}
    with pytest.raises(UsageError, match="LunarLander-v3 has no vector implementation: set vectorization to"):
        RolloutWorker(settings, 0, 0)
