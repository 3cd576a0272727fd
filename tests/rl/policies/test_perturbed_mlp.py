"""Many perturbed networks at once give what each of them gives alone; layouts, names, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from rlplat.errors import ConfigError
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR
from rlplat.rl.policies.perturbed_mlp import (
    MLPPolicy,
    MLPShape,
    NoiseTable,
    PerturbedMLPs,
    make_noise,
)
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec

BOX = ActionSpec("box", shape=(3,), dtype="float32", low=(-1.0,) * 3, high=(1.0,) * 3)
SPACES = {
    "discrete": SpaceSpec(ObsSpec("vector", (4,), "float32"), ActionSpec("discrete", n=3)),
    "box": SpaceSpec(ObsSpec("vector", (2, 2), "float64"), BOX),
}
SEED = np.random.SeedSequence(1)


def reference(weights: dict[str, np.ndarray], obs: np.ndarray, activation: str) -> np.ndarray:
    """One network, one observation, float64."""
    x = (obs - weights[OBS_MEAN]) / np.sqrt(weights[OBS_VAR] + 1e-8)
    x = np.clip(x, -10, 10).reshape(-1)
    layers = sorted({name.rpartition(".")[0] for name in weights if name.startswith("actor_encoder")})
    for layer in layers:
        x = weights[f"{layer}.weight"].astype(np.float64) @ x + weights[f"{layer}.bias"]
        x = np.tanh(x) if activation == "tanh" else np.maximum(x, 0)
    return weights["actor_head.weight"].astype(np.float64) @ x + weights["actor_head.bias"]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden_sizes", [(), (8,), (8, 5)])
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_every_slot_acts_with_its_own_perturbation(kind: str, hidden_sizes: tuple[int, ...], activation: str) -> None:
    spaces = SPACES[kind]
    shape = MLPShape(spaces, hidden_sizes=hidden_sizes, activation=activation)
    noise = make_noise(1000, SEED)
    rng = np.random.default_rng(2)
    theta = rng.standard_normal(shape.num_params).astype(np.float32)
    mean, var = rng.standard_normal(shape.obs_shape), rng.uniform(0.5, 2.0, shape.obs_shape)
    statistics = {OBS_MEAN: mean.astype(np.float32), OBS_VAR: var.astype(np.float32)}
    obs = rng.standard_normal((6, *shape.obs_shape)).astype(spaces.obs.dtype)  # type: ignore[union-attr]

    mlps = PerturbedMLPs(shape, 6, NoiseTable(noise))
    mlps.set_weights(shape.named(theta) | statistics)
    places = [(0, 0.5), (7, -0.5), (7, 0.5), (100, 0.0), (200, 2.0), (201, 2.0)]
    for slot, (index, scale) in enumerate(places):
        mlps.load(slot, index, scale)
    actions = mlps.act(obs)
    for slot, (index, scale) in enumerate(places):
        perturbed = theta + scale * noise[index : index + shape.num_params]
        weights = shape.named(perturbed) | statistics
        expected = reference(weights, obs[slot], activation)
        policy = MLPPolicy(shape, SEED)
        policy.set_weights(weights)
        alone = policy.act(obs[slot : slot + 1], deterministic=True).actions[0]
        if kind == "discrete":
            assert actions[slot] == alone == expected.argmax()
        else:
            np.testing.assert_allclose(actions[slot], expected, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(alone, expected, rtol=1e-4, atol=1e-4)
    assert actions.dtype == (np.int64 if kind == "discrete" else np.float32)


def test_parameters_are_named_as_an_actor_critics_and_come_back_as_they_were() -> None:
    shape = MLPShape(SPACES["box"], hidden_sizes=(8, 5))
    theta = np.arange(shape.num_params, dtype=np.float32)
    weights = shape.named(theta)
    assert {name: array.shape for name, array in weights.items()} == {
        "actor_encoder.layers.0.weight": (8, 4),
        "actor_encoder.layers.0.bias": (8,),
        "actor_encoder.layers.1.weight": (5, 8),
        "actor_encoder.layers.1.bias": (5,),
        "actor_head.weight": (3, 5),
        "actor_head.bias": (3,),
    }
    np.testing.assert_array_equal(shape.flat(weights | {OBS_MEAN: np.zeros(4)}), theta)


def test_weights_of_another_network_are_refused() -> None:
    shape = MLPShape(SPACES["box"], hidden_sizes=(8,))
    other = MLPShape(SPACES["box"], hidden_sizes=(9,))
    weights = other.named(np.zeros(other.num_params, np.float32))
    with pytest.raises(ConfigError, match=r"layers\.0\.weight is \(9, 4\) there, and \(8, 4\) in this"):
        shape.flat(weights)
    del weights["actor_encoder.layers.0.weight"]
    with pytest.raises(ConfigError, match="is missing there"):
        shape.flat(weights)


def test_initial_rows_have_their_lengths_and_a_linear_policy_begins_with_zeros() -> None:
    shape = MLPShape(SPACES["box"], hidden_sizes=(8,))
    weights = shape.named(shape.initial(SEED))
    hidden, head = weights["actor_encoder.layers.0.weight"], weights["actor_head.weight"]
    np.testing.assert_allclose(np.linalg.norm(hidden, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(head, axis=1), 0.01, rtol=1e-5)
    assert not weights["actor_head.bias"].any()
    linear = MLPShape(SPACES["box"], hidden_sizes=())
    assert not linear.initial(SEED).any() and linear.num_params == 15
