"""`ActorCritic`: initialisation, shared and separate encoders, cores between encoder and heads, weights as numpy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rlplat.errors import CheckpointError, ConfigError  # noqa: E402
from rlplat.rl.obs_tree import map_obs  # noqa: E402
from rlplat.rl.spaces import ObsSpec  # noqa: E402
from rlplat.rl.torch.networks import ActorCritic, make_network  # noqa: E402
from rlplat.rl.torch.weights import load_weights, weights_of  # noqa: E402
from tests.rl.specimens import BOX, IMAGE, make_spec, random_obs, spec_of_actions  # noqa: E402

CORES = ("none", "lstm", "gru", "attention")


def rows(num: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num, 4, generator=torch.Generator().manual_seed(seed))


def test_orthogonal_initialisation_with_its_gains() -> None:
    weights = weights_of(ActorCritic(make_spec()))
    second = weights["actor_encoder.layers.1.weight"]  # [8, 16]: orthogonal rows of length sqrt(2)
    np.testing.assert_allclose(second @ second.T, 2.0 * np.eye(8), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(weights["actor_head.weight"], axis=1), 0.01, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(weights["critic_head.weight"], axis=1), 1.0, rtol=1e-5)
    assert not any(w.any() for name, w in weights.items() if name.endswith("bias"))


def test_or_the_frameworks_own() -> None:
    weights = weights_of(ActorCritic(make_spec(orthogonal_init=False)))
    assert all(w.any() for w in weights.values())


def test_separate_or_shared_encoders() -> None:
    separate = weights_of(ActorCritic(make_spec()))
    shared = weights_of(ActorCritic(make_spec(share_encoder=True)))
    assert "critic_encoder.layers.0.weight" in separate
    assert not any(name.startswith("critic_encoder") for name in shared)


def test_values_come_from_the_critics_encoder() -> None:
    network = ActorCritic(make_spec())
    before = network(rows(5))[1]
    with torch.no_grad():
        network.actor_encoder.layers[0].weight.zero_()
    torch.testing.assert_close(network(rows(5))[1], before, atol=0, rtol=0)


@pytest.mark.parametrize("core", CORES)
def test_what_comes_out(core: str) -> None:
    """2 steps of 3 environments: rows time first; without a state, episodes begin."""
    network = ActorCritic(make_spec(core=core))
    starts = torch.zeros(2, 3, dtype=torch.bool)
    distribution, values, state = network(rows(6), None, starts)
    assert distribution.sample(torch.Generator()).shape == values.shape == (6,)
    assert state.shape == (3, network.state_size)
    again = network(rows(6), torch.zeros(3, network.state_size), starts)[1]
    torch.testing.assert_close(again, values, atol=0, rtol=0)
    assert (network.state_size == 0) == (core == "none")


@pytest.mark.parametrize("core", CORES)
def test_evaluate_actions_is_forward(core: str) -> None:
    network = ActorCritic(make_spec(core=core))
    starts = torch.tensor([[False, False, False], [True, False, False]])
    state = torch.zeros(3, network.state_size)
    distribution, values, _ = network(rows(6), state, starts)
    actions = torch.tensor([0, 1, 2, 0, 1, 2])
    log_probs, entropies, same_values = network.evaluate_actions(rows(6), actions, state, starts)
    torch.testing.assert_close(log_probs, distribution.log_prob(actions))
    torch.testing.assert_close(entropies, distribution.entropy())
    torch.testing.assert_close(same_values, values)


def test_log_std_is_one_parameter_for_all_gaussian_columns() -> None:
    network = ActorCritic(spec_of_actions("composite", initial_log_std=-0.5))
    assert network.log_std.tolist() == [-0.5, -0.5]
    assert not hasattr(ActorCritic(make_spec()), "log_std")


def test_weights_are_copies_in_plain_order_and_load_again() -> None:
    torch.manual_seed(0)
    one, two = ActorCritic(make_spec(IMAGE)), ActorCritic(make_spec(IMAGE))
    weights = weights_of(one)
    assert all(w.flags.c_contiguous and w.dtype == np.float32 for w in weights.values())
    load_weights(two, weights)
    for array in weights.values():
        array.fill(0.0)  # neither network may feel it
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        assert p.any() or p.ndim == 1
        torch.testing.assert_close(p, q, atol=0, rtol=0)


@pytest.mark.parametrize(
    "other, complaint",
    [({"core": "lstm"}, "lack 'core.weight_ih'"), ({"hidden_sizes": [16, 9]}, r"shape \(8, 16\).*\(9, 16\)")],
)
def test_weights_of_another_network_are_refused(other: dict[str, Any], complaint: str) -> None:
    weights = weights_of(ActorCritic(make_spec(share_encoder=True)))
    with pytest.raises(CheckpointError, match=complaint):
        load_weights(ActorCritic(make_spec(**({"share_encoder": True} | other))), weights)


def test_custom_names_the_class() -> None:
    network = make_network(make_spec(custom=f"{__name__}:Doubled"))
    assert isinstance(network, Doubled)
    obs = random_obs(network.spec, (3,), np.random.default_rng(0))
    torch.manual_seed(0)
    assert isinstance(obs, np.ndarray)
    tensor = torch.from_numpy(obs)
    expected = 2.0 * network.critic_head(network.critic_encoder(tensor)).squeeze(-1)
    torch.testing.assert_close(network(tensor)[1], expected)


class Doubled(ActorCritic):
    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        distribution, values, state = super().forward(obs, state, starts)
        return distribution, 2.0 * values, state


VECTORS = {"arm": ObsSpec("vector", (3,), "float32"), "sim": ObsSpec("vector", (2,), "float32")}
OPTIONS: dict[str, dict[str, Any]] = {
    "layer_norm": {"layer_norm": True, "activation": "elu"},
    "critic_sizes": {"critic_hidden_sizes": [5]},
    "sde": {"use_sde": True},
    "core": {"core": "lstm"},
    "groups": {"obs_groups": {"actor": ["arm"]}},
    "shared": {"share_encoder": True},
    "squashed": {"squash_actions": True},
}


@pytest.mark.parametrize("chosen", [*itertools.combinations(OPTIONS, 2)], ids="-".join)
def test_any_two_options_work_together_or_are_refused(chosen: tuple[str, str]) -> None:
    """Each alone worked, and noise of the features' took its size from a critic with sizes of its own."""
    policy = {key: value for name in chosen for key, value in OPTIONS[name].items()}
    try:
        spec = make_spec(VECTORS, BOX, **policy)
    except ConfigError:
        return
    network = ActorCritic(spec)
    obs = map_obs(torch.from_numpy, random_obs(spec, (3,), np.random.default_rng(0)))
    distribution, values, state = network(obs)
    loss = distribution.log_prob(distribution.sample(torch.Generator())).mean() + values.square().mean()
    loss.backward()
    assert values.shape == (3,) and state.shape == (3, network.state_size)
    assert all(parameter.grad is not None for parameter in network.parameters())
