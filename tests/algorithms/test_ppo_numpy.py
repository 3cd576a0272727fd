"""`NumpyPPO` beside `TorchPPO`: equal losses, gradients and parameters from equal weights; the same bits every time;
states exchanged. What a run does with `learner.backend`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import rlplat
from rlplat.algorithms.other_frameworks.ppo_numpy import STATS, NumpyPPO, numpy_ppo_loss
from rlplat.algorithms.ppo import PPO, PPOConfig, PPOLearner, ppo_loss
from rlplat.errors import ConfigError, NonFiniteError
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.spaces import ActionSpec
from tests.algorithms.losses import loss_of
from tests.algorithms.test_ppo_learner import BOX_SPEC, IMAGE_SPEC, VECTOR, make_batch, parameter_server
from tests.rl.specimens import make_spec

__all__ = ["parameter_server"]  # a fixture
SHARED = make_spec(action=ActionSpec("discrete", n=2), hidden_sizes=[16, 8], share_encoder=True, activation="relu")
SPECS = {"separate": VECTOR, "gaussian": BOX_SPEC, "shared": SHARED}


def make_learner(parameter_server: Any, backend: str, spec: Any = VECTOR, **settings: Any) -> PPOLearner:
    defaults = {"env": "made up", "seed": 1, "minibatch_size": 16, "num_epochs": 2, "entropy_coef": 0.01}
    config = PPOConfig(**(defaults | {"learner": {"backend": backend}} | settings))
    return PPOLearner(computation_of(PPO), config.model_dump(), spec, parameter_server)


@pytest.mark.parametrize("clip_value_loss", [False, True])
def test_the_loss_and_its_derivatives_are_torchs(clip_value_loss: bool) -> None:
    rng = np.random.default_rng(0)
    names = ("new_log_probs", "new_entropies", "new_values", "log_probs", "values", "advantages", "returns")
    data = {name: rng.normal(0.0, 0.4, 64).astype(np.float32) for name in names}
    data["new_log_probs"][:8] = data["log_probs"][:8]  # ratio 1
    data["advantages"][:4] = 0.0
    switches: dict[str, Any] = {
        "clip_range": 0.2,
        "value_coef": 0.7,
        "entropy_coef": 0.01,
        "clip_value_loss": clip_value_loss,
    }
    columns = {name: data[name] for name in names[3:]}
    minibatch, config = SimpleNamespace(**columns), SimpleNamespace(**switches)
    stats, *derivatives = numpy_ppo_loss(*(data[name] for name in names[:3]), minibatch, config)
    new = [torch.tensor(data[name], requires_grad=True) for name in names[:3]]
    tensors = {name: torch.tensor(each) for name, each in columns.items()}
    loss, expected = loss_of(ppo_loss, new, tensors, **switches)
    loss.backward()
    np.testing.assert_allclose(stats, [expected[name] for name in STATS], rtol=1e-5, atol=1e-7)
    for derivative, tensor in zip(derivatives, new, strict=True):
        assert derivative.dtype == np.float32 and tensor.grad.abs().max() > 0
        np.testing.assert_allclose(derivative, tensor.grad.numpy(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_updates_are_torchs(parameter_server: Any, spec: Any) -> None:
    """Three rounds of minibatches from one state: statistics, gradient norms, parameters and Adam's moments."""
    settings = {"clip_value_loss": True, "max_gradient_norm": 0.05}
    ours, torchs = (make_learner(parameter_server, name, spec, **settings) for name in ("numpy", "torch"))
    ours.set_state(torchs.get_state())
    assert isinstance(ours.net, NumpyPPO)
    for seed in range(3):
        found, expected = (learner.update(make_batch(spec, seed)).metrics for learner in (ours, torchs))
        for name in [*STATS, "gradient_norm"]:
            assert found[f"learner/{name}"] == pytest.approx(expected[f"learner/{name}"], rel=1e-4, abs=1e-6)
    one, other = ours.get_state(), torchs.get_state()
    assert one["weights"].keys() == other["weights"].keys() == one["optimizer"].keys()
    for name, array in other["weights"].items():
        np.testing.assert_allclose(one["weights"][name], array, rtol=1e-4, atol=1e-5, err_msg=name)
        for key, moment in other["optimizer"][name].items():
            assert one["optimizer"][name][key].shape == moment.shape and moment.any()
            np.testing.assert_allclose(one["optimizer"][name][key], moment, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("first, then", [("numpy", "numpy"), ("numpy", "torch")])
def test_a_saved_state_goes_on(parameter_server: Any, first: str, then: str) -> None:
    """Under the same backend bit by bit."""
    one = make_learner(parameter_server, first)
    one.update(make_batch(VECTOR, 0))
    other = make_learner(parameter_server, then, seed=5)
    other.set_state(one.get_state())
    for learner in (one, other):
        learner.update(make_batch(VECTOR, 1))
    expected, found = one.get_state(), other.get_state()
    assert expected["rng"] == found["rng"]
    for name, array in expected["weights"].items():
        np.testing.assert_allclose(found["weights"][name], array, rtol=0, atol=0 if then == first else 1e-6)


def test_the_first_weights_are_as_torchs(parameter_server: Any) -> None:
    """Orthogonal with the same gains; or, as torch has them by itself, uniform."""
    weights = make_learner(parameter_server, "numpy", make_spec(hidden_sizes=[16, 24])).get_state()["weights"]
    for name, gain in (
        ("actor_encoder.layers.1", 2.0),
        ("critic_encoder.layers.0", 2.0),
        ("actor_head", 1e-4),
    ):
        weight = weights[f"{name}.weight"]
        small = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
        np.testing.assert_allclose(small, gain * np.eye(len(small)), atol=1e-5 * gain)
        assert not weights[f"{name}.bias"].any()
    assert (weights["actor_encoder.layers.0.weight"] != weights["critic_encoder.layers.0.weight"]).any()
    plain = make_learner(parameter_server, "numpy", make_spec(hidden_sizes=[64, 64], orthogonal_init=False))
    for part in ("weight", "bias"):
        array = plain.get_state()["weights"][f"actor_encoder.layers.1.{part}"]
        assert 0.9 / 8 < np.abs(array).max() <= 1 / 8


def test_numbers_that_are_not_finite(parameter_server: Any) -> None:
    batch = make_batch()
    batch.log_probs[0, 0] = -np.inf
    learner = make_learner(parameter_server, "numpy", num_epochs=1, minibatch_size=1000)
    before = learner.get_state()["weights"]
    with pytest.raises(NonFiniteError, match=r"batch columns \['log_probs'\].*version 0"):
        learner.update(batch)
    assert all((array == before[name]).all() for name, array in learner.get_state()["weights"].items())
    assert learner.trainee.non_finite_gradients()
    skipping = make_learner(parameter_server, "numpy", num_epochs=1, minibatch_size=8, non_finite="skip")
    assert skipping.update(batch).metrics["learner/skipped_minibatches"] == 1


@pytest.mark.parametrize(
    "spec, settings, backend, reason",
    [
        (VECTOR, {}, "numpy", ""),
        (VECTOR, {"learner": {"backend": "torch"}}, "torch", ""),
        (VECTOR, {"learner": {"num_learners": 2}}, "torch", ": learner.num_learners is 2"),
        (VECTOR, {"learner": {"num_threads": 2}}, "torch", ": learner.num_threads is 2"),
        (VECTOR, {"learner": {"device": "cuda"}}, "torch", ": learner.device is cuda"),
        (VECTOR, {"framework": "tf"}, "tf", ": framework is tf"),
        (IMAGE_SPEC, {}, "torch", ": the policy is not a plain MLP"),
        (make_spec(core="gru"), {}, "torch", ": the policy is not a plain MLP"),
    ],
)
def test_auto_takes_numpy_where_it_can(spec: Any, settings: Any, backend: str, reason: str) -> None:
    config = PPOConfig(env="made up", **settings)
    computation = computation_of(PPO)
    assert computation.backend(config, spec) == backend
    assert computation.notes(config, [spec])[0].startswith(f"the learner computes with {backend}{reason}")
    if reason:
        asked = config.model_copy(update={"learner": config.learner.model_copy(update={"backend": "numpy"})})
        with pytest.raises(ConfigError, match=r"learner\.backend=numpy learns plain MLPs on the CPU .*, but"):
            computation.backend(asked, spec)


def test_torch_as_backend_of_another_framework_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.backend=torch, but framework=tf"):
        computation_of(PPO).backend(PPOConfig(env="made up", framework="tf", learner={"backend": "torch"}), VECTOR)


@pytest.mark.parametrize(
    "settings, modules",
    [
        ({"env": "CartPole-v1"}, ()),
        ({"env": "CartPole-v1", "learner": {"backend": "torch"}}, ("torch",)),
        ({"env": "CartPole-v1", "policy": {"core": "gru"}}, ("torch",)),
        ({"env": "Pong"}, ("torch",)),
    ],
)
def test_processes_begin_with_torch_only_where_it_is_needed(settings: Any, modules: tuple[str, ...]) -> None:
    rlplat.init(backend="inproc")
    try:
        ppo = PPO.__new__(PPO)  # without its actors
        ppo.config = PPOConfig(**settings)
        assert ppo.preload() == modules
    finally:
        rlplat.shutdown()
