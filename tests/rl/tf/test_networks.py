"""Encoders, cores, distributions and Adam: equal numbers and equal gradients on torch and TensorFlow."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="parity is with torch")
pytest.importorskip("tensorflow", reason="needs the extra: pip install 'rlplat[tf]'")

from rlplat.errors import CheckpointError, ConfigError, UsageError  # noqa: E402
from rlplat.rl.obs_tree import map_obs  # noqa: E402
from rlplat.rl.policies.spec import PolicySpec  # noqa: E402
from rlplat.rl.tf import networks, tf  # noqa: E402
from rlplat.rl.tf.action_distributions import ActionDistribution  # noqa: E402
from rlplat.rl.tf.device import CPU, resolve_device, resolve_precision, seeded  # noqa: E402
from rlplat.rl.tf.layers import Linear  # noqa: E402
from rlplat.rl.tf.networks import check_network  # noqa: E402
from rlplat.rl.tf.tensors import load_weights, named_variables, weights_of  # noqa: E402
from rlplat.rl.tf.trainee import Adam  # noqa: E402
from rlplat.rl.torch import networks as torch_networks  # noqa: E402
from rlplat.rl.torch import weights as torch_weights  # noqa: E402
from rlplat.rl.torch.action_distributions import ActionDistribution as TorchDistribution  # noqa: E402
from rlplat.rl.torch.optimizers import Adam as TorchAdam  # noqa: E402
from tests.rl.specimens import DISCRETE, make_spec, masked  # noqa: E402
from tests.rl.tf.twins import SPECS, perturbed, random_obs, random_state  # noqa: E402

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[3] / "docs" / "frameworks.md"
T, B = 5, 3


def twins(spec: PolicySpec, rng: np.random.Generator) -> tuple[Any, Any]:
    torch.manual_seed(0)
    theirs, ours = torch_networks.ActorCritic(spec), networks.ActorCritic(spec)
    weights = perturbed(torch_weights.weights_of(theirs), rng)
    torch_weights.load_weights(theirs, weights)
    load_weights(ours, weights)
    return theirs, ours


@pytest.mark.parametrize("name", SPECS)
def test_values_and_gradients_are_torchs(name: str) -> None:
    rng, spec = np.random.default_rng(0), SPECS[name]()
    theirs, ours = twins(spec, rng)
    obs, state = random_obs(spec, T * B, rng), random_state(spec, B, theirs.state_size, rng)
    starts = rng.random((T, B)) < 0.3
    torch_obs = map_obs(torch.from_numpy, obs)
    with torch.no_grad():
        distribution, _, _ = theirs(torch_obs, torch.from_numpy(state), torch.from_numpy(starts))
        actions = distribution.sample(torch.Generator().manual_seed(0))
    coefficients = rng.normal(size=(3, T * B)).astype(np.float32) / (T * B)

    expected = theirs.evaluate_actions(torch_obs, actions, torch.from_numpy(state), torch.from_numpy(starts))
    sum((torch.from_numpy(c) * e).sum() for c, e in zip(coefficients, expected, strict=True)).backward()
    variables = named_variables(ours)

    def evaluate(obs: Any, actions: Any, state: Any, starts: Any) -> Any:
        with tf.GradientTape() as tape:
            got = ours.evaluate_actions(obs, actions, state, starts)
            loss = tf.add_n([tf.reduce_sum(c * g) for c, g in zip(coefficients, got, strict=True)])
        return got, tape.gradient(loss, list(variables.values()))

    if spec.core != "none":  # there the loop over time is one in the graph; tracing the others only takes time
        evaluate = tf.function(evaluate, autograph=False)
    got, gradients = evaluate(*tf.nest.map_structure(tf.constant, (obs, actions.numpy(), state, starts)))
    for ours_, theirs_ in zip(got, expected, strict=True):
        theirs_ = theirs_.detach().numpy()
        atol = 1e-5 * max(1.0, abs(theirs_).max())
        np.testing.assert_allclose(ours_.numpy(), theirs_, rtol=1e-5, atol=atol)
    parameters = dict(theirs.named_parameters())
    assert list(variables) == list(parameters)
    for (name_, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        np.testing.assert_allclose(
            tf.convert_to_tensor(gradient).numpy(),
            parameter.grad.numpy(),
            rtol=1e-4,
            atol=1e-5,
            err_msg=name_,
        )


@pytest.mark.parametrize("name", ["lstm", "gru", "attention"])
def test_a_cores_state_is_torchs_after_a_fragment_and_step_by_step(name: str) -> None:
    rng, spec = np.random.default_rng(1), SPECS[name]()
    theirs, ours = twins(spec, rng)
    state = random_state(spec, B, theirs.state_size, rng)
    obs, starts = random_obs(spec, T * B, rng), rng.random((T, B)) < 0.3
    with torch.no_grad():
        _, values, expected = theirs(map_obs(torch.from_numpy, obs), torch.from_numpy(state), torch.from_numpy(starts))
    _, _, got = ours(map_obs(tf.constant, obs), state, starts)
    np.testing.assert_allclose(got.numpy(), expected.numpy(), atol=1e-5)
    for t in range(T):
        rows = map_obs(lambda leaf, t=t: tf.constant(leaf[t * B : (t + 1) * B]), obs)
        _, value, state = ours(rows, state * ~starts[t][:, None])
        np.testing.assert_allclose(value.numpy(), values[t * B : (t + 1) * B].numpy(), atol=1e-5)
    np.testing.assert_allclose(state.numpy(), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", ["composite mask", "squashed", "multi_binary"])
def test_draws_follow_the_distribution(name: str) -> None:
    """Frequencies of masked choices, bits, squashed and plain Gaussians over many rows of the same parameters."""
    rng, spec = np.random.default_rng(2), SPECS[name]()
    num_rows = 20_000
    params = np.tile(rng.normal(size=(1, spec.num_params)).astype(np.float32), (num_rows, 1))
    log_std = np.full(spec.num_gaussian, -1.0, np.float32)
    mask = None
    if spec.has_mask:
        mask = np.tile(random_obs(spec, 1, rng)["action_mask"], (num_rows, 1))  # type: ignore[call-overload]
    ours = ActionDistribution(spec, params, log_std, mask)
    theirs = TorchDistribution(
        spec,
        torch.from_numpy(params),
        torch.from_numpy(log_std),
        None if mask is None else torch.from_numpy(mask),
    )
    drawn = ours.sample(tf.random.Generator.from_seed(0)).numpy()
    expected = theirs.sample(torch.Generator().manual_seed(0)).numpy()
    assert drawn.dtype == expected.dtype and drawn.shape == expected.shape
    np.testing.assert_allclose(drawn.mean(axis=0), expected.mean(axis=0), atol=0.03)
    np.testing.assert_allclose(drawn.std(axis=0), expected.std(axis=0), atol=0.03)
    np.testing.assert_array_equal(np.unique(drawn[:, -1]), np.unique(expected[:, -1])) if mask is not None else None
    np.testing.assert_allclose(ours.mode()[:2].numpy(), theirs.mode()[:2].numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "nature", "impala", "lstm", "gru", "attention"])
def test_initialised_like_torchs(name: str) -> None:
    """Orthogonal kernels with torch's gains; everything else with the same spread."""
    spec = SPECS[name]()
    with seeded(np.random.SeedSequence(0)), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ours = weights_of(networks.ActorCritic(spec))
        theirs = torch_weights.weights_of(torch_networks.ActorCritic(spec))
    for parameter, array in ours.items():
        expected = theirs[parameter]
        assert array.shape == expected.shape and array.dtype == expected.dtype == np.float32
        if "core" not in parameter and array.ndim > 1:
            gain = {"actor_head.weight": 0.01, "critic_head.weight": 1.0}.get(parameter, math.sqrt(2.0))
            singular = np.linalg.svd(array.reshape(len(array), -1), compute_uv=False)
            np.testing.assert_allclose(singular, gain, rtol=1e-4)
        elif array.size > 30:
            assert array.std() == pytest.approx(expected.std(), rel=0.3, abs=1e-7), parameter
            assert abs(array).max() == pytest.approx(abs(expected).max(), rel=0.5, abs=1e-7), parameter
        else:
            np.testing.assert_allclose(array.mean(), expected.mean(), atol=0.5)


