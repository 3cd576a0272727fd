"""`TfDQN`, `TfR2D2` beside torch's: equal losses, priorities, gradients and weights from equal weights; who acts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="parity is with torch")
pytest.importorskip("tensorflow", reason="needs the extra: pip install 'rlplat[tf]'")

from rlplat.algorithms.dqn import DQNConfig, c51_projection, quantile_huber_losses  # noqa: E402
from rlplat.algorithms.other_frameworks.dqn_tf import (  # noqa: E402
    TfR2D2,
    tf_c51_projection,
    tf_quantile_huber_losses,
)
from rlplat.algorithms.r2d2 import SequenceConfig, TorchR2D2  # noqa: E402
from rlplat.rl.interfaces import Weights  # noqa: E402
from rlplat.rl.obs_tree import map_obs  # noqa: E402
from rlplat.rl.policies.make import make_policy  # noqa: E402
from rlplat.rl.policies.spec import PolicySpec  # noqa: E402
from rlplat.rl.replay.buffer import Minibatch, SequenceMinibatch  # noqa: E402
from rlplat.rl.tf.q_network import NoisyLinear  # noqa: E402
from rlplat.rl.torch.policy import TorchQPolicy  # noqa: E402
from rlplat.rl.torch.q_network import NoisyLinear as TorchNoisyLinear  # noqa: E402
from tests.algorithms.test_dqn_learner import q_spec, trained_on  # noqa: E402
from tests.rl.tf.twins import SPECS, perturbed, random_obs, random_state  # noqa: E402

pytestmark = pytest.mark.slow

UPDATES = Path(__file__).parents[1] / "golden" / "dqn_updates.json"
RAINBOW = {
    "double": True,
    "dueling": True,
    "prioritized": True,
    "distributional": "c51",
    "num_atoms": 11,
    "noisy": True,
    "head_hidden_size": 12,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("mlp", {}),
    "prioritized": ("discrete obs", {"prioritized": True}),
    "mse, double, masked": ("mask", {"loss": "mse", "double": True}),
    "rainbow": ("nature", RAINBOW),
    "quantiles": ("tree", {"distributional": "qr", "num_atoms": 7, "dueling": True}),
    "sequences": ("lstm", {"double": True, "prioritized": True, "burn_in": 2, "unroll_length": 3}),
    "masked sequences": ("attention", {"burn_in": 0, "unroll_length": 3, "dueling": True}),
}


def config_of(case: str) -> DQNConfig:
    settings = {"env": "made up", "learner": {"precision": "float32", "device": "cpu", "num_threads": 1}}
    return SequenceConfig(**(settings | CASES[case][1] | {"max_gradient_norm": 1.0}))


def make(framework: Any, case: str, seed: int) -> Any:
    config = config_of(case)
    return framework(config, SPECS[CASES[case][0]](), q_spec(config), np.random.SeedSequence(seed))


def transitions(spec: PolicySpec, rng: np.random.Generator, size: int = 12) -> Minibatch:
    return Minibatch(
        obs=random_obs(spec, size, rng),
        actions=rng.integers(0, 3, size),
        returns=rng.normal(0, 3, size).astype(np.float32),
        discounts=np.where(rng.random(size) < 0.2, 0.0, 0.9).astype(np.float32),
        next_obs=random_obs(spec, size, rng),
        weights=rng.uniform(0.2, 1.0, size).astype(np.float32),
        rows=np.arange(size),
        stamps=np.arange(size),
    )


def sequences(
    spec: PolicySpec, rng: np.random.Generator, state_size: int, burn_in: int, num_learnt: int
) -> SequenceMinibatch:
    M, U, L = 4, num_learnt, burn_in + num_learnt + 1
    flat = random_obs(spec, L * M, rng)
    steps = np.arange(U)[:, None] + burn_in
    return SequenceMinibatch(
        obs=map_obs(lambda leaf: leaf.reshape(L, M, *leaf.shape[1:]), flat),
        starts=rng.random((L, M)) < 0.2,
        core_states=random_state(spec, M, state_size, rng),
        actions=rng.integers(0, 3, (U, M)),
        returns=rng.normal(size=(U, M)).astype(np.float32),
        discounts=np.full((U, M), 0.9, np.float32),
        bootstraps=steps + rng.integers(0, 2, (U, M)),
        mask=np.concatenate([np.ones((1, M)), rng.random((U - 1, M)) < 0.7]).astype(np.float32),
        weights=rng.uniform(0.2, 1.0, M).astype(np.float32),
        rows=np.arange(M),
        stamps=np.arange(M),
    )


def batches(case: str, net: Any, count: int) -> list[Any]:
    name, settings = CASES[case]
    spec, rng = SPECS[name](), np.random.default_rng(5)
    if spec.core == "none":
        return [transitions(spec, rng, 12 + i) for i in range(count)]
    shape = (net.network.state_size, settings["burn_in"], settings["unroll_length"])
    return [sequences(spec, rng, *shape) for _ in range(count)]


def set_noise(theirs: Any, ours: Any, rng: np.random.Generator) -> None:
    """The same noise in both, from now on."""
    torch_layers = [m for m in theirs.modules() if isinstance(m, TorchNoisyLinear)]
    shapes = [tuple(m.weight.shape) for m in torch_layers]
    names = [n for n, m in theirs.named_modules() if isinstance(m, TorchNoisyLinear)]
    for name, layer, (size_out, size_in) in zip(names, torch_layers, shapes, strict=True):
        noise = rng.normal(size=size_out).astype(np.float32), rng.normal(size=size_in).astype(np.float32)
        layer._noise = tuple(torch.from_numpy(each) for each in noise)
        twin: Any = ours
        for part in name.split("."):
            twin = getattr(twin, part)
        assert isinstance(twin, NoisyLinear)
        twin.noise_out.assign(noise[0])
        twin.noise_in.assign(noise[1])
    for network in (theirs, ours):
        network.draw_noise = lambda generator: None


@pytest.mark.parametrize("case", CASES)
def test_gradient_steps_are_torchs(case: str) -> None:
    theirs, ours = make(TorchR2D2, case, 1), make(TfR2D2, case, 2)
    rng, state = np.random.default_rng(0), theirs.get_state()
    state |= {"weights": perturbed(state["weights"], rng), "target": perturbed(state["target"], rng)}
    theirs.set_state(state)
    ours.set_state(state)
    for network in ("network", "target"):
        set_noise(getattr(theirs, network), getattr(ours, network), rng)
    for step, batch in enumerate(batches(case, ours, 3)):
        gradients = ours.gradients(ours._tensors(batch))[3] if step == 0 else []
        expected, got = trained_on(theirs, batch), trained_on(ours, batch)
        assert got.loss == pytest.approx(expected.loss, rel=1e-5, abs=1e-5)
        assert got.q_mean == pytest.approx(expected.q_mean, rel=1e-4, abs=1e-5)
        assert got.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-4)
        np.testing.assert_allclose(got.priorities, expected.priorities, rtol=1e-4, atol=1e-5)
        if step == 0:
            scale = max(1.0, expected.gradient_norm)  # torch's Adam has scaled them in place, to the norm 1
            for (name, parameter), gradient in zip(theirs.network.named_parameters(), gradients, strict=True):
                expected_gradient = parameter.grad.numpy() * scale
                np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=2e-5, err_msg=name)
        if step == 1:
            for net in (theirs, ours):
                net.update_target(0.3)
    for part in ("weights", "target"):
        kept = ours.get_state()[part]
        for name, weight in theirs.get_state()[part].items():
            np.testing.assert_allclose(kept[name], weight, rtol=1e-5, atol=2e-5, err_msg=f"{part} {name}")
    assert ours._step.experimental_get_tracing_count() == 1


def test_projection_and_quantile_loss_are_torchs() -> None:
    rng, support = np.random.default_rng(0), np.linspace(-2, 2, 9, dtype=np.float32)
    returns, discounts = rng.normal(0, 2, 20).astype(np.float32), rng.uniform(0, 1, 20).astype(np.float32)
    returns[:3], discounts[:3] = [0.5, -9.0, 9.0], 0.0  # on an atom, below and above all
    probs = rng.dirichlet(np.ones(9), 20).astype(np.float32)
    expected = c51_projection(*map(torch.from_numpy, (returns, discounts, probs, support))).numpy()
    got = tf_c51_projection(returns, discounts, probs, support).numpy()
    np.testing.assert_allclose(got, expected, atol=1e-6)
    np.testing.assert_allclose(got.sum(axis=1), 1.0, atol=1e-5)
    quantiles, targets = rng.normal(size=(2, 20, 5)).astype(np.float32)
    np.testing.assert_allclose(
        tf_quantile_huber_losses(quantiles, targets).numpy(),
        quantile_huber_losses(torch.from_numpy(quantiles), torch.from_numpy(targets)).numpy(),
        rtol=1e-5,
    )


def test_the_target_network_is_a_copy_at_first_and_moves_by_tau() -> None:
    net = make(TfR2D2, "plain", 1)
    before = net.get_state()
    assert all((before["target"][name] == w).all() for name, w in before["weights"].items())
    net.train(batches("plain", net, 1)[0], 0.1)
    net.update_target(0.25)
    after = net.get_state()
    for name, target in after["target"].items():
        expected = 0.75 * before["target"][name] + 0.25 * after["weights"][name]
        np.testing.assert_allclose(target, expected, atol=1e-6)


def test_values_of_next_observations_may_come_ahead_of_many_steps() -> None:
    one, other = make(TfR2D2, "plain", 1), make(TfR2D2, "plain", 1)
    drawn = batches("plain", one, 1)[0]
    ahead = other.target_outputs(drawn.next_obs)
    for part in (slice(0, 5), slice(5, 12)):
        batch = drawn.part(part.start, part.stop)
        expected, got = trained_on(one, batch), trained_on(other, batch, ahead[part])
        assert got.loss == pytest.approx(expected.loss, rel=1e-6)


def test_a_restored_one_goes_on_bit_by_bit_noise_included() -> None:
    one, other = make(TfR2D2, "rainbow", 1), make(TfR2D2, "rainbow", 7)
    first, second = batches("rainbow", one, 2)
    one.train(first, 1e-3)
    other.set_state(one.get_state())
    assert trained_on(one, second).loss == trained_on(other, second).loss
    kept = other.get_state()["weights"]
    assert all((kept[name] == w).all() for name, w in one.get_state()["weights"].items())


@pytest.mark.parametrize("case", ["rainbow", "sequences"])
def test_acts_like_torch(case: str) -> None:
    name, _ = CASES[case]
    spec, q, rng = SPECS[name](), q_spec(config_of(case)), np.random.default_rng(0)
    weights: Weights = perturbed(make(TorchR2D2, case, 1).trainee.weights(), rng)
    ours = make_policy(spec, np.random.SeedSequence(1), q=q, framework="tf", precision="float32")
    theirs = TorchQPolicy(spec, q, np.random.SeedSequence(1), precision="float32")
    for policy in (ours, theirs):
        policy.set_weights(weights)
        policy.exploration.epsilon = 0.0
    for _ in range(3):
        obs = random_obs(spec, 5, rng)
        np.testing.assert_allclose(ours.q_values(obs), theirs.q_values(obs), rtol=1e-4, atol=1e-5)
        outputs = [policy.act(obs, deterministic=True) for policy in (ours, theirs)]
        np.testing.assert_array_equal(outputs[0].actions, outputs[1].actions)
        np.testing.assert_allclose(ours.core_state, theirs.core_state, atol=1e-5)
        for policy in (ours, theirs):
            policy.reset_core(np.array([True, False, False, True, False]))
    state = ours.get_state()
    drawn = [ours.act(obs) for _ in range(2)]
    ours.set_state(state)
    np.testing.assert_array_equal(ours.act(obs).values, drawn[0][2])
    if q.noisy:
        assert (drawn[0][2] != drawn[1][2]).any()
    ours.set_state(theirs.get_state())
    np.testing.assert_array_equal(ours.core_state, theirs.core_state)


@pytest.mark.parametrize("framework", [TorchR2D2, TfR2D2])
def test_a_hundred_golden_updates_are_the_same_in_both(framework: Any) -> None:
    """From equal weights on equal minibatches, with target updates and a falling learning rate: one file for both.
    Some hundred updates later rounding turns an argmax, and the two are different runs."""
    config = config_of("plain").model_copy(update={"double": True, "max_gradient_norm": 10.0})
    spec = SPECS["mlp"]()
    net = framework(config, spec, q_spec(config), np.random.SeedSequence(1))
    rng, state = np.random.default_rng(0), net.get_state()
    for part in ("weights", "target"):
        state[part] = {
            name: rng.uniform(-0.3, 0.3, array.shape).astype(np.float32) for name, array in state[part].items()
        }
    net.set_state(state)
    losses = []
    for step in range(100):
        read = net.read([net.train(transitions(spec, rng, 16), 1e-3 * (1.0 - step / 200))])
        if step % 30 == 29:
            net.update_target(1.0)
        if step % 10 == 9:
            losses.append([*read[0][0].tolist(), float(read[1][0])])
    golden = json.loads(UPDATES.read_text()) if UPDATES.exists() else None
    if golden is None:
        UPDATES.write_text(json.dumps(losses, indent=1) + "\n")
        pytest.fail(f"{UPDATES} was not there; written now: look at it and run again")
    np.testing.assert_allclose(losses, golden, rtol=2e-4, atol=2e-5)


def test_networks_begin_alike() -> None:
    """Other numbers from the same seed, but the same distribution: uniform within 1/sqrt(inputs), of each layer."""
    config, spec = config_of("plain"), replace(SPECS["mlp"](), orthogonal_init=False)
    seed = np.random.SeedSequence(1)
    nets: list[Any] = [make_net(config, spec, q_spec(config), seed) for make_net in (TorchR2D2, TfR2D2)]
    theirs, ours = (net.trainee.weights() for net in nets)
    fan_in = 0
    for name, weight in theirs.items():
        fan_in = weight.shape[1] if weight.ndim == 2 else fan_in  # a bias follows its weight
        for array in (weight, ours[name]):
            assert abs(array).max() <= fan_in**-0.5
            if array.size > 100:
                assert array.std() == pytest.approx((3 * fan_in) ** -0.5, rel=0.15)
