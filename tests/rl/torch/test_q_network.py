"""Q-networks: what the heads compute; the numpy policy against torch; noise, masks, cores, networks of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplat.errors import UsageError
from rlplat.rl.algorithm_config import PolicyConfig
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR
from rlplat.rl.policies.exploration import EPSILON, choose_actions, env_epsilons
from rlplat.rl.policies.make import make_policy
from rlplat.rl.policies.numpy_policies import NumpyQPolicy
from rlplat.rl.policies.spec import PolicySpec, QSpec, policy_spec
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from rlplat.rl.torch.policy import TorchQPolicy
from rlplat.rl.torch.q_network import NoisyLinear, QNetwork, check_q_network, make_q_network
from rlplat.rl.torch.weights import weights_of

PLAIN = QSpec(False, False, "none", 11, (-2.0, 3.0), 0)
VECTOR = SpaceSpec(ObsSpec("vector", (5,), "float32"), ActionSpec("discrete", 3))
SEED = np.random.SeedSequence(3)
HEADS = [
    PLAIN,
    replace(PLAIN, dueling=True),
    replace(PLAIN, distributional="c51", dueling=True),
    replace(PLAIN, distributional="qr", head_hidden_size=7),
    replace(PLAIN, noisy=True, dueling=True, distributional="c51", head_hidden_size=7),
]


def spec_of(spaces: SpaceSpec = VECTOR, **settings: Any) -> PolicySpec:
    return policy_spec(PolicyConfig(**({"hidden_sizes": [8, 6]} | settings)).model_dump(), spaces)


def network_of(spec: PolicySpec, q: QSpec) -> QNetwork:
    torch.manual_seed(0)
    return make_q_network(spec, q)


@pytest.mark.parametrize("q", HEADS)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_numpy_acts_as_torch_does(q: QSpec, activation: str) -> None:
    spec = spec_of(activation=activation)
    network = network_of(spec, q)
    fast, slow = NumpyQPolicy(spec, q, SEED), TorchQPolicy(spec, q, SEED)
    for policy in (fast, slow):
        policy.set_weights(weights_of(network))
    obs = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    np.testing.assert_allclose(fast.q_values(obs), slow.q_values(obs), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fast.values(obs), fast.q_values(obs).max(axis=1))
    first, second = (policy.act(obs, deterministic=True) for policy in (fast, slow))
    np.testing.assert_array_equal(first.actions, second.actions)
    np.testing.assert_array_equal(first.actions, fast.q_values(obs).argmax(axis=1))
    np.testing.assert_allclose(first.values, second.values, rtol=1e-5)


@pytest.mark.parametrize("policy_class", [NumpyQPolicy, TorchQPolicy])
def test_observations_are_normalised_by_what_comes_with_the_weights(policy_class: Any) -> None:
    spec, rng = spec_of(), np.random.default_rng(0)
    weights = weights_of(network_of(spec, PLAIN))
    plain, normalising = policy_class(spec, PLAIN, SEED), policy_class(spec, PLAIN, SEED)
    mean, var = rng.normal(size=5).astype(np.float32), rng.uniform(0.5, 4.0, 5).astype(np.float32)
    plain.set_weights(weights)
    normalising.set_weights(weights | {OBS_MEAN: mean, OBS_VAR: var})
    obs = rng.normal(size=(9, 5)).astype(np.float32)
    expected = plain.q_values((obs - mean) / np.sqrt(var))
    np.testing.assert_allclose(normalising.q_values(obs), expected, rtol=1e-4, atol=1e-5)
    assert abs(expected - plain.q_values(obs)).max() > 0.01


@pytest.mark.parametrize("dueling", [False, True])
def test_of_the_gradient_of_two_streams_the_encoder_gets_its_share(dueling: bool) -> None:
    """1/sqrt(2) of it (Wang et al. 2016, section 4.2); heads get theirs whole, outputs do not change."""
    network = network_of(spec_of(), replace(PLAIN, dueling=dueling))
    obs = torch.randn(9, 5)
    gradients = []
    for is_training in (True, False):  # who acts has no gradients
        network.train(is_training)
        outputs, _ = network(obs)
        names, parameters = zip(*network.named_parameters(), strict=True)
        gradients.append(dict(zip(names, torch.autograd.grad(outputs[:, 0].sum(), parameters), strict=True)))
    for name, whole in gradients[1].items():
        share = 0.5**0.5 if dueling and name.startswith("encoder") else 1.0
        torch.testing.assert_close(gradients[0][name], share * whole)


def test_dueling_heads_and_expectations() -> None:
    """Q = V + A - mean(A), atom by atom; C51: sum_i z_i p_i (Wang et al. 2016, eq. 9; Bellemare et al. 2017)."""
    q = replace(PLAIN, dueling=True, distributional="c51")
    network = network_of(spec_of(), q)
    obs = torch.randn(4, 5)
    outputs, _ = network(obs)
    features = network.encoder(obs)
    advantages = network.advantage_head(features).view(4, 3, 11)
    values = network.value_head(features).view(4, 1, 11)
    logits = (values + advantages - advantages.mean(1, keepdim=True)).detach().numpy()
    np.testing.assert_allclose(outputs.detach(), logits, atol=1e-6)
    probs = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    expected = (probs * np.linspace(-2, 3, 11)).sum(axis=2)
    np.testing.assert_allclose(network.q_values(outputs).detach(), expected, atol=1e-5)


def test_noise_is_factorised_and_goes_when_it_is_cleared() -> None:
    """w = mu + sigma f(e_out) f(e_in)^T, f(x) = sgn(x) sqrt|x| (Fortunato et al. 2018, eq. 10 and 11)."""
    torch.manual_seed(0)
    layer = NoisyLinear(4, 3, 0.5)
    assert layer.weight_sigma[0, 0].item() == pytest.approx(0.5 / 2.0)
    x = torch.randn(2, 4)
    quiet = layer(x)
    layer.draw_noise(torch.Generator().manual_seed(5))
    noise = torch.randn(7, generator=torch.Generator().manual_seed(5)).numpy()
    f = np.sign(noise) * np.sqrt(np.abs(noise))
    weight = layer.weight.detach().numpy() + 0.25 * np.outer(f[:3], f[3:])
    bias = layer.bias.detach().numpy() + 0.25 * f[:3]
    np.testing.assert_allclose(layer(x).detach(), x.numpy() @ weight.T + bias, atol=1e-6)
    layer.clear_noise()
    np.testing.assert_array_equal(layer(x).detach(), quiet.detach())


@pytest.mark.parametrize("policy_class", [NumpyQPolicy, TorchQPolicy])
def test_noisy_policies_explore_and_greedy_ones_do_not(policy_class: Any) -> None:
    q = replace(PLAIN, noisy=True)
    network = network_of(spec_of(), q)
    with torch.no_grad():
        network.advantage_head.out.weight_sigma.fill_(1.0)
    policy = policy_class(spec_of(), q, SEED)
    policy.set_weights(weights_of(network) | {EPSILON: np.zeros(1, np.float32)})
    obs = np.ones((1, 5), np.float32)
    assert len({int(policy.act(obs).actions[0]) for _ in range(60)}) > 1
    greedy = policy.q_values(obs).argmax()
    assert {int(policy.act(obs, deterministic=True).actions[0]) for _ in range(20)} == {greedy}


@pytest.mark.parametrize("policy_class", [NumpyQPolicy, TorchQPolicy])
def test_a_greedy_policy_may_have_an_epsilon_of_its_own(policy_class: Any) -> None:
    weights = weights_of(network_of(spec_of(), PLAIN)) | {EPSILON: np.ones(1, np.float32)}
    obs = np.ones((1, 5), np.float32)

    def play(greedy_epsilon: float) -> list[int]:
        policy = policy_class(spec_of(), PLAIN, SEED)
        policy.set_weights(weights)
        policy.exploration.greedy_epsilon = greedy_epsilon
        return [int(policy.act(obs, deterministic=True).actions[0]) for _ in range(40)]

    assert len(set(play(0.0))) == 1
    assert len(set(play(0.5))) > 1 and play(0.5) == play(0.5)


def test_exploration_takes_legal_actions_only() -> None:
    rng = np.random.default_rng(0)
    q_values = np.tile(np.array([[0.0, 9.0, 1.0, 2.0]], np.float32), (4000, 1))
    mask = np.tile(np.array([[True, False, True, True]]), (4000, 1))
    obs = {"obs": q_values, "action_mask": mask}
    actions, q_taken, q_max = choose_actions(q_values, obs, 0.6, rng)
    counts = np.bincount(actions, minlength=4)
    assert counts[1] == 0 and (q_max == 2.0).all()
    np.testing.assert_allclose(counts / 4000, [0.2, 0.0, 0.2, 0.6], atol=0.03)
    np.testing.assert_array_equal(q_taken, q_values[0, actions])
    greedy, _, _ = choose_actions(q_values, obs, 0.0, rng)
    assert (greedy == 3).all()
    unmasked, _, _ = choose_actions(q_values, q_values, 1.0, rng)
    np.testing.assert_allclose(np.bincount(unmasked) / 4000, 0.25, atol=0.03)


def test_epsilons_of_horgan_et_al() -> None:
    """0.4^(1 + 7 i / (N - 1))"""
    np.testing.assert_allclose(env_epsilons(3), [0.4, 0.4**4.5, 0.4**8])
    np.testing.assert_allclose(env_epsilons(1), [0.4])
    policy = make_policy(spec_of(), SEED, q=PLAIN, epsilons=np.array([0.0, 1.0]))
    policy.set_weights(weights_of(network_of(spec_of(), PLAIN)) | {EPSILON: np.ones(1, np.float32)})
    obs = np.ones((2, 5), np.float32)
    taken = np.array([policy.act(obs).actions for _ in range(40)])
    assert len(set(taken[:, 0])) == 1 and len(set(taken[:, 1])) > 1


@pytest.mark.parametrize("core", ["lstm", "gru", "attention"])
def test_a_core_remembers_until_it_is_reset(core: str) -> None:
    spec = spec_of(core=core, core_size=8, attention_window=4, attention_heads=2)
    policy = make_policy(spec, SEED, q=PLAIN)
    assert isinstance(policy, TorchQPolicy)
    policy.set_weights(weights_of(network_of(spec, PLAIN)))
    obs = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)
    first = policy.q_values(obs[0])
    policy.act(obs[0])
    state = policy.get_state()
    later = policy.q_values(obs[1])
    np.testing.assert_array_equal(policy.q_values(obs[1]), later)  # a look does not advance
    policy.act(obs[1])
    policy.set_state(state)
    np.testing.assert_array_equal(policy.q_values(obs[1]), later)
    policy.reset_core(np.array([True, False]))
    again = policy.q_values(obs[1])
    assert (again[0] != later[0]).any() and (again[1] == later[1]).all()
    policy.reset_core(np.array([True, True]))
    np.testing.assert_allclose(policy.q_values(obs[0]), first, atol=1e-6)


def test_sequences_equal_step_by_step() -> None:
    spec = spec_of(core="lstm", core_size=8)
    network = network_of(spec, PLAIN)
    obs = torch.randn(6, 2, 5)
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[3, 0] = True
    whole, last = network(obs.view(12, 5), torch.zeros(2, 16), starts)
    state, parts = torch.zeros(2, 16), []
    for t in range(6):
        state = state * ~starts[t].unsqueeze(1)
        out, state = network(obs[t], state)
        parts.append(out)
    torch.testing.assert_close(whole, torch.cat(parts))
    torch.testing.assert_close(last, state)


class DeepQNetwork(QNetwork):
    """A network of one's own."""