def test_the_same_seed_gives_the_same_network() -> None:
    drawn = []
    for seed in (1, 1, 2):
        with seeded(np.random.SeedSequence(seed)):
            drawn.append(weights_of(networks.ActorCritic(SPECS["lstm"]())))
    same = [[(drawn[0][name] == other[name]).all() for name in drawn[0]] for other in drawn[1:]]
    assert all(same[0]) and not all(same[1])


def test_weights_that_do_not_fit_are_refused_whole() -> None:
    network = networks.ActorCritic(SPECS["mlp"]())
    before = weights_of(network)
    lacking = {name: w + 1 for name, w in before.items() if name != "critic_head.bias"}
    with pytest.raises(CheckpointError, match=r"weights lack 'critic_head.bias'"):
        load_weights(network, lacking)
    other = {name: w + 1 for name, w in before.items()} | {"critic_head.weight": np.zeros((1, 5), np.float32)}
    with pytest.raises(CheckpointError, match=r"'critic_head.weight' have shape \(1, 5\), .* \(1, 8\)"):
        load_weights(network, other)
    assert all((w == before[name]).all() for name, w in weights_of(network).items())


@pytest.mark.parametrize("max_norm", [0.05, math.inf])
def test_adam_gives_torchs_numbers_and_either_goes_on_from_the_others_state(max_norm: float) -> None:
    rng = np.random.default_rng(0)
    start = {"weight": (4, 3), "bias": (4,), "kernel": (2, 3, 3, 3)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in start.items()}
    module = torch.nn.Module()
    for name, array in arrays.items():
        module.register_parameter(name, torch.nn.Parameter(torch.from_numpy(array.copy())))
    variables = {name: tf.Variable(array) for name, array in arrays.items()}
    decay = 0.0 if math.isinf(max_norm) else 0.1
    theirs = TorchAdam(module, epsilon=1e-5, weight_decay=decay)
    ours = Adam(variables, epsilon=1e-5, weight_decay=decay)
    apply = tf.function(ours.apply, autograph=False)
    for step in range(30):
        if step == 10:  # each begins anew from what the other has kept
            kept = theirs.get_state()
            theirs = TorchAdam(module, epsilon=1e-5, weight_decay=decay)
            theirs.set_state(ours.get_state())
            ours.set_state(kept)
        gradients = {name: rng.normal(size=shape).astype(np.float32) for name, shape in start.items()}
        if step == 20:
            gradients["bias"][1] = np.nan  # changes nothing, not even the number of steps
        for name, parameter in module.named_parameters():
            parameter.grad = torch.from_numpy(gradients[name].copy())  # the kernel scales it in place
        rate = np.float32(0.1 / (1 + step))
        expected_norms = theirs.step(float(rate), max_norm).numpy()
        norms = apply([tf.constant(g) for g in gradients.values()], rate, max_norm).numpy()
        np.testing.assert_allclose(norms, expected_norms, rtol=1e-5)
        assert np.isfinite(norms).tolist() == ([True, False, True, False] if step == 20 else [True] * 4)
        for name, parameter in module.named_parameters():
            np.testing.assert_allclose(variables[name].numpy(), parameter.detach().numpy(), rtol=1e-5, atol=1e-6)
    for name, kept in ours.get_state().items():
        expected = theirs.get_state()[name]
        assert kept["step"] == expected["step"] == 29
        assert {key: (a.dtype, a.shape) for key, a in kept.items()} == {
            key: (a.dtype, a.shape) for key, a in expected.items()
        }
        for key in kept:
            np.testing.assert_allclose(kept[key], expected[key], rtol=1e-5, atol=1e-7)


