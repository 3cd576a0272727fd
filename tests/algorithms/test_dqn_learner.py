"""`DQNLearner` and `TorchDQN` on what is made here; golden losses; bad numbers; that the state is all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import rlplat
from rlplat.algorithms.dqn import DQN, DQNConfig, DQNLearner, TorchDQN
from rlplat.algorithms.r2d2 import R2D2, R2D2Config, TorchR2D2
from rlplat.errors import NonFiniteError
from rlplat.rl.interfaces import Array, Episode
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR
from rlplat.rl.policies.exploration import EPSILON
from rlplat.rl.policies.spec import PolicySpec, QSpec, policy_spec
from rlplat.rl.replay.buffer import Minibatch, ReplayShape, SequenceMinibatch
from rlplat.rl.sampling.sample_batch import TransitionBatch
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from tests.algorithms.golden import assert_on_file

ACTIONS = ActionSpec("discrete", 3)
VECTOR = SpaceSpec(ObsSpec("vector", (4,), "float32"), ACTIONS)
IMAGE = SpaceSpec(ObsSpec("image", (2, 36, 36), "uint8", "CHW"), ACTIONS)
RAINBOW: dict[str, Any] = {
    "double": True, "dueling": True, "n_step": 3, "distributional": "c51", "num_atoms": 11, "noisy": True,
    "prioritized": True, "epsilon": 0.0,
}  # fmt: skip
CASES: dict[str, tuple[SpaceSpec, dict[str, Any]]] = {
    "plain": (VECTOR, {}),
    "rainbow": (VECTOR, RAINBOW),
    "quantiles": (VECTOR, {"distributional": "qr", "num_atoms": 8, "double": True}),
    "images": (IMAGE, {"loss": "mse", "dueling": True}),
    "lstm": (VECTOR, {"policy": {"hidden_sizes": [16], "core": "lstm", "core_size": 8}, "double": True}),
    "normalised images": (IMAGE, {"normalize_observations": True, "n_step": 3, "double": True}),
}


@pytest.fixture
def parameter_server() -> Iterator[Any]:
    rlplat.init(backend="inproc")
    yield rlplat.remote(ParameterServer).remote()
    rlplat.shutdown()


def config_of(**settings: Any) -> DQNConfig:
    defaults: dict[str, Any] = {
        "env": "made up",
        "seed": 1,
        "batch_size": 8,
        "num_rollout_workers": 1,
        "num_envs_per_worker": 4,
        "learning_starts": 40,
        "env_steps_per_update": 8,
        "target_period": 5,
        "replay_capacity": 400,
        "learning_rate": 1e-3,
        "learner": {"precision": "float32", "device": "cpu", "num_threads": 1},
        "policy": {"hidden_sizes": [16, 16]},
        "stop": {"env_steps": 1000},
    }
    if "core" not in settings.get("policy", {}):
        return DQNConfig(**(defaults | settings))
    switches = {"double": False, "dueling": False, "prioritized": False, "burn_in": 3, "unroll_length": 4}
    return R2D2Config(**(defaults | switches | settings))


def q_spec(config: DQNConfig) -> QSpec:
    return QSpec.of(config.model_dump())


def spec_of(config: DQNConfig, spaces: SpaceSpec = VECTOR) -> PolicySpec:
    return policy_spec(config.policy.model_dump(), spaces)


def make_learner(server: Any, spaces: SpaceSpec = VECTOR, **settings: Any) -> DQNLearner:
    config = config_of(**settings)
    spec = spec_of(config, spaces)
    algorithm = R2D2 if isinstance(config, R2D2Config) else DQN
    sequences = {"burn_in": 3, "unroll": 4} if spec.core != "none" else {}
    replay = ReplayShape(
        config.replay_capacity,
        num_lanes=config.num_envs_per_worker,
        n_step=config.n_step,
        discount=config.discount,
        alpha=config.priority_alpha if config.prioritized else 0.0,
        **sequences,
    )
    learner = DQNLearner(computation_of(algorithm), config.model_dump(), spec, server, replay)
    learner.ready()
    return learner


def make_batch(spaces: SpaceSpec = VECTOR, seed: int = 0, num_steps: int = 16, state_size: int = 0) -> TransitionBatch:
    """Random, but for the same seed always the same; a few episodes end."""
    rng = np.random.default_rng(seed)
    T, B, obs = num_steps, 4, spaces.obs
    assert isinstance(obs, ObsSpec)
    ends = rng.random((T, B)) < 0.1
    terminated = ends & (rng.random((T, B)) < 0.5)
    truncated = ends & ~terminated
    cut = np.flatnonzero(truncated)

    def observations(*shape: int) -> Array:
        if obs.kind == "image":
            return rng.integers(0, 256, (*shape, *obs.shape)).astype(np.uint8)
        return rng.normal(size=(*shape, *obs.shape)).astype(np.float32)

    return TransitionBatch(
        obs=observations(T, B), actions=rng.integers(3, size=(T, B)),
        rewards=rng.normal(size=(T, B)).astype(np.float32), terminated=terminated, truncated=truncated,
        valid=np.ones((T, B), np.bool_), q_taken=np.zeros((T, B), np.float32), q_max=np.zeros((T, B), np.float32),
        cut_rows=cut, final_obs=observations(len(cut)),
        core_states=rng.normal(size=(T, B, state_size)).astype(np.float32), continues=seed > 0,
        episodes=[Episode(1.0, 5)], timing={"sample_s": 0.5},
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_golden_losses(parameter_server: Any, name: str) -> None:
    """Four rounds from fixed batches give the losses on file."""
    spaces, settings = CASES[name]
    learner = make_learner(parameter_server, spaces, **settings)
    losses = []
    for seed in range(4):
        metrics = learner.update(make_batch(spaces, seed, state_size=16 if name == "lstm" else 0)).metrics
        names = ("loss", "q_mean", "gradient_norm", "updates", "epsilon")
        losses.append({metric: metrics[f"learner/{metric}"] for metric in names})
    assert_on_file("dqn_losses.json", name, losses)


def test_nothing_is_learnt_before_learning_starts(parameter_server: Any) -> None:
    learner = make_learner(parameter_server, learning_starts=100)
    first = learner.update(make_batch(seed=0))
    assert first.env_steps == 64 and first.episodes == [Episode(1.0, 5)]
    assert first.metrics["learner/updates"] == 0 and "learner/loss" not in first.metrics
    assert learner.update(make_batch(seed=1)).metrics["learner/updates"] == 8


def test_epsilon_travels_with_the_weights(parameter_server: Any) -> None:
    schedule = {"schedule": "linear", "start": 1.0, "end": 0.0}
    learner = make_learner(parameter_server, epsilon=schedule, stop={"env_steps": 128})
    epsilons = []
    for seed in range(2):
        learner.update(make_batch(seed=seed))
        version, weights = rlplat.get(parameter_server.latest.remote())
        epsilons.append((version, float(weights[EPSILON][0])))
    assert epsilons == [(1, 0.5), (2, 0.0)]


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_learns_from_observations_normalised_as_they_were_acted_on(parameter_server: Any, core: str) -> None:
    policy, state_size = {"hidden_sizes": [16], "core": core, "core_size": 8}, 16 if core == "lstm" else 0
    learner = make_learner(parameter_server, normalize_observations=True, policy=policy)
    first = make_batch(seed=0, state_size=state_size)
    learner.update(first)
    _, weights = rlplat.get(parameter_server.latest.remote())
    assert isinstance(first.obs, np.ndarray)
    seen = first.obs.reshape(-1, 4)
    np.testing.assert_allclose(weights[OBS_MEAN], seen.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(weights[OBS_VAR], seen.var(axis=0), rtol=1e-5)
    trained_on: list[Any] = []
    train = learner.net.train

    def spy(batch: Any, *arguments: Any) -> Any:
        trained_on.append(batch)
        return train(batch, *arguments)

    learner.net.train = spy  # type: ignore[method-assign]
    second = make_batch(seed=1, state_size=state_size)
    learner.update(second)
    assert isinstance(second.obs, np.ndarray) and trained_on
    known = (np.concatenate([first.obs, second.obs]).reshape(-1, 4) - seen.mean(axis=0)) / seen.std(axis=0)
    rows = np.concatenate([batch.obs.reshape(-1, 4) for batch in trained_on])
    nearest = abs(rows[:, None] - known).max(axis=2).min(axis=1)
    assert (nearest < 1e-4).mean() > 0.9  # the others are final observations


def test_the_first_gradient_step_sees_normalised_observations(parameter_server: Any) -> None:
    learner = make_learner(parameter_server, normalize_observations=True)
    seen: list[Array] = []
    train = learner.net.train

    def spy(batch: Any, *arguments: Any) -> Any:
        seen.extend([batch.obs, batch.next_obs])
        return train(batch, *arguments)

    learner.net.train = spy  # type: ignore[method-assign]
    batch = make_batch()
    batch.obs, batch.final_obs = batch.obs + 1e3, batch.final_obs + 1e3  # type: ignore[operator]
    learner.update(batch)
    assert abs(np.concatenate(seen)).max() < 9.0


def test_the_target_network_follows_by_period_or_slowly(parameter_server: Any) -> None:
    def distance(learner: DQNLearner) -> float:
        state = learner.get_state()
        return max(float(abs(state["weights"][n] - state["target"][n]).max()) for n in state["weights"])

    every = make_learner(parameter_server, target_period=8)
    assert distance(every) == 0.0
    every.update(make_batch(seed=0))  # 8 gradient steps
    assert distance(every) == 0.0
    config = config_of(target_period=1, target_tau=0.25, learning_rate=0.1)
    net = TorchDQN(config, spec_of(config), q_spec(config), np.random.SeedSequence(0))
    before = net.get_state()
    with torch.no_grad():
        for parameter in net.network.parameters():
            parameter.add_(1.0)
    net.update_target(0.25)
    after = net.get_state()
    for name in before["target"]:
        np.testing.assert_allclose(after["target"][name], before["target"][name] + 0.25, atol=1e-6)


def minibatch(seed: int = 0, **columns: Any) -> Minibatch:
    rng = np.random.default_rng(seed)
    defaults: dict[str, Any] = {
        "obs": rng.normal(size=(8, 4)).astype(np.float32), "actions": rng.integers(3, size=8),
        "returns": rng.normal(size=8).astype(np.float32), "discounts": np.full(8, 0.9, np.float32),
        "next_obs": rng.normal(size=(8, 4)).astype(np.float32), "weights": np.ones(8, np.float32),
        "rows": np.arange(8), "stamps": np.arange(8),
    }  # fmt: skip
    return Minibatch(**(defaults | columns))


class Trained(NamedTuple):
    """What one gradient step brought."""

    loss: float
    q_mean: float
    gradient_norm: float
    priorities: Array


def trained_on(net: Any, batch: Any, *next_outputs: Any) -> Trained:
    figures, norms, priorities = net.read([net.train(batch, 1e-3, *next_outputs)])
    return Trained(*figures[0].tolist(), float(norms[0]), priorities[0])


@pytest.mark.parametrize("double", [False, True])
def test_who_chooses_and_who_values_the_next_action(double: bool) -> None:
    """y = R + discount * Q_target(s', argmax Q_online or target(s', .)) (van Hasselt et al. 2016, eq. 4)."""
    config = config_of(double=double, loss="mse")
    spec = spec_of(config)
    net = TorchDQN(config, spec, q_spec(config), np.random.SeedSequence(0))
    with torch.no_grad():
        for parameter in net.network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
        batch = minibatch()
        online, target = (
            network.q_values(network(torch.from_numpy(batch.next_obs))[0]).numpy()
            for network in (net.network, net.target)
        )
        q = net.network.q_values(net.network(torch.from_numpy(batch.obs))[0]).numpy()
    rows = np.arange(8)
    chosen = (online if double else target).argmax(axis=1)
    assert (online.argmax(axis=1) != target.argmax(axis=1)).any()
    errors = batch.returns + 0.9 * target[rows, chosen] - q[rows, batch.actions]
    trained = trained_on(net, batch)
    np.testing.assert_allclose(trained.priorities, abs(errors), rtol=1e-4, atol=1e-5)
    assert trained.loss == pytest.approx((errors**2).mean() / 2, rel=1e-4)
    assert trained.q_mean == pytest.approx(q[rows, batch.actions].mean(), rel=1e-4)


def test_the_targets_argmax_is_over_legal_actions() -> None:
    spaces = SpaceSpec({"x": ObsSpec("vector", (4,), "float32"), "action_mask": ObsSpec("mask", (3,), "bool")}, ACTIONS)
    config = config_of(loss="mse")
    net = TorchDQN(config, spec_of(config, spaces), q_spec(config), np.random.SeedSequence(0))
    rng = np.random.default_rng(0)
    x, next_x = rng.normal(size=(2, 8, 4)).astype(np.float32)
    mask = np.ones((8, 3), np.bool_)
    next_mask = rng.random((8, 3)) < 0.5
    next_mask[:, 0] |= ~next_mask.any(axis=1)
    next_mask[7] = False  # where an episode terminated, nothing may be legal
    discounts = np.full(8, 0.9, np.float32)
    discounts[7] = 0.0
    batch = minibatch(
        obs={"x": x, "action_mask": mask},
        next_obs={"x": next_x, "action_mask": next_mask},
        discounts=discounts,
    )
    with torch.no_grad():

        def values(obs: dict[str, Array]) -> Array:
            tensors = {path: torch.from_numpy(leaf) for path, leaf in obs.items()}
            return net.network.q_values(net.network(tensors)[0]).numpy()

        q, next_q = values(batch.obs), values(batch.next_obs)  # type: ignore[arg-type]
    best = np.where(next_mask, next_q, -np.inf).max(axis=1)
    assert (best[:7] != next_q[:7].max(axis=1)).any()
    best[7] = 0.0
    errors = batch.returns + discounts * best - q[np.arange(8), batch.actions]
    np.testing.assert_allclose(trained_on(net, batch).priorities, abs(errors), rtol=1e-4, atol=1e-5)


def test_importance_weights_scale_the_gradients() -> None:
    nets = []
    for weights in (np.ones(8, np.float32), np.full(8, 0.5, np.float32)):
        config = config_of(max_gradient_norm=None, prioritized=True)
        net = TorchDQN(config, spec_of(config), q_spec(config), np.random.SeedSequence(0))
        nets.append(trained_on(net, minibatch(weights=weights)))
    assert nets[1].gradient_norm == pytest.approx(nets[0].gradient_norm / 2, rel=1e-5)
    np.testing.assert_allclose(nets[1].priorities, nets[0].priorities)


def test_sequences_learn_what_single_steps_would() -> None:
    """With a core and no burn-in, errors are those of Q and target along the sequence, masked rows left out."""
    config = config_of(
        policy={"hidden_sizes": [16], "core": "gru", "core_size": 8},
        burn_in=2,
        unroll_length=3,
        n_step=1,
        loss="mse",
        prioritized=True,
    )
    net = TorchR2D2(config, spec_of(config), q_spec(config), np.random.SeedSequence(0))
    rng = np.random.default_rng(0)
    L, U, M = 6, 3, 2
    obs = rng.normal(size=(L, M, 4)).astype(np.float32)
    starts = np.zeros((L, M), np.bool_)
    starts[1, 0] = starts[3, 1] = True
    mask = np.ones((U, M), np.float32)
    mask[2, 0] = 0.0
    state = rng.normal(size=(M, 8)).astype(np.float32)
    batch = SequenceMinibatch(
        obs=obs, starts=starts, core_states=state, actions=rng.integers(3, size=(U, M)),
        returns=rng.normal(size=(U, M)).astype(np.float32), discounts=np.full((U, M), 0.9, np.float32),
        bootstraps=np.arange(3, 6)[:, None] + np.zeros((1, M), np.int64), mask=mask,
        weights=np.array([1.0, 0.5], np.float32), rows=np.arange(M), stamps=np.arange(M),
    )  # fmt: skip
    with torch.no_grad():
        now, q = torch.from_numpy(state), []
        for t in range(L):
            now = now * torch.from_numpy(~starts[t]).unsqueeze(1)
            out, now = net.network(torch.from_numpy(obs[t]), now)
            q.append(net.network.q_values(out).numpy())
    values = np.stack(q)  # [L, M, A]; the target network is the same yet
    errors = np.array([
        [
            batch.returns[u, m] + 0.9 * values[2 + u + 1, m].max() - values[2 + u, m, batch.actions[u, m]]
            for m in range(M)
        ]
        for u in range(U)
    ])  # fmt: skip
    sizes = abs(errors) * mask
    trained = trained_on(net, batch)
    np.testing.assert_allclose(
        trained.priorities, 0.9 * sizes.max(axis=0) + 0.1 * sizes.sum(axis=0) / mask.sum(axis=0), rtol=1e-4
    )
    assert trained.loss == pytest.approx((0.5 * errors**2 * mask * [1.0, 0.5]).sum() / mask.sum(), rel=1e-4)


@pytest.mark.parametrize("name", ["plain", "rainbow", "lstm", "normalised images"])
def test_a_restored_learner_goes_on_bit_by_bit(parameter_server: Any, name: str) -> None:
    spaces, settings = CASES[name]
    state_size = 16 if name == "lstm" else 0
    one = make_learner(parameter_server, spaces, **settings)
    for seed in range(3):
        one.update(make_batch(spaces, seed, state_size=state_size))
    state = one.get_state()
    another_server = rlplat.remote(ParameterServer).remote()
    other = make_learner(another_server, spaces, **(settings | {"seed": 5}))
    other.set_state(state)
    version, published = rlplat.get(another_server.latest.remote())
    assert version == 3
    np.testing.assert_array_equal(published["advantage_head.out.bias"], state["weights"]["advantage_head.out.bias"])
    reports = [
        [learner.update(make_batch(spaces, seed, state_size=state_size)) for seed in (3, 4)] for learner in (one, other)
    ]
    for first, second in zip(*reports, strict=True):
        for key in (key for key in first.metrics if key.startswith("learner/")):
            assert first.metrics[key] == second.metrics[key], key
    assert_equal(one.get_state(), other.get_state())


def assert_equal(one: Any, other: Any, place: str = "") -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key], f"{place}/{key}")
    else:
        np.testing.assert_array_equal(one, other, err_msg=place)


@pytest.mark.parametrize("non_finite", ["stop", "skip"])
def test_a_minibatch_that_is_not_finite(parameter_server: Any, non_finite: str) -> None:
    learner = make_learner(parameter_server, non_finite=non_finite, prioritized=True)
    batch = make_batch()
    batch.rewards[:] = np.nan
    before = learner.get_state()["weights"]
    if non_finite == "stop":
        with pytest.raises(NonFiniteError, match=r"columns \['returns'\] at 64 env steps"):
            learner.update(batch)
    else:
        assert learner.update(batch).metrics["learner/skipped_minibatches"] == 8
    after = learner.get_state()["weights"]
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