class WrongQNetwork(QNetwork):
    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        outputs, state = super().forward(obs, state, starts)
        return outputs[:, :2], state


class Normalized(torch.nn.Module):
    """An encoder of one's own."""

    def __init__(self, spec: PolicySpec, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.norm, self.num_features = torch.nn.BatchNorm1d(5), 5

    def forward(self, obs: Any) -> Any:
        return self.norm(obs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_buffers_of_an_encoder_are_constants(dtype: str) -> None:
    spaces = replace(VECTOR, obs=ObsSpec("vector", (5,), dtype))
    network = make_q_network(spec_of(spaces, encoder=f"{__name__}:Normalized"), PLAIN)
    with pytest.raises(UsageError, match=r"Normalized: a training forward pass changes the buffer encoder.norm."):
        check_q_network(network, torch.device("cpu"))


def test_networks_of_ones_own() -> None:
    path = "tests.rl.torch.test_q_network:"
    network = make_q_network(spec_of(custom=path + "DeepQNetwork"), PLAIN)
    check_q_network(network, torch.device("cpu"))
    assert type(network).__name__ == "DeepQNetwork"
    wrong = make_q_network(spec_of(custom=path + "WrongQNetwork"), PLAIN)
    with pytest.raises(UsageError, match=r"outputs has shape \(3, 2, 1\), expected \(3, 3, 1\)"):
        check_q_network(wrong, torch.device("cpu"))
    with pytest.raises(UsageError, match=r"extend rlplat.rl.torch.q_network.QNetwork"):
        make_q_network(spec_of(custom="rlplat.rl.torch.networks:ActorCritic"), PLAIN)