class WrongSize(networks.ActorCritic):
    def __call__(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        distribution, values, state = super().__call__(obs, state, starts)
        return distribution, values[:, None], state


class Idle(networks.ActorCritic):
    def __init__(self, spec: PolicySpec, compute_dtype: Any = tf.float32) -> None:
        super().__init__(spec, compute_dtype)
        self.spare = Linear(3, 3)


def test_the_network_of_the_docs_with_its_keras_layers(tmp_path: Path) -> None:
    block = re.search(r"^```python\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "my_tf_network.py").write_text(block[1])  # type: ignore[index]
    spec = replace(SPECS["mlp"](), custom=f"{tmp_path / 'my_tf_network.py'}:MyNetwork")
    one, other = networks.make_network(spec), networks.make_network(spec)
    for network in (one, other):
        check_network(network, spec)
    names = list(named_variables(one))
    assert names[:4] == ["body.0.kernel", "body.1.bias", "body.2.kernel", "body.3.bias"] and len(names) == 8
    load_weights(other, weights_of(one))
    obs = random_obs(spec, 5, np.random.default_rng(0))
    np.testing.assert_array_equal(other(obs)[1].numpy(), one(obs)[1].numpy())


def test_networks_of_the_users_own_are_checked_before_training() -> None:
    with pytest.raises(UsageError, match=r"WrongSize: values has shape \(6, 1\), expected \(6,\)"):
        check_network(WrongSize(SPECS["mlp"]()), SPECS["mlp"]())
    with pytest.raises(UsageError, match=r"parameters spare.weight, spare.bias take no part"):
        check_network(Idle(SPECS["mlp"]()), SPECS["mlp"]())


def test_device_and_precision() -> None:
    vector, image = SPECS["mlp"](), SPECS["nature"]()
    assert resolve_device("auto", vector) == resolve_device("cpu", image) == CPU
    assert resolve_precision("auto", vector, CPU) == resolve_precision("float32", image, CPU) == tf.float32
    assert resolve_precision("bfloat16", image, CPU) == tf.bfloat16
    with pytest.raises(ConfigError, match="image encoders"):
        resolve_precision("bfloat16", vector, CPU)
    if not tf.config.list_physical_devices("GPU"):
        with pytest.raises(ConfigError, match="TensorFlow sees no GPU"):
            resolve_device("cuda", image)


class IgnoresTheMask(networks.ActorCritic):
    def distribution(self, features: Any, obs: Any) -> Any:
        return ActionDistribution(self.spec, self.actor_head(features), getattr(self, "log_std", None))


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_network_that_ignores_the_mask_is_refused(core: str) -> None:
    spec = make_spec(obs=masked(DISCRETE), action=DISCRETE, core=core)
    check_network(networks.ActorCritic(spec), spec)
    with pytest.raises(UsageError, match=r"an action that the action mask forbids .* expected 0"):
        check_network(IgnoresTheMask(spec), spec)
