"""The pool of opponents, and rings of policies around learners that only count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ConfigError
from rlplat.rl.algorithm_config import AlgorithmConfig, PolicyConfig
from rlplat.rl.interfaces import UpdateReport, Weights
from rlplat.rl.learning.learner_group import LearnerGroup
from rlplat.rl.learning.weights import split_weights, weights_in_state
from rlplat.rl.multi_agent.policy_map import MultiAgentConfig, MultiAgentPlan, make_plan
from rlplat.rl.multi_agent.policy_rings import OpponentPool, PolicyRings
from rlplat.rl.multi_agent.vector_env import AgentEpisode, AgentReturns
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec

SPACES = SpaceSpec(ObsSpec("vector", (3,), "float32"), ActionSpec("discrete", n=2))


def weights(number: float) -> Weights:
    return {"w": np.full(2, number, np.float32)}


def numbers(pool: OpponentPool, draws: list[float]) -> list[int]:
    drawn = [pool.draw(at) for at in draws]
    return [each[0] for each in drawn if each is not None]


def test_the_pool_keeps_the_newest_snapshots() -> None:
    pool = OpponentPool(3, "uniform")
    assert [pool.add(1000 * i, (i, weights(i))) for i in range(5)] == [0, 1, 2, 3, 4]
    assert pool.env_steps() == [2000, 3000, 4000]
    assert numbers(pool, [0.0, 0.33, 0.34, 0.66, 0.67, 0.999]) == [2, 2, 3, 3, 4, 4]
    drawn = pool.draw(0.5)
    assert drawn is not None and drawn[1]["w"].tolist() == [3, 3]
    assert pool.draw(0.5, held=3) is None and pool.draw(0.5, held=2) is not None


def test_the_latest_opponent() -> None:
    pool = OpponentPool(3, "latest")
    with pytest.raises(ValueError, match="the pool of opponents is empty"):
        pool.draw(0.0)
    assert pool.latest() is None
    for i in range(2):
        pool.add(i, (i, weights(i)))
    assert numbers(pool, [0.0, 0.9]) == [1, 1]
    latest = pool.latest()
    assert latest is not None and latest[0] == 1 and pool.latest(1) is None


def test_the_pool_goes_on_from_its_state() -> None:
    pool, other = OpponentPool(2, "uniform"), OpponentPool(2, "uniform")
    for i in range(3):
        pool.add(i, (i, weights(i)))
    other.set_state(pool.get_state())
    assert numbers(other, [0.1, 0.9]) == numbers(pool, [0.1, 0.9]) == [1, 2]
    assert other.add(9, (9, weights(9))) == 3 and other.env_steps() == [2, 9]


@pytest.fixture
def inproc() -> Iterator[None]:
    rlplat.init(num_cpus=2, num_gpus=0, backend="inproc")
    yield
    rlplat.shutdown()


class CountingLearner:
    """Publishes weights that say how often it was updated; a batch is (env steps, episodes)."""

    def __init__(self, name: str, parameter_server: Any) -> None:
        self.name, self.server, self.version = name, parameter_server, 0
        self._publish()

    def _publish(self) -> None:
        rlplat.get(self.server.set_weights.remote(self.version, weights(self.version)))

    def ready(self) -> int:
        return self.version

    def update(self, *batches: Any) -> UpdateReport:
        self.version += 1
        self._publish()
        steps = sum(batch[0] for batch in batches)
        metrics = {"learner/loss": float(steps), "time/train_s": float(steps)}
        return UpdateReport(steps, [episode for batch in batches for episode in batch[1]], metrics)

    def get_state(self) -> dict[str, Any]:
        return {"version": self.version, "weights": weights(self.version)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.version = max(int(state["version"]), self.version + 1)
        self._publish()


def rings_of(plan: MultiAgentPlan) -> PolicyRings:
    def start(name: str, settings: Any, spec: Any, server: Any) -> LearnerGroup:
        return LearnerGroup(server, lambda rank: rlplat.remote(CountingLearner).remote(name, server))

    rings = PolicyRings(plan, AlgorithmConfig(env="made up").model_dump(), start)
    rings.wait_until_ready()
    return rings


def plan_of(**config: Any) -> MultiAgentPlan:
    return make_plan(
        MultiAgentConfig.model_validate(config),
        {"x": SPACES, "y": SPACES, "z": SPACES},
        run_policy=PolicyConfig().model_dump(),
    )


def part(agent: str, total: float, game: int = 0, length: int = 4) -> AgentEpisode:
    return AgentEpisode(total, length, agent, (0, 0, 0, game), 10)


def test_every_batch_goes_to_its_own_policy(backend: str) -> None:
    plan = plan_of(
        policies={"one": {}, "still": {"trained": False}, "two": {}},
        mapping={"x": "one", "y": "still", "z": "two"},
        episode_return="sum",
    )
    rings = rings_of(plan)
    first = [rlplat.put((5, [part("x", 1.0)])), rlplat.put((7, [part("z", 3.0)]))]
    second = [rlplat.put((10, [part("x", 5.0, game=1)])), rlplat.put((20, [part("z", 0.0, game=1)]))]
    report = rings.update([first, second])
    assert report.env_steps == 42
    assert [episode.episode_return for episode in report.episodes] == [4.0, 5.0]
    assert [episode.length for episode in report.episodes] == [10, 10]
    assert report.metrics == {
        "policy/one/learner/loss": 15.0,
        "policy/two/learner/loss": 27.0,
        "time/train_s": 27.0,
        "policy/one/episode_return_mean": 3.0,
        "policy/one/episode_length_mean": 4.0,
        "policy/two/episode_return_mean": 1.5,
        "policy/two/episode_length_mean": 4.0,
        "agent/x/episode_return_mean": 3.0,
        "agent/z/episode_return_mean": 1.5,
    }
    version, joined = rlplat.get(rings.weights())
    assert version == 1
    assert {name: each["w"][0] for name, each in split_weights(joined).items()} == {
        "one": 1,
        "still": 0,
        "two": 1,
    }
    rings.close()


SELF_PLAY = {
    "policies": {"main": {}, "old": {"trained": False}},
    "mapping": {"x": "main", "*": "old"},
    "self_play": {"opponent": "old", "snapshot_period": 100, "pool": 2},
}


def test_snapshots_are_taken_every_period_and_resumed(inproc: None) -> None:
    rings = rings_of(plan_of(**SELF_PLAY))
    taken = []
    for _ in range(5):
        rings.update([rlplat.put((60, []))])
        taken.append(rlplat.get(rings.sources["old"].env_steps.remote()))
    # 60, 120 (passes 100), 180, 240 (passes 200), 300 (passes 300)
    assert taken == [[0], [0, 120], [0, 120], [120, 240], [240, 300]]
    number, newest = rlplat.get(rings.sources["old"].latest.remote())
    assert number == 3 and newest["w"].tolist() == [5, 5], "the learner's weights of then"

    state = rings.get_state()
    joined = weights_in_state(state)
    assert {name: each["w"][0] for name, each in split_weights(joined).items()} == {"main": 5, "old": 5}
    again = rings_of(plan_of(**SELF_PLAY))
    again.set_state(state)
    assert rlplat.get(again.sources["old"].env_steps.remote()) == [240, 300]
    again.update([rlplat.put((60, []))])
    assert rlplat.get(again.sources["old"].env_steps.remote()) == [240, 300]
    again.update([rlplat.put((60, []))])
    assert rlplat.get(again.sources["old"].env_steps.remote()) == [300, 420]
    rings.close()
    again.close()


def test_frozen_weights_come_back_with_the_state(inproc: None) -> None:
    plan = plan_of(policies={"one": {}, "still": {"trained": False}}, mapping={"x": "one", "*": "still"})
    rings, again = rings_of(plan), rings_of(plan)
    state = rings.get_state()
    state["frozen"]["still"] = weights(8)
    again.set_state(state)
    assert rlplat.get(again.sources["still"].latest.remote())[1]["w"].tolist() == [8, 8]
    rings.close()
    again.close()


def test_a_learner_that_fails_is_heard(inproc: None) -> None:
    rings = rings_of(plan_of(mapping={"x": "one", "*": "two"}))
    with pytest.raises(TypeError):
        rings.update([[rlplat.put((1, [])), rlplat.put(None)]])
    rings.close()


def test_returns_of_games_policies_and_agents() -> None:
    returns = AgentReturns(["main"], "mean")
    games = returns.extend(
        {"main": [part("x", 1.0), part("y", 2.0), part("x", 5.0, game=1)], "old": [part("z", 100.0)]}
    )
    assert [game.episode_return for game in games] == [1.5, 5.0], "only agents of trained policies count"
    metrics = returns.metrics()
    assert metrics["policy/main/episode_return_mean"] == pytest.approx(8 / 3)
    assert metrics["agent/x/episode_return_mean"] == 3.0
    again = AgentReturns(["main"], "mean")
    again.set_state(returns.get_state())
    assert again.metrics() == metrics


def test_self_play_needs_a_learner() -> None:
    with pytest.raises(ConfigError, match="learner is 'z', which is not trained"):
        plan_of(**SELF_PLAY | {"self_play": {"opponent": "old", "learner": "z"}})
