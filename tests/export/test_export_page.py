"""docs/export.md does what it says: its commands and its programs run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from rlplat.cli import main
from tests.house.test_docs import ROOT, blocks, commands

PAGE = ROOT / "docs" / "export.md"
SMALL = ["--num-rollout-workers", "0", "--rollout-length", "32", "--num-envs-per-worker", "2"]
SMALL += ["--stop.env-steps", "64", "--evaluation.episodes", "1", "--evaluation.period", "64"]


@pytest.mark.slow
def test_the_page_is_a_program_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for command in commands(PAGE):
        assert main([*command[1:], *(SMALL if command[1] == "train" else [])]) == 0, command
    printed = capsys.readouterr().out
    assert "env               CartPole-v1" in printed and "golden rows within" in printed
    exec(compile("\n".join(blocks(PAGE, "python")), PAGE.name, "exec"), {})
    total, outputs, shape = capsys.readouterr().out.splitlines()
    assert float(total) > 0 and shape == "(1, 2)"
    assert outputs == "CartPole-v1 ['action', 'greedy_action', 'log_prob', 'params', 'value']"
