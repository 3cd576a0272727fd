"""A checkpoint that one trial takes over from another: without hard links, and on a disk that is full; and what the
tuner writes of trials that its scheduler ends before they go on."""

from __future__ import annotations

import csv
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="needs the extra 'tune'")

import rlplat
from rlplat.errors import ConfigError
from rlplat.tune.schedulers import FIFO, Continue, Exploit, Stop, Verdict
from rlplat.tune.trial import Trial
from rlplat.tune.trials import checkpoints
from rlplat.tune.trials.checkpoints import copy_checkpoint
from tests.tune.running import run, states


def refusing(number: int) -> Any:
    def link(source: Any, target: Any, **_: Any) -> None:
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    return link


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.ENOTSUP])
def test_where_there_are_no_hard_links_it_is_copied(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "source" / "files"
    inside.mkdir(parents=True)
    (inside / "weights").write_bytes(b"1234")
    monkeypatch.setattr(checkpoints.os, "link", refusing(number))
    copy_checkpoint(tmp_path / "source", tmp_path / "other" / "target")
    copied = tmp_path / "other" / "target" / "files" / "weights"
    assert copied.read_bytes() == b"1234" and copied.stat().st_ino != (inside / "weights").stat().st_ino


class Walker:
    def __init__(self, config: dict[str, Any]) -> None:
        self.steps = 0

    def step(self) -> dict[str, Any]:
        self.steps += 1
        return {"x": self.steps}

    def save(self) -> int:
        return self.steps

    def load(self, steps: int) -> None:
        self.steps = steps


class CopiesOnce(FIFO):
    """Trial 1 takes the place of trial 0 at its second report; or it is ended at once, where `stops` is set."""

    stops = False

    def judge(self, trial: Trial) -> Verdict:
        if trial.number == 1 and self.stops:
            return Stop("enough")
        if trial.number == 1 and trial.step == 2 and not trial.notes.get("exploits"):
            return Exploit(0, trial.config, trial.params, "a copy")
        return Continue()


SETTINGS: dict[str, Any] = {"num_samples": 2, "stop": {"step": 5}, "checkpoint_period": 1}


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[str]:
    """What is told of an experiment whose disk is full when a checkpoint is to be copied; it can be resumed."""
    rlplat.init(num_cpus=2, num_gpus=0, backend="inproc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints.os, "link", refusing(errno.ENOSPC))
        with pytest.raises(ConfigError) as raised:
            run(Walker, {"a": 1}, tmp_path, scheduler=CopiesOnce(), **SETTINGS)
    yield str(raised.value)
    rlplat.shutdown()


def test_a_full_disk_during_a_copy_is_told_and_after_its_cure_the_experiment_goes_on(
    refused: str, tmp_path: Path
) -> None:
    assert "of trial 0 to trial 1: [Errno 28] No space left on device: " in refused and "--resume" in refused
    assert str(tmp_path / "e" / "trials") in refused
    left = tmp_path / "e" / "trials" / "00001" / "checkpoints"
    assert not [path.name for path in left.iterdir() if "exploit" in path.name]
    analysis = run(Walker, {"a": 1}, tmp_path, resume=True, scheduler=CopiesOnce(), **SETTINGS)
    assert states(analysis) == ["complete"] * 2
    assert len(analysis.trials[1].notes["exploits"]) == 1


def test_a_trial_that_is_ended_as_the_experiment_is_resumed_has_one_row(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopiesOnce, "stops", True)
    analysis = run(Walker, {"a": 1}, tmp_path, resume=True, scheduler=CopiesOnce(), **SETTINGS)
    assert states(analysis) == ["complete", "stopped"] and analysis.trials[1].step == 1
    with open(tmp_path / "e" / "results.csv", newline="") as file:
        assert sorted((row["trial"], row["state"]) for row in csv.DictReader(file)) == [
            ("0", "complete"),
            ("1", "stopped"),
        ]
