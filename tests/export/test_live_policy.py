"""The policy of a running training as a file: traced once, and right for every version of the weights after that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

from gymnasium import spaces

from rlplat.errors import UsageError
from rlplat.export import onnx_writing
from rlplat.export.contract import NOISE
from rlplat.export.exported_policy import ExportedPolicy
from rlplat.export.live_policy import LivePolicy
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.envs.gym_spaces import space_spec
from rlplat.rl.interfaces import Weights
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR
from rlplat.rl.policies.bounded_actor import ActorSpec, BoundedActor
from rlplat.rl.policies.exploration import EPSILON
from rlplat.rl.policies.make import make_policy
from rlplat.rl.policies.spec import QSpec, policy_spec
from rlplat.rl.torch.networks import make_network
from rlplat.rl.torch.q_network import make_q_network
from rlplat.rl.torch.weights import weights_of

OBS, DISCRETE = spaces.Box(-5, 5, (3,)), spaces.Discrete(3, start=2)
BOX = spaces.Box(np.float32(-0.5), np.float32(0.5), (2,))
Q = QSpec(dueling=True, noisy=False, distributional="none", num_atoms=1, value_range=(0.0, 1.0), head_hidden_size=0)


def spec_of(action: Any) -> Any:
    policy = AlgorithmConfig(env="CartPole-v1", policy={"hidden_sizes": [8]}).model_dump()["policy"]  # type: ignore[arg-type]
    return policy_spec(policy, space_spec(OBS, action))


def test_new_weights_are_exchanged_without_tracing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, rng = spec_of(BOX), np.random.default_rng(1)
    policy = make_policy(spec, np.random.SeedSequence(1))
    live = LivePolicy(policy, OBS, BOX, "torch")
    obs = rng.standard_normal((6, 3), dtype=np.float32)
    traced = 0
    trace = onnx_writing.to_model

    def counted(*arguments: Any) -> Any:
        nonlocal traced
        traced += 1
        return trace(*arguments)

    monkeypatch.setattr(onnx_writing, "to_model", counted)
    for version in range(3):
        weights: Weights = weights_of(make_network(spec))
        weights["log_std"] = rng.standard_normal(2).astype(np.float32)
        weights |= {OBS_MEAN: rng.random(3, np.float32), OBS_VAR: rng.random(3, np.float32) + 0.1}
        policy.set_weights(weights)
        file = ExportedPolicy(f"version {version}", data=live.to_bytes(weights))
        noise = rng.standard_normal((6, 2), dtype=np.float32)
        found = file.run({"obs": obs, NOISE: noise})
        expected = policy.act(obs, deterministic=True)
        drawn = expected.actions + noise * np.exp(weights["log_std"])
        np.testing.assert_allclose(found["policy_action"], drawn, atol=1e-5)
        assert np.abs(drawn).max() > 0.5 and np.abs(found["action"]).max() <= 0.5, "only the action is clipped"
        log_probs = expected.log_probs - 0.5 * np.square(noise).sum(axis=1)
        np.testing.assert_allclose(found["log_prob"], log_probs, atol=1e-4)
        np.testing.assert_allclose(found["value"], policy.values(obs), atol=1e-5)
    assert traced == 1
    assert live.recorded["policy_action"] == ("float32", (2,))


def test_the_share_of_random_actions_travels_with_the_weights() -> None:
    spec = spec_of(DISCRETE)
    policy = make_policy(spec, np.random.SeedSequence(1), q=Q)
    live = LivePolicy(policy, OBS, DISCRETE, "torch")
    rng = np.random.default_rng(2)
    obs = rng.standard_normal((400, 3), dtype=np.float32)
    for epsilon in (1.0, 0.0, 0.5):
        weights = weights_of(make_q_network(spec, Q)) | {EPSILON: np.array([epsilon], np.float32)}
        policy.set_weights(weights)
        file = ExportedPolicy("it", data=live.to_bytes(weights))
        noise = rng.standard_normal((400, file.contract.noise_size), dtype=np.float32)
        found = file.run({"obs": obs, NOISE: noise})
        greedy = found["q_values"].argmax(axis=1)
        others = float((found["policy_action"] != greedy).mean())
        assert abs(others - epsilon * 2 / 3) < 0.1, "a random action is another one in two of three cases"
        assert np.array_equal(found["action"], found["policy_action"] + 2), "as the environment counts"
        np.testing.assert_allclose(found["value"], policy.values(obs), atol=1e-4)


def test_policies_that_explore_in_another_way_are_refused() -> None:
    actor = BoundedActor(spec_of(BOX), ActorSpec("squashed_gaussian"), np.random.SeedSequence(1))
    with pytest.raises(UsageError, match="local is for ppo, impala, a3c and dqn: while sac and td3 warm up"):
        LivePolicy(actor, OBS, BOX, "torch")
    apex = make_policy(spec_of(DISCRETE), np.random.SeedSequence(1), q=Q, epsilons=np.array([0.1, 0.2]))
    with pytest.raises(UsageError, match="asynchronous gives every environment an epsilon of its own"):
        LivePolicy(apex, OBS, DISCRETE, "torch")
