"""docs/custom-policy.md does what it says: every block is written to its file, every command is run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from rlplat.cli import main
from tests.house.test_docs import ROOT, blocks, commands, run

PAGE = ROOT / "docs" / "custom-policy.md"
FILES = {re.match(r"# (\S+\.py)\n", block)[1]: block for block in blocks(PAGE, "python")}  # type: ignore[index]
TRAININGS = [words[1:] for words in commands(PAGE)]
IN_THIS_PROCESS = ("--num-rollout-workers", "0", "--evaluation.episodes", "10")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, block in FILES.items():
        (tmp_path / name).write_text(block)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("rlplat_file_")]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(TRAININGS)))
def test_every_command_runs(here: Path, capsys: Any, number: int) -> None:
    command = TRAININGS[number][:-2]
    assert TRAININGS[number][-2] == "--stop.env-steps"
    assert main([*command, *IN_THIS_PROCESS, "--stop.env-steps", "2000", "--out", "run"]) == 0
    assert "evaluation" in capsys.readouterr().out
    assert main(["evaluate", "run", "--episodes", "2"]) == 0


@pytest.mark.slow
def test_the_autoregressive_policy_learns(here: Path, capsys: Any) -> None:
    """2 at random, 10 at best; the page's own number of steps."""
    command = next(words for words in TRAININGS if "--learning-rate" in words)
    assert main([*command, *IN_THIS_PROCESS, "--out", "run"]) == 0
    said = re.search(r"evaluation ([\d.]+) over 10 episodes", capsys.readouterr().out)
    assert said is not None and float(said[1]) > 9.0, "the page promises a policy that was trained"


@pytest.mark.process
def test_the_script_runs(here: Path) -> None:
    block = FILES["train.py"]
    assert '"env_steps": 40_000' in block
    (here / "train.py").write_text(block.replace("40_000", "4_000"))
    lines = run(["train.py"], here).splitlines()
    assert lines[0].split()[0].isdigit() and lines[-1].count(",") == 4


def test_the_pair_is_a_distribution(here: Path) -> None:
    """Its probabilities add up to one over all 12 pairs, its entropy is that of the table, its samples follow it."""
    import torch

    from rlplat.rl.class_path import load_class

    logits = torch.randn(1, 3 + 12, generator=torch.Generator().manual_seed(0))
    pair = load_class("./my_policy.py:Pair")(logits[:, :3], logits[:, 3:].unflatten(1, (3, 4)))
    table = torch.tensor([[[a, b]] for a in range(3) for b in range(4)])
    log_probs = torch.cat([pair.log_prob(actions) for actions in table])
    assert float(log_probs.exp().sum()) == pytest.approx(1.0)
    assert float(pair.entropy()) == pytest.approx(float(-(log_probs.exp() * log_probs).sum()), rel=1e-5)
    many = load_class("./my_policy.py:Pair")(
        logits[:, :3].expand(20_000, -1), logits[:, 3:].unflatten(1, (3, 4)).expand(20_000, -1, -1)
    )
    actions = many.sample(torch.Generator().manual_seed(1))
    frequencies = torch.bincount(actions[:, 0] * 4 + actions[:, 1], minlength=12) / 20_000
    torch.testing.assert_close(frequencies, log_probs.exp(), atol=0.015, rtol=0)
    assert os.getcwd() == str(here)
