"""A policy whose critic saw more: who loads or exports it gives the actor's observations alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import rlplat
from rlplat.errors import BadObservation
from rlplat.export import load, to_onnx
from tests.export.test_policy_export import as_exported

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("algo", "env"), [("ppo", "HiddenBonus"), ("sac", "HiddenBonusBox"), ("td3", "HiddenBonusBox")]
)
def test_who_acts_with_the_trained_policy_needs_the_actors_observations_alone(
    tmp_path: Path, algo: str, env: str
) -> None:
    policy = {"obs_groups": {"actor": ["cue"]}, "hidden_sizes": [8]}
    rlplat.train(
        algo, env=f"tests.rl.privileged_env:{env}", num_rollout_workers=0, policy=policy, out=tmp_path / "run",
        normalize_observations=True, stop={"env_steps": 1_100}, evaluation={"episodes": 1}, config=False,
    )  # fmt: skip
    agent = rlplat.load(tmp_path / "run")
    cue = np.float32([[1.0, -1.0], [-1.0, 1.0]])
    hidden = {"bonus": np.float32([[3.0], [1.0]])}
    alone = agent.act({"cue": cue})
    np.testing.assert_array_equal(alone, agent.act({"cue": cue, "sim": hidden}))
    assert agent.act({"cue": cue[0]}) == alone[0] and len(agent.evaluate(2)) == 2
    with pytest.raises(BadObservation, match="has no 'cue'"):
        agent.act({"sim": hidden})
    to_onnx(tmp_path / "run", tmp_path / "policy.onnx")
    exported = load(tmp_path / "policy.onnx")
    np.testing.assert_allclose(exported.act({"cue": cue}), alone, atol=1e-6)


def test_of_a_central_critic_too(tmp_path: Path) -> None:
    """Who acts gives the observation as the environment of several agents gives it."""
    rlplat.train(
        "ppo", env="rlplat.rl.envs.diagnostic_multi_agent:Rendezvous", num_rollout_workers=0, num_envs_per_worker=4,
        rollout_length=16, policy={"hidden_sizes": [8]}, multi_agent={"centralized_critic": True},
        out=tmp_path / "run", stop={"env_steps": 200}, evaluation={"episodes": 2}, config=False,
    )  # fmt: skip
    assert "the observations of left, right side by side (Box(30) float32)" in (tmp_path / "run/log.txt").read_text()
    agent = rlplat.load(tmp_path / "run")
    weights = agent.weights()
    assert weights["shared/actor_encoder.mlp.layers.0.weight"].shape == (8, 15)
    assert weights["shared/critic_encoder.mlp.layers.0.weight"].shape == (8, 45)
    obs = np.eye(15, dtype=np.float32)
    actions = agent.act(obs)
    assert agent.act(obs[0]) == actions[0] and len(agent.evaluate(2)) == 2
    np.testing.assert_array_equal(as_exported(agent).act(obs), actions)
