"""ONNX's own tools over the kinds of policies that differ in their graphs: its checker with full shape inference, and
its reference evaluator (plain numpy) beside onnxruntime, which a file is read with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx.reference import ReferenceEvaluator

import rlplat
from rlplat.export.examples import ExampleRows
from rlplat.export.policy_export import to_onnx
from tests.export.test_policy_export import draws_actions_of
from tests.rl.run.test_trained_agent import LSTM, trained

pytestmark = pytest.mark.slow

CORE = {"core_size": 8, "hidden_sizes": [8], "attention_window": 4, "attention_heads": 2}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tree with an image, gru": ("ppo", "tree", {"policy": {"core": "gru", **CORE}}),
    "mask in the info, lstm": ("a3c", "info", LSTM),
    "mask in a Dict, attention": ("ppo", "dict", {"policy": {"core": "attention", **CORE}}),
    "c51": ("dqn", "dict", {"distributional": "c51", "value_range": [0, 10]}),
    "quantiles, noisy, dueling": (
        "dqn",
        "discrete",
        {"distributional": "qr", "noisy": True, "dueling": True, "normalize_observations": True},
    ),
    "sac": ("sac", "box", {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_checker_and_the_reference_agree(kind: str, tmp_path: Path) -> None:
    algo, env, settings = KINDS[kind]
    file = to_onnx(trained(algo, env, tmp_path / "run", **settings), tmp_path / "policy.onnx")
    onnx.checker.check_model(str(file), full_check=True)

    policy = rlplat.export.load(file)
    draws_actions_of(policy, env)
    agent = rlplat.load(tmp_path / "run")
    feeds = ExampleRows(policy.contract, agent.spaces.observation_space, seed=4).rows(5)
    expected = policy.run(feeds)
    with np.errstate(divide="ignore"):  # log_softmax of a masked choice: -inf, as it should be
        outputs = ReferenceEvaluator(str(file)).run(None, feeds)
    for name, theirs in zip(policy.contract.output_names, outputs, strict=True):
        assert theirs.dtype == expected[name].dtype and theirs.shape == expected[name].shape, name
        np.testing.assert_allclose(theirs, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
