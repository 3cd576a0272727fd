"""DeepMind's rlax (JAX) as the oracle of our formulas: random inputs, equal to 1e-5. TensorFlow's are torch's elsewhere
(`tests/algorithms/test_tf_*.py`).

Run by test_rlax_formulas.py in a process of its own: where JAX is loaded, every later fork of the process warns.

rlax knows no truncation: a trajectory that was cut off comes to it as two. Its V-trace advantages with lambda < 1 mix
values into what follows, ours (remark 2 of the paper changes the targets only) do not: advantages are compared at 1.
"""

from __future__ import annotations

import importlib.util
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlplat.algorithms.other_frameworks.ppo_numpy import numpy_ppo_loss
from rlplat.rl.replay.buffer import ReplayShape, make_replay
from rlplat.rl.sampling.returns import VTrace, gae, vtrace
from rlplat.rl.sampling.rollout import Minibatch
from rlplat.rl.sampling.sample_batch import TransitionBatch
from rlplat.rl.spaces import ActionSpec, ObsSpec
from tests.algorithms.losses import Fixed, Unrolled, loss_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Rlax .* will be deprecated:PendingDeprecationWarning"),
    *(pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}") for name in ("rlax", "torch")),
]

T, B, N, A, Z = 9, 2, 6, 3, 7
DISCOUNT = 0.9
RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def rlax() -> Any:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of JAX, at tensorflow_probability
        patch.setenv("JAX_PLATFORMS", "cpu")
        import rlax
    return rlax


def close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=1e-5)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


class Trajectories:
    """[T, B]: the first is terminated at step 3, the second cut off there; nothing follows the last row."""

    def __init__(self) -> None:
        self.rewards, self.log_ratios = normal(T, B), normal(T, B)
        self.values, self.next_values = normal(T, B), normal(T, B)
        self.terminated, self.truncated = np.zeros((T, B), np.bool_), np.zeros((T, B), np.bool_)
        self.terminated[3, 0] = self.truncated[3, 1] = True
        goes_on = ~(self.terminated | self.truncated)[:-1]
        self.next_values[:-1][goes_on] = self.values[1:][goes_on]

    def pieces(self) -> list[tuple[slice, int]]:
        """What is one trajectory to rlax."""
        return [(slice(0, T), 0), (slice(0, 4), 1), (slice(4, T), 1)]

    def flags(self) -> tuple[np.ndarray, np.ndarray]:
        return self.terminated, self.truncated

    def discounts(self, piece: tuple[slice, int]) -> np.ndarray:
        return np.where(self.terminated[piece], 0.0, DISCOUNT).astype(np.float32)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.8, 1.0])
def test_advantages_and_lambda_returns(rlax: Any, gae_lambda: float) -> None:
    t = Trajectories()
    advantages, returns = gae(t.rewards, t.values, t.next_values, *t.flags(), discount=DISCOUNT, gae_lambda=gae_lambda)
    for piece in t.pieces():
        r, discounts, following = t.rewards[piece], t.discounts(piece), t.next_values[piece]
        values = np.append(t.values[piece], following[-1])
        close(returns[piece], rlax.lambda_returns(r, discounts, following, gae_lambda))
        if not t.terminated[piece].any():  # its signature has one value for a step's end and the next one's beginning
            theirs = rlax.truncated_generalized_advantage_estimation(r, discounts, gae_lambda, values)
            close(advantages[piece], theirs)


@pytest.mark.parametrize(("rho_bar", "trace_lambda"), [(1.0, 1.0), (2.0, 1.0), (1.0, 0.8)])
def test_vtrace(rlax: Any, rho_bar: float, trace_lambda: float) -> None:
    t = Trajectories()
    valid = np.ones((T, B), np.bool_)
    columns = (t.log_ratios, t.rewards, t.values, t.next_values, *t.flags(), valid)
    ours = vtrace(*columns, discount=DISCOUNT, rho_bar=rho_bar, trace_lambda=trace_lambda)
    for piece in t.pieces():
        theirs = rlax.vtrace_td_error_and_advantage(
            t.values[piece],
            t.next_values[piece],
            t.rewards[piece],
            t.discounts(piece),
            np.exp(t.log_ratios[piece]),
            trace_lambda,
            clip_rho_threshold=rho_bar,
            clip_pg_rho_threshold=rho_bar,
        )
        close(ours.targets[piece], theirs.errors + t.values[piece])
        if trace_lambda == 1.0:
            close((ours.rhos * ours.advantages)[piece], theirs.pg_advantage)


