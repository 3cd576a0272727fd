"""That recurrent training is right: what the learner computes from a fragment is what acting computed, whatever the
core, the heads and the observations are; minibatches are whole fragments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import rlplat  # noqa: E402
from rlplat.algorithms import ppo as ppo_module  # noqa: E402
from rlplat.algorithms.ppo import PPO, PPOConfig, PPOLearner, ppo_loss  # noqa: E402
from rlplat.rl.interfaces import Array  # noqa: E402
from rlplat.rl.learning.backend import computation_of  # noqa: E402
from rlplat.rl.learning.parameter_server import ParameterServer  # noqa: E402
from rlplat.rl.policies.spec import PolicySpec, policy_spec  # noqa: E402
from rlplat.rl.sampling import rollout as rollout_module  # noqa: E402
from rlplat.rl.sampling import rollout_worker as rollout_worker_module  # noqa: E402
from rlplat.rl.sampling.rollout_worker import RolloutWorker  # noqa: E402
from rlplat.rl.sampling.sample_batch import SampleBatch  # noqa: E402
from rlplat.rl.spaces import ObsSpec  # noqa: E402
from tests.algorithms.losses import Fixed  # noqa: E402
from tests.rl.specimens import (  # noqa: E402
    ACTIONS,
    IMAGE,
    TREE,
    RandomEnv,
    make_spec,
    masked,
    policy_settings,
    spec_of_actions,
)

pytestmark = pytest.mark.slow

T, B = 12, 6
CORES = ("none", "lstm", "gru", "attention")


@pytest.fixture
def parameter_server() -> Iterator[Any]:
    rlplat.init(backend="inproc")
    yield rlplat.remote(ParameterServer).remote()
    rlplat.shutdown()


def make_config(spec: PolicySpec, **settings: Any) -> PPOConfig:
    defaults: dict[str, Any] = {
        "env": "made up",
        "num_rollout_workers": 2,
        "num_envs_per_worker": B,
        "rollout_length": T,
        "minibatch_size": 2 * T,  # with a core: two fragments
        "num_epochs": 1,
        "learning_rate": 1e-30,  # every minibatch finds the weights that acted
        "max_gradient_norm": None,
        "policy": policy_settings(core=spec.core, encoder=spec.encoder, squash_actions=is_squashed(spec)),
        "learner": {"backend": "torch", "precision": "float32", "device": "cpu", "num_threads": 1},
    }
    return PPOConfig(**(defaults | settings))


def is_squashed(spec: PolicySpec) -> bool:
    return any(head.kind == "squashed_gaussian" for head in spec.heads)


def round_of_two_workers(
    monkeypatch: pytest.MonkeyPatch, spec: PolicySpec, parameter_server: Any, **settings: Any
) -> tuple[PPOLearner, list[SampleBatch]]:
    """The learner's first weights after both workers have rolled out three fragments: the last ones."""
    config = make_config(spec, **settings)
    learner = PPOLearner(computation_of(PPO), config.model_dump(), spec, parameter_server)
    weights = learner.get_state()["weights"]
    rng = np.random.default_rng(0)
    for array in weights.values():  # away from the nearly uniform policy of the start
        array += rng.normal(scale=0.02 if spec.has_images else 0.3, size=array.shape).astype(np.float32)
    learner.set_state(learner.get_state() | {"weights": weights})
    version, _ = rlplat.get(parameter_server.latest.remote())
    batches = []
    for index in range(2):
        env = RandomEnv(spec, B, next_step=index == 1, seed=index)
        monkeypatch.setattr(rollout_worker_module, "make_vector_env", lambda *_, env=env, **__: env)
        worker = RolloutWorker(config.model_dump(), index, 0)
        worker.set_weights(version, weights)
        batches.append([worker.roll_out() for _ in range(3)][-1])
    assert policy_spec(config.policy.model_dump(), env.spec) == spec
    return learner, batches


def differences(monkeypatch: pytest.MonkeyPatch, learner: PPOLearner, batches: list[SampleBatch]) -> Array:
    """|log_prob now - log_prob then|, |V now - V then| of every row that the loss was given: [rows, 2]."""
    seen: list[Array] = []

    def spy(network: Any, minibatch: Any, config: Any) -> Any:
        log_probs, _, values = minibatch.evaluate(network)
        now = torch.stack([log_probs - minibatch.log_probs, values - minibatch.values], dim=1)
        seen.append(now.detach().abs().numpy())
        return ppo_loss(network, minibatch, config)

    monkeypatch.setattr(ppo_module, "ppo_loss", spy)
    learner.update(*batches)
    return np.concatenate(seen)


CASES = [
    *[(name, make_spec().obs, core) for name in ACTIONS for core in CORES],
    *[(name, masked(action), "lstm") for name, action in ACTIONS.items() if action.mask_size],
    ("composite", TREE, "gru"),
    ("discrete", IMAGE, "lstm"),
    ("discrete", IMAGE, "none"),
    ("discrete", ObsSpec("vector", (2, 3), "float64"), "attention"),
]


