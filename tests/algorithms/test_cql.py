"""CQL: the conservative term beside an independent reference and an integral, its step, resuming, what it refuses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplat.algorithms.cql import CQL, CQLConfig, CQLLearner, log_sum_exp_q
from rlplat.algorithms.sac import SACConfig, critic_loss
from rlplat.errors import ConfigError, UsageError
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.offline.dataset import DataWriter
from rlplat.rl.offline.episodes import Episodes, RecordedTransitions
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from rlplat.rl.torch.continuous_control import squashed_sample
from tests.algorithms.recorded import weak_pendulum
from tests.states import assert_resumes

pytestmark = pytest.mark.slow

SPACES = SpaceSpec(
    ObsSpec("vector", (3,), "float32"),
    ActionSpec("box", shape=(2,), dtype="float32", low=(-2.0, 0.0), high=(2.0, 10.0)),
)


def test_the_sum_over_actions_is_the_papers_estimate() -> None:
    """Appendix F row by row: exp Q over the density, uniform ones 1/4 in two dimensions."""
    rng = np.random.default_rng(1)
    q_uniform, q_policy, log_probs = (
        rng.normal(size=(2, 3, 4)),
        rng.normal(size=(2, 3, 4)),
        rng.normal(size=(3, 4)),
    )
    found = log_sum_exp_q(*map(torch.from_numpy, (q_uniform, q_policy, log_probs)), 2)
    for i in range(2):
        for n in range(4):
            of_uniform = sum(np.exp(q_uniform[i, k, n]) / 0.25 for k in range(3))
            of_policy = sum(np.exp(q_policy[i, k, n]) / np.exp(log_probs[k, n]) for k in range(3))
            assert float(found[i, n]) == pytest.approx(np.log((of_uniform + of_policy) / 6))


def test_it_estimates_the_integral_over_all_actions() -> None:
    """Q(a) = 1 + a - 3 a^2 in one dimension, with uniform actions and those of a squashed Gaussian."""
    generator = torch.Generator().manual_seed(1)
    uniform = torch.rand(2, 200_000, 1, generator=generator) * 2 - 1
    outputs = torch.tensor([[0.4, -0.5]]).expand(200_000, 2)
    actions, log_probs = squashed_sample(outputs, torch.randn(200_000, 1, generator=generator))
    q = lambda a: 1 + a - 3 * a**2  # noqa: E731
    found = log_sum_exp_q(q(uniform), q(actions)[None].expand(2, -1, 1), log_probs[:, None], 1)
    grid = np.linspace(-1, 1, 200_001)
    expected = np.log(np.exp(1 + grid - 3 * grid**2).mean() * 2)
    np.testing.assert_allclose(found.numpy(), expected, atol=0.01)


def test_the_critics_descend_sacs_loss_and_the_gap(recorded: Path) -> None:
    """From copies of the networks and the same noise: the conservative term in plain numpy."""
    config = CQLConfig(
        env="X",
        data=str(recorded),
        policy={"hidden_sizes": [8]},
        batch_size=5,
        conservative_coef=3.0,
        num_sampled_actions=4,
    )
    spec = policy_spec(config.policy.model_dump(), SPACES)
    cql = CQLLearner(computation_of(CQL), config.model_dump(), spec, None)  # type: ignore[arg-type]
    nets, rng = cql.trainee, np.random.default_rng(2)
    columns = [rng.normal(size=shape).astype(np.float32) for shape in ((5, 3), (5, 2), (5,), (5,), (5, 3))]
    [batch] = nets.minibatches(*columns)
    targets = torch.from_numpy(rng.normal(size=5).astype(np.float32))
    critics, actor, generator = copy.deepcopy(nets.critics), copy.deepcopy(nets.actor), torch.Generator()
    generator.set_state(nets._generator.get_state())
    q = nets.critics(batch.features, batch.actions)
    loss, figures = cql.critic_objective(batch, q, targets)

    noise = torch.randn(40, 2, generator=generator)
    normal = torch.distributions.Normal(0.0, 1.0)
    with torch.no_grad():
        mean, log_std = actor(batch.features).chunk(2, dim=-1)
        sums = np.zeros((2, 5))
        for k in range(4):
            uniform = 2 * normal.cdf(noise[5 * k : 5 * k + 5]) - 1
            sums += critics(batch.features, uniform).exp().numpy() / 0.25
            u = mean + log_std.exp() * noise[20 + 5 * k : 25 + 5 * k]
            density = torch.distributions.Normal(mean, log_std.exp()).log_prob(u).exp() / (1 - u.tanh() ** 2)
            sums += (critics(batch.features, u.tanh()).exp() / density.prod(-1)).numpy()
        gap = (np.log(sums / 8) - q.numpy()).mean(axis=1).sum()
        plain = float(critic_loss(q, targets))
    assert figures["conservative_gap"] == pytest.approx(gap, rel=1e-4)
    assert float(loss.detach()) == pytest.approx(plain + 3.0 * gap, rel=1e-4)
    assert figures["critic_loss"] == pytest.approx(plain, rel=1e-5)
    loss.backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in nets.critics.parameters())
    assert all(p.grad is None for p in nets.actor.parameters()), "the actor is no part of it"


def test_transitions_end_where_the_episode_did() -> None:
    episodes = Episodes(
        obs=np.arange(7, dtype=np.float32)[:, None],  # 0 1 2 | 3 4 5 6
        actions=np.arange(5, dtype=np.float32)[:, None],
        rewards=np.arange(5, dtype=np.float32),
        lengths=np.array([2, 3]),
        terminated=np.array([True, False]),
    )
    drawn = RecordedTransitions(episodes, 0.9).take(np.array([4, 1, 0, 2]))
    assert drawn.obs[:, 0].tolist() == [5, 1, 0, 3] and drawn.next_obs[:, 0].tolist() == [6, 2, 1, 4]
    assert drawn.returns.tolist() == drawn.actions[:, 0].tolist() == [4, 1, 0, 2]
    np.testing.assert_allclose(drawn.discounts, [0.9, 0.0, 0.9, 0.9])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weak_pendulum(tmp_path_factory.mktemp("data") / "pendulum")


def quick(data: Path, **settings: Any) -> CQLConfig:
    return CQLConfig(
        data=str(data),
        **{"seed": 2, "batch_size": 32, "updates_per_round": 70, "policy": {"hidden_sizes": [16]}} | settings,
    )


def test_resumes_bit_by_bit(recorded: Path) -> None:
    [last] = assert_resumes(CQL, quick(recorded, normalize_observations=True), before=1, after=1)
    assert last.env_steps == 2 * 70 * 32 and last.metrics["learner/updates"] == 140
    assert {"learner/critic_loss", "learner/conservative_gap", "learner/entropy"} <= last.metrics.keys()


def test_recorded_actions_are_worth_more_than_others(recorded: Path) -> None:
    """Only weak actions were: with the term the critics prefer them, without it they see a flat landscape, whose gap is
    twice log 2."""
    gaps = []
    for coef in (0.0, 5.0):
        settings = {"learning_rate": 1e-2, "policy": {"hidden_sizes": [32, 32]}}
        with CQL(quick(recorded, conservative_coef=coef, **settings)) as cql:
            gaps.append([cql.step().metrics["learner/conservative_gap"] for _ in range(4)][-1])
    assert gaps[0] > 1.0 and gaps[1] < -1.0


def test_bad_input_is_answered(recorded: Path) -> None:
    with pytest.raises(ConfigError, match="n_step=3 has no effect: recorded steps are learnt from one by one"):
        quick(recorded, n_step=3)
    with pytest.raises(ConfigError, match=r"was recorded in Pendulum-v1 .* but MountainCarContinuous-v0 has"):
        CQL(quick(recorded, env="MountainCarContinuous-v0"))
    with pytest.raises(UsageError, match=r"there is no data set in .*nowhere"):
        CQL(CQLConfig(env="Pendulum-v1", data="nowhere"))


def test_its_networks_are_those_of_sac_unless_others_are_named() -> None:
    assert CQLConfig(env="X", data="d").policy == SACConfig(env="X").policy


def test_discrete_actions_are_not_for_it(tmp_path: Path) -> None:
    with (
        make_vector_env("CartPole-v1", 1) as env,
        DataWriter(tmp_path / "d", env="CartPole-v1", spaces=env.spec) as w,
    ):
        w.add(Episodes(np.zeros((2, 4), np.float32), *map(np.array, ([1], np.ones(1, np.float32), [1], [True]))))
        w.close()
    with pytest.raises(UsageError, match=r"CQL decides continuous actions.*use IQL: rlplat train --algo iql"):
        CQL(CQLConfig(data=str(tmp_path / "d")))
