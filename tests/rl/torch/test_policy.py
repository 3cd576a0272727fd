"""The acting policies against the network that the learner trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rlplat.errors import ConfigError  # noqa: E402
from rlplat.rl.interfaces import Obs  # noqa: E402
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR  # noqa: E402
from rlplat.rl.obs_tree import map_obs, take_obs  # noqa: E402
from rlplat.rl.policies.make import make_policy  # noqa: E402
from rlplat.rl.policies.numpy_policies import NumpyActorCritic  # noqa: E402
from rlplat.rl.policies.spec import PolicySpec, QSpec  # noqa: E402
from rlplat.rl.spaces import ActionSpec, ObsSpec  # noqa: E402
from rlplat.rl.torch.agent_module import agent_module  # noqa: E402
from rlplat.rl.torch.device import resolve_precision  # noqa: E402
from rlplat.rl.torch.networks import ActorCritic  # noqa: E402
from rlplat.rl.torch.policy import TorchActorCritic  # noqa: E402
from rlplat.rl.torch.weights import weights_of  # noqa: E402
from tests.rl.specimens import (  # noqa: E402
    ACTIONS,
    BOX,
    DISCRETE,
    TREE,
    make_spec,
    masked,
    random_obs,
    spec_of_actions,
)

PLAIN = {
    "separate tanh": make_spec(hidden_sizes=[32, 16]),
    "shared relu": make_spec(share_encoder=True, activation="relu"),
    **{name: make_spec(activation=name) for name in ("leaky_relu", "elu", "selu", "silu", "gelu", "mish")},
    "normalised, critic of its own": make_spec(layer_norm=True, activation="elu", critic_hidden_sizes=[7, 5, 3]),
    "gaussian": make_spec(action=BOX, initial_log_std=-0.5),
    "rescaled": make_spec(action=BOX, rescale_actions=True),
    "matrix observations": make_spec(ObsSpec("vector", (2, 3), "float32")),
    "float64 observations": make_spec(ObsSpec("vector", (3,), "float64")),
    "integer observations": make_spec(ObsSpec("vector", (3,), "int32")),
}
IMAGE = make_spec(ObsSpec("image", (4, 84, 84), "uint8", "CHW"), ActionSpec("discrete", n=6))
CORES = ("lstm", "gru", "attention")


def network_for(spec: PolicySpec) -> ActorCritic:
    torch.manual_seed(0)
    network = ActorCritic(spec)
    with torch.no_grad():
        network.actor_head.weight.mul_(100.0)  # away from the nearly uniform policy of the start
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    return network


def acting(spec: PolicySpec, network: ActorCritic, seed: int = 1) -> TorchActorCritic:
    policy = TorchActorCritic(spec, np.random.SeedSequence(seed), precision="float32", num_threads=1)
    policy.set_weights(weights_of(network))
    return policy


def tensors(obs: Obs, spec: PolicySpec) -> Any:
    """As the learner gives them to its network: vectors in float32."""

    def tensor(leaf: np.ndarray, leaf_spec: ObsSpec) -> torch.Tensor:
        return torch.from_numpy(leaf.astype(np.float32) if leaf_spec.kind == "vector" else leaf.copy())

    return map_obs(tensor, obs, spec.obs)


@pytest.mark.parametrize("freq", [-1, 3])
def test_state_dependent_noise_is_one_function_of_the_features_until_it_is_drawn_anew(freq: int) -> None:
    """Raffin et al. 2021, section 4: a = mu(s) + W z(s), W ~ N(0, sigma^2), so that a_j has the variance
    sum_f (z_f sigma_fj)^2."""
    spec = make_spec(action=BOX, use_sde=True, sde_sample_freq=freq, initial_log_std=-0.5)
    network = network_for(spec)
    with torch.no_grad():
        network.log_std.add_(torch.randn_like(network.log_std) * 0.3)
    policy, rng = acting(spec, network), np.random.default_rng(0)
    obs = random_obs(spec, (4,), rng)
    with torch.no_grad():
        z = network.actor_encoder(tensors(obs, spec))
        means = network.actor_head(z)
        std = (z.square() @ network.log_std.exp().square()).sqrt()
    outputs = [policy.act(obs) for _ in range(7)]
    for output in outputs:
        expected = torch.distributions.Normal(means, std).log_prob(torch.from_numpy(output.actions)).sum(-1)
        np.testing.assert_allclose(output.log_probs, expected, rtol=1e-3, atol=1e-3)
    same = [bool((output.actions == outputs[0].actions).all()) for output in outputs]
    assert same == ([True] * 7 if freq == -1 else [True] * 3 + [False] * 4)
    policy.set_weights(weights_of(network))
    assert (policy.act(obs).actions != outputs[-1].actions).any()
    greedy = policy.act(obs, deterministic=True).actions
    np.testing.assert_allclose(greedy, means, rtol=1e-5, atol=1e-6)

    drawn = policy.act(np.repeat(obs, 3_000, axis=0)).actions.reshape(4, 3_000, -1)  # each row has a W of its own
    np.testing.assert_allclose(np.std(drawn, axis=1), std, rtol=0.08)  # 6 standard errors


@pytest.mark.parametrize("name", PLAIN)
def test_numpy_and_torch_give_the_same_numbers(name: str) -> None:
    spec = PLAIN[name]
    network, rng = network_for(spec), np.random.default_rng(0)
    policy = make_policy(spec, np.random.SeedSequence(1))
    assert isinstance(policy, NumpyActorCritic)
    policy.set_weights(weights_of(network))
    obs = random_obs(spec, (64,), rng)
    actions, log_probs, values, _ = policy.act(obs)
    with torch.no_grad():
        expected = network.evaluate_actions(tensors(obs, spec), torch.from_numpy(actions))
    np.testing.assert_allclose(log_probs, expected[0].numpy(), atol=2e-5)
    np.testing.assert_allclose(values, expected[2].numpy(), atol=2e-5)
    np.testing.assert_allclose(policy.values(obs), values, atol=1e-6)


@pytest.mark.parametrize("name", PLAIN)
def test_torch_policy_agrees_with_the_numpy_one(name: str) -> None:
    spec = PLAIN[name]
    assert isinstance(spec.obs, ObsSpec)
    weights = weights_of(network_for(spec))
    weights[OBS_MEAN] = np.full(spec.obs.shape, 0.3, np.float32)
    weights[OBS_VAR] = np.full(spec.obs.shape, 4.0, np.float32)
    obs = random_obs(spec, (16,), np.random.default_rng(0))
    outputs = []
    for policy in (NumpyActorCritic(spec, np.random.SeedSequence(1)), acting(spec, network_for(spec))):
        policy.set_weights(weights)
        outputs.append(policy.act(obs, deterministic=True))
    np.testing.assert_allclose(outputs[0].actions, outputs[1].actions, atol=2e-5)
    np.testing.assert_allclose(outputs[0].log_probs, outputs[1].log_probs, atol=2e-5)
    np.testing.assert_allclose(outputs[0].values, outputs[1].values, atol=2e-5)


@pytest.mark.parametrize(
    "name, obs_kind",
    [(name, kind) for name in ACTIONS for kind in ("vector", "tree")]
    + [(name, "mask") for name, action in ACTIONS.items() if action.mask_size],
)
def test_every_kind_of_action_and_observation(name: str, obs_kind: str) -> None:
    leaves = {"vector": make_spec().obs, "tree": TREE, "mask": masked(ACTIONS[name])}[obs_kind]
    spec = spec_of_actions(name, leaves)
    network = network_for(spec)
    policy = acting(spec, network)
    obs = random_obs(spec, (32,), np.random.default_rng(0))
    map_obs(lambda leaf: leaf.setflags(write=False), obs)  # as it comes from shared memory
    actions, log_probs, values, _ = policy.act(obs)
    assert actions.dtype == (np.float32 if spec.action.kind in ("box", "composite") else np.int64)
    with torch.no_grad():
        expected = network.evaluate_actions(tensors(obs, spec), torch.from_numpy(actions))
    np.testing.assert_allclose(log_probs, expected[0].numpy(), atol=2e-5)
    np.testing.assert_allclose(values, expected[2].numpy(), atol=2e-5)
    assert log_probs.dtype == values.dtype == np.float32
    assert policy.core_state.shape == (32, 0)


@pytest.mark.parametrize("core", CORES)
def test_a_core_carries_its_state_from_act_to_act(core: str) -> None:
    """Against one pass of the network over the whole, with the starts where `reset_core` was called."""
    spec = make_spec(core=core, core_size=8)
    network, rng = network_for(spec), np.random.default_rng(0)
    policy = acting(spec, network)
    obs = random_obs(spec, (9, 4), rng)
    ended = rng.random((9, 4)) < 0.3
    outputs = []
    for t in range(9):
        outputs.append(policy.act(take_obs(obs, t)))
        policy.reset_core(ended[t])
    starts = np.zeros((9, 4), np.bool_)
    starts[1:] = ended[:-1]
    flat = tensors(np.asarray(obs).reshape(36, 4), spec)
    actions = np.concatenate([output.actions for output in outputs])
    with torch.no_grad():
        state = torch.zeros(4, network.state_size)
        expected = network.evaluate_actions(flat, torch.from_numpy(actions), state, torch.from_numpy(starts))
        last = network(flat, state, torch.from_numpy(starts))[2].numpy()
    log_probs = np.concatenate([output.log_probs for output in outputs])
    values = np.concatenate([output.values for output in outputs])
    np.testing.assert_allclose(log_probs, expected[0].numpy(), atol=1e-5)
    np.testing.assert_allclose(values, expected[2].numpy(), atol=1e-5)
    np.testing.assert_allclose(policy.core_state, last * ~ended[-1][:, None], atol=1e-5)
    assert ended.any() and not ended[-1].all()


@pytest.mark.parametrize("core", CORES)
def test_values_look_ahead_without_going_there(core: str) -> None:
    spec = make_spec(core=core)
    policy = acting(spec, network_for(spec))
    one, two, three = (random_obs(spec, (4,), np.random.default_rng(seed)) for seed in range(3))
    policy.act(one)
    state = policy.core_state
    assert state.shape == (4, policy.core_state.shape[1]) and state.any()
    expected = policy.values(two)
    policy.values(three[:2])  # not even with another number of rows
    np.testing.assert_array_equal(policy.core_state, state)
    np.testing.assert_allclose(policy.act(two).values, expected, atol=1e-6)
    assert (policy.core_state != state).any()


@pytest.mark.parametrize("core", CORES)
def test_the_state_of_a_policy_is_all_of_it(core: str) -> None:
    spec = make_spec(core=core)
    network = network_for(spec)
    one, other = acting(spec, network), acting(spec, network, seed=2)
    obs = random_obs(spec, (4,), np.random.default_rng(0))
    one.act(obs)
    state = one.get_state()
    first = [one.act(obs) for _ in range(3)]
    other.set_state(state)
    for expected in first:
        for got, wanted in zip(other.act(obs), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


class Forgetful(ActorCritic):
    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        distribution, values, state = super().forward(obs, state, starts)
        return distribution, torch.nn.functional.dropout(values + 1.0, training=self.training), state


def test_acting_is_without_dropout() -> None:
    spec = make_spec(custom=f"{__name__}:Forgetful")
    network = Forgetful(spec)
    policy, obs = acting(spec, network), random_obs(spec, (64,), np.random.default_rng(0))
    values = policy.act(obs).values
    np.testing.assert_array_equal(policy.values(obs), values)
    module = agent_module(policy, weights_of(network), "torch")
    with torch.no_grad():
        np.testing.assert_array_equal(module.network(tensors(obs, spec))[1].numpy(), values)


class Float32Only(ActorCritic):
    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        joints, lamps = obs["arm/joints"], obs["arm/lamps"]
        assert joints.dtype == torch.float32 and lamps.dtype == torch.int8, (joints.dtype, lamps.dtype)
        return super().forward(obs, state, starts)


def test_a_network_of_ones_own_sees_float32_where_the_environment_has_float64() -> None:
    spec = make_spec(TREE, encoder="mlp", custom=f"{__name__}:Float32Only")
    assert TREE["arm/joints"].dtype == "float64"
    policy = acting(spec, Float32Only(spec))
    obs = random_obs(spec, (3,), np.random.default_rng(0))
    np.testing.assert_allclose(policy.act(obs).values, policy.values(obs), atol=1e-6)


def test_a_reset_before_the_first_step_is_no_matter() -> None:
    spec = make_spec(core="gru")
    policy = acting(spec, network_for(spec))
    policy.reset_core(np.ones(3, np.bool_))
    assert policy.act(random_obs(spec, (3,), np.random.default_rng(0))).values.shape == (3,)


def test_core_state_is_a_copy() -> None:
    spec = make_spec(core="gru")
    policy = acting(spec, network_for(spec))
    obs = random_obs(spec, (2,), np.random.default_rng(0))
    policy.act(obs)
    kept = policy.core_state
    policy.core_state.fill(5.0)
    np.testing.assert_array_equal(policy.core_state, kept)


@pytest.mark.parametrize("precision, tolerance", [("float32", 1e-4), ("bfloat16", 0.05)])
def test_cnn_policy_acts_like_the_learners_network(precision: str, tolerance: float) -> None:
    network = network_for(IMAGE)
    policy = make_policy(IMAGE, np.random.SeedSequence(1), precision=precision, num_threads=1)
    policy.set_weights(weights_of(network))
    obs = random_obs(IMAGE, (8,), np.random.default_rng(0))
    actions, log_probs, values, _ = policy.act(obs)
    with torch.no_grad():
        expected = network.evaluate_actions(tensors(obs, IMAGE), torch.from_numpy(actions))
    np.testing.assert_allclose(log_probs, expected[0].numpy(), atol=tolerance)
    np.testing.assert_allclose(values, expected[2].numpy(), atol=tolerance)
    np.testing.assert_allclose(policy.values(obs), values, atol=tolerance)


@pytest.mark.parametrize("encoder", ["nature_cnn", "small_cnn", "impala_cnn"])
def test_images_within_a_tree_act_in_bfloat16(encoder: str) -> None:
    spec = make_spec(TREE, encoder=encoder, core="lstm")
    network = network_for(spec)
    policy = TorchActorCritic(spec, np.random.SeedSequence(1), precision="bfloat16", num_threads=1)
    policy.set_weights(weights_of(network))
    obs = random_obs(spec, (4,), np.random.default_rng(0))
    with torch.no_grad():
        expected = network(tensors(obs, spec))[1]
    np.testing.assert_allclose(policy.act(obs).values, expected.numpy(), atol=0.05)


def test_cnn_policy_repeats_itself_from_its_state() -> None:
    policy = make_policy(IMAGE, np.random.SeedSequence(1), num_threads=1)
    policy.set_weights(weights_of(ActorCritic(IMAGE)))
    obs = np.zeros((16, 4, 84, 84), np.uint8)
    state = policy.get_state()
    first, second = policy.act(obs).actions, policy.act(obs).actions
    assert (first != second).any()
    policy.set_state(state)
    np.testing.assert_array_equal(policy.act(obs).actions, first)


def test_small_networks_act_in_one_thread() -> None:
    before = torch.get_num_threads()
    try:
        for q in (None, QSpec(False, False, "none", 1, (0.0, 1.0), 0)):
            torch.set_num_threads(2)
            make_policy(make_spec(core="lstm"), np.random.SeedSequence(0), q=q, num_threads=2)
            assert torch.get_num_threads() == 1
            make_policy(IMAGE, np.random.SeedSequence(0), q=q, num_threads=2)
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_precision_by_encoder() -> None:
    cpu = torch.device("cpu")
    assert resolve_precision("auto", make_spec(action=DISCRETE), cpu) == torch.float32
    assert resolve_precision("bfloat16", IMAGE, cpu) == torch.bfloat16
    assert resolve_precision("float32", IMAGE, cpu) == torch.float32
    with pytest.raises(ConfigError, match="image encoders"):
        resolve_precision("bfloat16", make_spec(), cpu)


@pytest.mark.parametrize("name", [*PLAIN, *CORES, "image", "tree"])
def test_the_memory_order_of_observations_changes_no_bit(name: str) -> None:
    """An environment's own arrays may be transposed views; those that a checkpoint brings back are not."""
    more: dict[str, Any] = {
        "lstm": {"core": "lstm"},
        "gru": {"core": "gru"},
        "attention": {"core": "attention"},
    }
    spec = PLAIN.get(name) or {"image": IMAGE, "tree": make_spec(TREE)}.get(name) or make_spec(**more[name])
    network = network_for(spec)
    obs = random_obs(spec, (4,), np.random.default_rng(0))  # few rows: where products differ by it
    outputs = []
    for order in ("C", "F"):
        policy = make_policy(spec, np.random.SeedSequence(1), framework="torch", num_threads=1)
        policy.set_weights(weights_of(network))
        given = map_obs(lambda leaf, order=order: np.asarray(leaf, order=order), obs)
        outputs.append([policy.act(given) for _ in range(3)])
    for ours, other in zip(*outputs, strict=True):
        for field in ("actions", "log_probs", "values"):
            assert getattr(ours, field).tobytes() == getattr(other, field).tobytes(), field
