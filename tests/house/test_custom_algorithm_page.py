"""docs/custom-algorithm.md does what it says: its algorithms learn, resume, are evaluated and loaded."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.cli import main
from rlplat.rl.run.registry import load_algorithm
from tests.house.test_docs import ROOT, blocks, commands

PAGE = ROOT / "docs" / "custom-algorithm.md"
SHORT = ["--num-rollout-workers", "0", "--evaluation.episodes", "1", "--seed", "1"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each python block of the page, under the name in its first line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for block in blocks(PAGE, "python"):
        name = block.splitlines()[0].removeprefix("# ")
        Path(name).write_text(block)
    yield
    for name in [name for name in sys.modules if name.startswith("rlplat_file_")]:
        del sys.modules[name]


def train(*command: str) -> list[dict[str, Any]]:
    assert main(["train", *command, *SHORT, "--out", "run"]) == 0
    return [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]


def test_another_loss_trains_as_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    command = commands(PAGE)[0]
    assert command[:4] == ["rlplat", "train", "--algo", "./penalty_ppo.py:PenaltyPPO"]
    lines = train(*command[2:], "--stop.env-steps", "2000", "--kl-coef", "1")
    assert "the learner computes with torch: PenaltyPPO.loss is a loss of your own" in capsys.readouterr().err
    assert lines[-1]["learner/kl"] >= 0 and "learner/clip_fraction" not in lines[-1]
    assert main(["evaluate", "run", "--episodes", "1"]) == 0


def test_a_subclass_is_twenty_lines_and_there_are_eight_concepts() -> None:
    text = PAGE.read_text()
    block = blocks(PAGE, "python")[0]
    assert len(block[block.index("class PenaltyPPO") :].splitlines()) <= 20
    table = text[text.index("## What there is to know") :].split("\n\n")[1]
    assert len(re.findall(r"^\| [`\[]", table, re.M)) <= 8


def test_the_bonus_shrinks_and_a_resumed_run_remembers_what_was_met() -> None:
    command = ["--algo", "./curious_ppo.py:CuriousPPO", "--env", "CartPole-v1"]
    bonuses = [line["learner/bonus"] for line in train(*command, "--stop.env-steps", "4000")]
    assert 0.1 > bonuses[0] > bonuses[-1] > 0.0
    assert main(["train", "--resume", "run", "--stop.env-steps", "5000"]) == 0
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["learner/bonus"] < bonuses[0]


@pytest.mark.slow
def test_a_compiled_loss_is_one_graph_and_trains_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced, with its gradient; no C++, which takes half a minute (benchmarks/compiled_updates.py)."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    settings: dict[str, Any] = {"env": "CartPole-v1", "num_rollout_workers": 0, "rollout_length": 16, "seed": 1}
    trained, losses = [], []
    for name in ("./compiled_ppo.py:CompiledPPO", "ppo"):
        algorithm = load_algorithm(name)
        with algorithm(algorithm.config_class(**settings, learner={"backend": "torch"})) as ppo:
            losses.append([ppo.step().metrics["learner/value_loss"] for _ in range(4)])
            trained.append(rlplat.get(ppo.weights())[1])
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert trained[0].keys() == trained[1].keys()
    for name, array in trained[0].items():
        np.testing.assert_allclose(array, trained[1][name], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["./plain_reinforce.py:Reinforce", "./penalty_ppo.py:PenaltyPPO"])
def test_the_subclasses_learn(algorithm: str) -> None:
    enough = ("--stop.env-steps", "60000", "--stop.episode-return-mean", "120")
    train("--algo", algorithm, "--env", "CartPole-v1", *enough, "--learning-rate", "3e-3")
    agent = rlplat.load("run")
    assert np.mean([episode.episode_return for episode in agent.evaluate(10)]) > 100, "9.4 to begin with"


@pytest.mark.slow
def test_the_script_without_actors_learns(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(Path("one_process.py").read_text(), "one_process.py", "exec"), {"__name__": "one_process"})
    returns = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(returns) == 20 and returns[0] < 40 and max(returns) > 80
    assert not rlplat.is_initialized()


@pytest.mark.slow
def test_the_off_policy_algorithms_of_the_page_learn(capsys: pytest.CaptureFixture[str]) -> None:
    *_, new, train, conservative = commands(PAGE)
    assert main(new[1:]) == 0
    common = ["--num-rollout-workers", "0", "--seed", "1", "--stop.env-steps"]
    assert main([*train[1:], *common, "2000", "--out", "own"]) == 0  # that it learns: tests/cli/test_new.py
    enough = ("15000", "--stop.episode-return-mean", "60")  # while it explores
    assert main([*conservative[1:], *common, *enough, "--out", "conservative"]) == 0
    returns = [episode.episode_return for episode in rlplat.load("conservative").evaluate(10)]
    assert np.mean(returns) > 100, "9.4 to begin with"
    assert main(["train", "--resume", "own", "--stop.env-steps", "2500"]) == 0
    assert main(["evaluate", "own", "--episodes", "2", "--checkpoint", "best"]) == 0
    assert "2 episodes" in capsys.readouterr().out
