"""docs/custom-algorithm.md does what it says: the algorithm on it trains, resumes, is evaluated and loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.cli import main
from tests.house.test_docs import ROOT, blocks, commands

PAGE = ROOT / "docs" / "custom-algorithm.md"


@pytest.mark.slow
def test_the_algorithm_of_the_page_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    [block], [*_, command] = blocks(PAGE, "python"), commands(PAGE)  # the others: tests/cli/test_new.py
    (tmp_path / "hill_climbing.py").write_text(block)
    try:
        assert main([*command[1:], "--num-rollout-workers", "0", "--seed", "1", "--out", "run"]) == 0
        agent = rlplat.load("run")
        assert np.mean([episode.episode_return for episode in agent.evaluate(10)]) > 100, "9.4 to begin with"
        assert main(["train", "--resume", "run", "--stop.env-steps", "22000"]) == 0
        assert main(["evaluate", "run", "--episodes", "2", "--checkpoint", "best"]) == 0
        assert "2 episodes" in capsys.readouterr().out
    finally:
        for name in [name for name in sys.modules if name.startswith("rlplat_file_")]:
            del sys.modules[name]