@pytest.mark.parametrize(
    "name, obs, core",
    CASES,
    ids=[f"{name}-{'tree' if isinstance(obs, dict) else obs.kind}-{core}" for name, obs, core in CASES],
)
def test_the_ratio_is_one_while_the_weights_are_those_that_acted(
    parameter_server: Any, monkeypatch: pytest.MonkeyPatch, name: str, obs: Any, core: str
) -> None:
    spec = spec_of_actions(name, obs, core=core)
    learner, batches = round_of_two_workers(monkeypatch, spec, parameter_server)
    assert all((batch.core_state.size > 0) == (core != "none") for batch in batches)
    assert not batches[1].valid.all() and any(batch.truncated[:-1].any() for batch in batches)
    found = differences(monkeypatch, learner, batches)
    assert len(found) == sum(batch.env_steps for batch in batches)
    # Squashed actions near their bounds come back through atanh: float32 keeps fewer digits of them.
    np.testing.assert_array_less(found, 2e-3 if is_squashed(spec) or name == "composite" else 5e-5)


@pytest.mark.parametrize("core", ["lstm", "gru", "attention"])
def test_it_is_not_one_without_the_state_or_the_starts(
    parameter_server: Any, monkeypatch: pytest.MonkeyPatch, core: str
) -> None:
    """The test above can fail."""
    spec = make_spec(core=core)
    learner, batches = round_of_two_workers(monkeypatch, spec, parameter_server)
    with monkeypatch.context() as patch:
        patch.setattr(rollout_module, "episode_starts", lambda batch: np.zeros(batch.shape, np.bool_))
        assert differences(monkeypatch, learner, batches).max() > 1e-2
    for batch in batches:
        batch.core_state = batch.core_state[::-1].copy()
    assert differences(monkeypatch, learner, batches).max() > 1e-2


@pytest.mark.parametrize("core", CORES)
def test_an_epoch_meets_every_row_once_and_with_a_core_whole_fragments(
    parameter_server: Any, monkeypatch: pytest.MonkeyPatch, core: str
) -> None:
    spec = make_spec(core=core)
    learner, batches = round_of_two_workers(monkeypatch, spec, parameter_server, num_epochs=3)
    taken: list[Any] = []
    train = learner.net.train

    def spy(rows: Any, config: Any) -> Any:
        taken.append(rows)
        return train(rows, config)

    monkeypatch.setattr(learner.net, "train", spy)
    learner.update(*batches)
    assert len(taken) % 3 == 0
    per_epoch = len(taken) // 3
    for epoch in range(3):
        minibatches = taken[epoch * per_epoch : (epoch + 1) * per_epoch]
        if core == "none":
            valid = np.concatenate([batch.valid for batch in batches], axis=1).reshape(-1)
            assert sorted(np.concatenate([each.rows for each in minibatches])) == np.flatnonzero(valid).tolist()
            continue
        assert [len(each.envs) for each in minibatches] == [2] * B  # 2 B fragments, two in each
        assert sorted(np.concatenate([each.envs for each in minibatches])) == list(range(2 * B))
        for each in minibatches:
            fragments = each.envs + np.arange(T)[:, None] * 2 * B
            np.testing.assert_array_equal(each.rows, fragments.reshape(-1))
    orders = [np.concatenate([each.rows for each in taken[e * per_epoch : (e + 1) * per_epoch]]) for e in (0, 1)]
    assert (orders[0] != orders[1]).any()


def test_the_gradient_of_a_fragment_is_that_of_the_steps_one_by_one(
    parameter_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backpropagation through time, against autograd over a loop that calls the network once per step."""
    spec = make_spec(core="gru")
    learner, batches = round_of_two_workers(
        monkeypatch, spec, parameter_server, minibatch_size=10_000, normalize_advantages=False
    )
    batch = batches[0]  # its environments reset within the step: all rows are valid
    assert batch.valid.all()
    network = learner.trainee.network
    losses, state = [], torch.from_numpy(batch.core_state)
    seen: dict[str, Any] = {}

    def spy(network: Any, minibatch: Any, config: Any) -> Any:
        seen.update(minibatch=minibatch, config=config)
        return ppo_loss(network, minibatch, config)

    monkeypatch.setattr(ppo_module, "ppo_loss", spy)
    order: list[Array] = []
    train = learner.net.train

    def keep_order(rows: Any, config: Any) -> Any:
        order.append(rows.rows)
        return train(rows, config)

    monkeypatch.setattr(learner.net, "train", keep_order)
    learner.update(batch)
    gradients = {name: p.grad.clone() for name, p in network.named_parameters()}
    network.zero_grad(set_to_none=True)

    obs = torch.from_numpy(np.asarray(batch.obs))
    actions = torch.from_numpy(batch.actions)
    for t in range(T):
        if t > 0:
            ended = torch.from_numpy(batch.terminated[t - 1] | batch.truncated[t - 1])
            state = torch.where(ended.unsqueeze(-1), torch.zeros_like(state), state)
        distribution, values, state = network(obs[t], state)
        losses.append((distribution.log_prob(actions[t]), distribution.entropy(), values))
    (indices,) = order
    rows = torch.from_numpy(indices)
    evaluated = [torch.cat(parts)[rows] for parts in zip(*losses, strict=True)]
    loss, _ = ppo_loss(Fixed(*evaluated), seen["minibatch"], seen["config"])
    loss.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4)
