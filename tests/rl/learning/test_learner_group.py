"""Two learners compute what one would; what goes wrong in one ends the run with a message; nothing stays behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import rlplat
from rlplat.algorithms.ppo import PPO, PPOConfig, PPOLearner
from rlplat.errors import ActorDied, ConfigError, InfeasibleResources, RlplatError
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.learning.learner_group import LearnerGroup, learner_gpus
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.policies.spec import PolicySpec
from tests.algorithms.test_ppo_learner import make_batch
from tests.rl.specimens import IMAGE, make_spec
from tests.shared_cluster import OpenCluster

pytestmark = pytest.mark.process

TWO_LEARNERS: dict[str, Any] = {"precision": "float32", "device": "cpu", "num_threads": 1, "num_learners": 2}


@pytest.fixture
def processes(open_cluster: OpenCluster) -> Iterator[None]:
    with open_cluster(num_cpus=4, num_gpus=0, preload=("torch",)):
        yield


def make_group(
    spec: PolicySpec, num_learners: int, learner_class: type[PPOLearner] = PPOLearner, **settings: Any
) -> tuple[LearnerGroup, Any]:
    defaults: dict[str, Any] = {
        "env": "made up",
        "seed": 1,
        "minibatch_size": 24,
        "num_epochs": 2,
        "learning_rate": 1e-3,
        "entropy_coef": 0.01,
        "learner": TWO_LEARNERS | {"num_learners": num_learners, "backend": "torch"},
    }
    config = PPOConfig(**(defaults | settings)).model_dump()
    server = rlplat.remote(ParameterServer).remote()
    learner = rlplat.remote(learner_class)
    computation = computation_of(PPO)
    group = LearnerGroup(server, lambda rank: learner.remote(computation, config, spec, server, rank), num_learners)
    group.wait_until_ready()
    return group, server


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_two_learners_are_one(processes: None, core: str) -> None:
    """With an odd number of rows or fragments, rows in which environments only reset, and running statistics."""
    spec = make_spec(core=core)
    settings: dict[str, Any] = {
        "minibatch_size": 48,
        "normalize_observations": True,
        "normalize_rewards": True,
        "target_kl": 1e-3,
    }
    published, reports = [], []
    for num_learners in (1, 2):
        group, server = make_group(spec, num_learners, **settings)
        for seed in range(2):
            batches = [rlplat.put(make_batch(spec, seed=10 * seed + i, num_envs=5)) for i in range(2)]
            report = group.update(batches)
        reports.append(report)
        published.append(rlplat.get(server.latest.remote()))
        if num_learners == 2:
            states = rlplat.get([handle.get_state.remote() for handle in group.handles])
        group.close()
    (version, one), (same_version, two) = published
    assert version == same_version == 2
    for name in one:
        np.testing.assert_allclose(two[name], one[name], atol=1e-5, err_msg=name)
    for name in states[0]["weights"]:  # and among themselves to the last bit
        np.testing.assert_array_equal(states[0]["weights"][name], states[1]["weights"][name])
    assert states[0]["rng"] == states[1]["rng"] and states[0]["env_steps"] == states[1]["env_steps"]
    assert reports[0].env_steps == reports[1].env_steps
    for name, value in reports[0].metrics.items():
        if name.startswith("learner/"):
            assert reports[1].metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


def test_a_restored_group_goes_on_as_one(processes: None) -> None:
    spec = make_spec(core="gru")
    group, server = make_group(spec, 2)
    group.update([rlplat.put(make_batch(spec, seed=0))])
    state = group.get_state()
    group.update([rlplat.put(make_batch(spec, seed=1))])
    _, expected = rlplat.get(server.latest.remote())
    group.close()
    other, other_server = make_group(spec, 2, seed=5)
    other.set_state(state)
    other.update([rlplat.put(make_batch(spec, seed=1))])
    _, weights = rlplat.get(other_server.latest.remote())
    for name in expected:
        np.testing.assert_array_equal(weights[name], expected[name], err_msg=name)
    other.close()


def test_a_learner_that_dies_ends_the_round(processes: None) -> None:
    spec = make_spec()
    group, _ = make_group(spec, 2)
    group.update([rlplat.put(make_batch(spec))])
    rlplat.kill(group.handles[1])
    with pytest.raises(RlplatError):
        group.update([rlplat.put(make_batch(spec))])
    group.close()


class Mortal(PPOLearner):
    """Learner 1 of a group ends in the middle of an update, in the way that its batch's first reward says."""

    def rollout_of(self, batches: Any) -> Any:
        rollout = super().rollout_of(batches)
        if self.rank == 1 and rollout.rewards[0, 0] == 1.0:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.rank == 1 and rollout.rewards[0, 0] == 2.0:
            raise ArithmeticError("learner 1 cannot count")
        return rollout


