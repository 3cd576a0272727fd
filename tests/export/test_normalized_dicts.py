"""Statistics of the vectors of a Dict are in what is exported, loaded and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlplat
from rlplat import export
from tests.algorithms.test_normalized_dicts import Far

pytest.importorskip("onnxruntime")


@pytest.mark.slow
def test_export_load_and_resume_carry_them(tmp_path: Path) -> None:
    rollouts = {
        "num_rollout_workers": 0,
        "num_envs_per_worker": 4,
        "rollout_length": 16,
        "minibatch_size": 16,
    }
    settings = rollouts | {"policy": {"hidden_sizes": [8]}, "evaluation": {"episodes": 0}}
    rlplat.train("ppo", env=Far, out=tmp_path / "run", stop={"env_steps": 128}, normalize_observations=True, **settings)
    agent = rlplat.load(tmp_path / "run", env=Far)
    obs = [Far().reset(seed=seed)[0] for seed in range(20)]
    acted = [int(agent.act(each)) for each in obs]
    export.to_onnx(tmp_path / "run", tmp_path / "file.onnx", env=Far)
    assert acted == [int(export.load(tmp_path / "file.onnx").act(each)) for each in obs]
    resumed = rlplat.train(resume=tmp_path / "run", env=Far, stop={"env_steps": 192})
    state = rlplat.load(resumed.directory, env=Far).checkpoint.state["algorithm"]
    assert state["learner"]["obs_statistics"]["count"] == 192