def test_replayed_n_step_returns(rlax: Any) -> None:
    n, rewards, value = 3, normal(T, 1), normal(T + 1)
    terminated = np.zeros((T, 1), np.bool_)
    terminated[5] = True
    batch = TransitionBatch.empty(T, np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    batch.obs = np.arange(T, dtype=np.float32)[:, None, None]
    batch.rewards, batch.terminated, batch.valid = rewards, terminated, np.ones((T, 1), np.bool_)
    shape = ReplayShape(
        capacity=40,
        num_lanes=1,
        n_step=n,
        discount=DISCOUNT,
        alpha=0.0,
        clip_rewards=False,
    )
    replay: Any = make_replay(
        shape, ObsSpec("vector", (1,), "float32"), ActionSpec("discrete", n=2), np.random.SeedSequence(0)
    )
    replay.add(batch, 0)
    kept = replay.everything()
    discounts = np.where(terminated[:, 0], 0.0, DISCOUNT).astype(np.float32)
    expected = rlax.n_step_bootstrapped_returns(rewards[:, 0], discounts, value[1:], n)
    rows = kept.obs.reshape(-1).astype(int)
    assert sorted(rows) == list(range(T - n))
    following = value[np.asarray(kept.next_obs).reshape(-1).astype(int)]
    close(kept.returns + kept.discounts * following, np.asarray(expected)[rows])


# -- losses


@pytest.fixture
def framework() -> tuple[Any, Any, Any]:
    """(array -> tensor, td_losses, the policy loss of PPO)"""
    import torch

    from rlplat.algorithms.dqn import td_losses
    from rlplat.algorithms.ppo import ppo_loss

    def policy_loss(log_probs: Any, entropies: Any, values: Any, minibatch: Any, config: Any) -> Any:
        network = Fixed(log_probs, entropies, values)
        made = Minibatch(None, None, **vars(minibatch))
        return ppo_loss(network, made, config)[1]["policy_loss"]

    return torch.from_numpy, td_losses, policy_loss


def td_inputs(num_outputs: int) -> tuple[np.ndarray, ...]:
    """outputs, actions, next_outputs of the target network, of the online one, returns, discounts"""
    actions = RNG.integers(A, size=N)
    discounts = np.where(np.arange(N) == 2, 0.0, DISCOUNT).astype(np.float32)
    outputs = (normal(N, A, num_outputs) for _ in range(3))
    first, second, online = outputs
    return first, actions, second, online, 3.0 * normal(N), discounts


@pytest.mark.parametrize("loss", ["mse", "huber"])
def test_double_q_learning(rlax: Any, framework: Any, loss: str) -> None:
    tensor, td_losses, _ = framework
    outputs, actions, next_outputs, online, returns, discounts = td_inputs(1)
    chosen = online[:, :, 0].argmax(axis=1)
    columns = [tensor(x) for x in (outputs, actions, next_outputs, chosen, returns, discounts)]
    losses, errors = td_losses(*columns, loss=loss)
    for i in range(N):
        error = rlax.double_q_learning(
            outputs[i, :, 0], actions[i], returns[i], discounts[i], next_outputs[i, :, 0], online[i, :, 0]
        )
        close(errors[i], error)
        close(losses[i], rlax.huber_loss(error) if loss == "huber" else rlax.l2_loss(error))


def test_categorical_projection_and_loss(rlax: Any, framework: Any) -> None:
    tensor, td_losses, _ = framework
    outputs, actions, next_outputs, online, returns, discounts = td_inputs(Z)
    atoms = np.linspace(-2.0, 3.0, Z, dtype=np.float32)
    probs = np.exp(online) / np.exp(online).sum(axis=-1, keepdims=True)
    chosen = (probs @ atoms).argmax(axis=1)
    columns = [tensor(x) for x in (outputs, actions, next_outputs, chosen, returns, discounts)]
    losses, _ = td_losses(*columns, distributional="c51", support=tensor(atoms))
    for i in range(N):
        theirs = rlax.categorical_double_q_learning(
            atoms, outputs[i], actions[i], returns[i], discounts[i], atoms, next_outputs[i], probs[i] @ atoms
        )
        logits = next_outputs[i, chosen[i]]
        target = rlax.categorical_l2_project(
            returns[i] + discounts[i] * atoms, np.exp(logits) / np.exp(logits).sum(), atoms
        )
        target = np.asarray(target, np.float64)
        entropy = -(target * np.log(np.maximum(target, 1e-30))).sum()  # theirs is the cross entropy, ours the KL
        close(losses[i], theirs - entropy)


def test_quantile_huber_loss(rlax: Any, framework: Any) -> None:
    tensor, td_losses, _ = framework
    outputs, actions, next_outputs, online, returns, discounts = td_inputs(Z)
    taus = (np.arange(Z, dtype=np.float32) + 0.5) / Z
    chosen = online.mean(axis=2).argmax(axis=1)
    columns = [tensor(x) for x in (outputs, actions, next_outputs, chosen, returns, discounts)]
    losses, _ = td_losses(*columns, distributional="qr")
    for i in range(N):
        theirs = rlax.quantile_q_learning(
            outputs[i].T,
            taus,
            actions[i],
            returns[i],
            discounts[i],
            online[i].T,
            next_outputs[i].T,
            huber_param=1.0,
        )
        close(losses[i], theirs)


def test_clipped_surrogate_loss(rlax: Any, framework: Any) -> None:
    tensor, _, policy_loss = framework
    log_probs, before, advantages = normal(N), normal(N), normal(N)
    columns = {"log_probs": before, "advantages": advantages, "values": normal(N), "returns": normal(N)}
    config = SimpleNamespace(clip_range=0.2, value_coef=0.5, entropy_coef=0.0, clip_value_loss=False)
    given = [tensor(x) for x in (log_probs, normal(N), normal(N))]
    minibatch = SimpleNamespace(**{name: tensor(x) for name, x in columns.items()})
    theirs = rlax.clipped_surrogate_pg_loss(np.exp(log_probs - before), advantages, 0.2)
    close(policy_loss(*given, minibatch, config), theirs)
    numbers, *_ = numpy_ppo_loss(log_probs, normal(N), normal(N), SimpleNamespace(**columns), config)
    close(numbers[0], theirs)


def test_policy_gradient_and_entropy(rlax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from rlplat.algorithms import impala
    from rlplat.algorithms.a3c import a3c_loss

    logits, actions, advantages = normal(N, A), RNG.integers(A, size=N), normal(N)
    distribution = torch.distributions.Categorical(logits=torch.from_numpy(logits))
    log_probs, entropies = distribution.log_prob(torch.from_numpy(actions)), distribution.entropy()
    values, returns = normal(N), normal(N)
    ones = np.ones(N, np.float32)
    given = (log_probs, entropies, torch.from_numpy(values))
    columns = {"log_probs": None, "values": None}
    columns |= {"advantages": torch.from_numpy(advantages), "returns": torch.from_numpy(returns)}
    _, stats = loss_of(a3c_loss, given, columns, value_coef=0.5, entropy_coef=0.01)
    close(stats["policy_loss"], rlax.policy_gradient_loss(logits, actions, advantages, ones))
    close(stats["value_loss"], rlax.l2_loss(values - returns).mean())
    close(-stats["entropy"], rlax.entropy_loss(logits, ones))
    rhos = np.exp(normal(N)).clip(max=1.0)
    trace = VTrace(returns[None], advantages[None], rhos[None])
    monkeypatch.setattr(impala, "vtrace", lambda *_, **__: trace)
    plain = {"rho_bar": 1.0, "clip_range": None, "discount": 0.99, "c_bar": 1.0, "trace_lambda": 1.0}
    config = SimpleNamespace(**plain, value_coef=0.5, entropy_coef=0.01)
    minibatch: Any = Unrolled(given, log_probs)
    _, stats = impala.impala_loss(None, minibatch, config)
    close(stats["policy_loss"], rlax.policy_gradient_loss(logits, actions, rhos * advantages, ones))