@pytest.mark.parametrize(
    "way, error, said", [(1.0, ActorDied, "SIGKILL"), (2.0, ArithmeticError, "learner 1 cannot count")]
)
def test_a_learner_that_ends_within_an_update_does_not_leave_the_other_waiting(
    processes: None, way: float, error: type[Exception], said: str
) -> None:
    spec = make_spec()
    group, _ = make_group(spec, 2, learner_class=Mortal)
    batch = make_batch(spec)
    batch.rewards[0, 0] = way
    with pytest.raises(error, match=said):
        group.update([rlplat.put(batch)])
    group.close()


def test_what_one_learner_raises_is_raised(processes: None) -> None:
    spec = make_spec()
    group, _ = make_group(spec, 2)
    batch = make_batch(spec)
    batch.rewards[3, 2] = np.nan
    with pytest.raises(RlplatError, match="reward nan from environment 2"):
        group.update([rlplat.put(batch)])
    group.close()


def test_a_run_with_two_learners_and_a_core_leaves_nothing_behind() -> None:
    """The leak meter around every test looks for processes, shared memory and sockets."""
    config = PPOConfig(
        env="CartPole-v1",
        num_envs_per_worker=4,
        rollout_length=8,
        minibatch_size=16,
        policy={"core": "lstm", "core_size": 8, "hidden_sizes": [8]},
        learner=TWO_LEARNERS,
    )
    with PPO(config) as ppo:
        results = [ppo.step() for _ in range(2)]
        assert results[-1].metrics["learner/weights_version"] == 2
    assert not rlplat.is_initialized()


def test_one_process_cannot_hold_two_learners() -> None:
    rlplat.init(backend="inproc")
    try:
        with pytest.raises(ConfigError, match=r"num_learners=2 needs a process for each.*--num-rollout-workers 1"):
            LearnerGroup(None, lambda rank: None, 2)
    finally:
        rlplat.shutdown()


def test_gpus_of_a_learner() -> None:
    rlplat.init(backend="inproc", num_gpus=1)
    try:
        images, vector = make_spec(IMAGE), make_spec()
        assert learner_gpus("auto", "auto", images) == 1
        assert learner_gpus("auto", "cpu", images) == learner_gpus("auto", "auto", vector) == 0
        assert learner_gpus("auto", "cuda", vector) == 1
        assert learner_gpus(0.5, "auto", vector) == 0.5
        with pytest.raises(RlplatError, match=r"learner\.num_gpus is 2, but there are 1 GPUs here"):
            learner_gpus(2, "auto", images)
    finally:
        rlplat.shutdown()


@pytest.mark.parametrize(("num_gpus", "device"), [("auto", "cuda"), (1, "auto"), (1, "cuda")])
def test_a_machine_without_a_gpu_says_so_at_once(monkeypatch: pytest.MonkeyPatch, num_gpus: Any, device: str) -> None:
    monkeypatch.setattr(rlplat, "cluster_resources", lambda: {"CPU": 2.0})
    with pytest.raises(InfeasibleResources, match=r"^learner\.\S+=\S+, but there is no GPU here: leave learner"):
        learner_gpus(num_gpus, device, make_spec())
    assert learner_gpus(0, "auto", make_spec()) == learner_gpus("auto", "auto", make_spec()) == 0
