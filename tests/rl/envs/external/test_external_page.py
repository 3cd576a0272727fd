"""docs/external-simulators.md: its Python program and its file of spaces, against a listening environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("websockets")

from tests.house.test_docs import ROOT, blocks
from tests.rl.envs.external.test_external import in_thread, training

assert training  # a fixture
PAGE = ROOT / "docs" / "external-simulators.md"


def test_the_pages_program_plays_until_the_training_ends(training: Any, tmp_path: Path, capsys: Any) -> None:
    spaces = next(each for each in blocks(PAGE, "text") if each.startswith("observation:"))
    (tmp_path / "spaces.yaml").write_text(spaces)
    there = training(str(tmp_path / "spaces.yaml"))
    [program] = blocks(PAGE, "python")
    address = "ws://127.0.0.1:9900"
    assert address in program
    code = compile(program.replace(address, there.address), PAGE.name, "exec")
    simulator = in_thread(lambda: exec(code, {}))
    assert there.obs.result(30).shape == (1, 4)
    ended = 0
    while not ended:  # always to the left: the pole falls
        step = there.env.step(np.array([0]))
        assert step.rewards[0] == 1.0 and step.obs.shape == (1, 4)
        ended += bool(step.terminated[0])
    there.env.close()
    simulator.result(30)
    assert "the training has ended" in capsys.readouterr().out
