"""Trials whose end hangs: it has a limit, costs a process, and is nobody else's failure."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat import tune
from rlplat.errors import ConfigError
from rlplat.tune import tuner
from rlplat.tune.schedulers import FIFO, Continue, Exploit, Verdict
from rlplat.tune.trial import Trial
from tests.patience import soon
from tests.tune.running import lines, run, states


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "CLOSE_S", 0.5)


class HangsAtItsEnd:
    """Where `how` says so; each end is noted with its process."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.steps = config, 0

    def step(self) -> dict[str, Any]:
        self.steps += 1
        if self.config["how"] == "after an error" and not lines(Path(self.config["notes"])):
            raise ValueError("it begins again")
        return {"x": self.config["a"]}

    def save(self) -> int:
        return self.steps

    def load(self, steps: int) -> None:
        self.steps = steps

    def close(self) -> None:
        with Path(self.config["notes"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
        if self.config["how"] == "native":
            import ctypes

            ctypes.PyDLL(None).sleep(600)  # nobody else in this process runs meanwhile
        threading.Event().wait()


@pytest.mark.parametrize("how", ["waits", "native", "after an error"])
def test_an_end_that_hangs_costs_its_process_and_no_trial_a_retry(cluster: None, how: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    space = {"a": tune.grid([1, 2]), "how": how, "notes": str(notes)}
    analysis = run(HangsAtItsEnd, space, tmp_path, stop={"step": 2}, max_concurrent=1)
    assert states(analysis) == ["complete"] * 2
    failures = [trial.failures for trial in analysis.trials]
    assert failures == [int(how == "after an error"), 0]
    assert len(set(lines(notes))) == len(lines(notes)) >= 2
    log = (tmp_path / "e" / "log.txt").read_text()
    assert "trial 0 did not come to its end within 0.5 s: its process was killed" in log


class ExitsAtItsEnd(HangsAtItsEnd):
    def close(self) -> None:
        os._exit(3)


def test_an_end_that_takes_its_process_with_it_is_no_failure_of_the_next(cluster: None, tmp_path: Path) -> None:
    space = {"a": tune.grid([1, 2, 3]), "how": "exits", "notes": os.devnull}
    analysis = run(ExitsAtItsEnd, space, tmp_path, stop={"step": 2}, max_concurrent=1)
    assert states(analysis) == ["complete"] * 3
    assert [trial.failures for trial in analysis.trials] == [0] * 3


class WaitsForItsCopy(HangsAtItsEnd):
    """Trial 0 goes on when trial 1 has been told to end, to go on as a copy; which ends it."""

    def step(self) -> dict[str, Any]:
        is_source, is_copy = self.config["a"] == 0, self.steps > 0 and self.config["a"] == 1
        if is_source and self.steps == 2:
            assert soon(lambda: lines(Path(self.config["notes"])))
        self.steps += is_source
        return {"x": int(is_copy or self.steps == 3)}


class CopiesOnce(FIFO):
    def __init__(self) -> None:
        super().__init__()
        self.trials: list[Trial] = []

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)

    def judge(self, trial: Trial) -> Verdict:
        if trial.number == 1 and self.trials[0].checkpoint and not trial.notes.get("exploits"):
            return Exploit(0, trial.config, trial.params, "copies")
        return Continue(save=trial.number == 0)


def test_an_end_that_hangs_before_a_copy_begins_is_no_failure_of_the_copy(cluster: None, tmp_path: Path) -> None:
    space = {"a": tune.grid([0, 1]), "how": "waits", "notes": str(tmp_path / "notes")}
    analysis = run(WaitsForItsCopy, space, tmp_path, scheduler=CopiesOnce(), stop={"x": 1})
    assert states(analysis) == ["complete"] * 2 and analysis.trials[1].notes["exploits"]
    assert [trial.failures for trial in analysis.trials] == [0, 0]


def test_an_end_that_takes_longer_than_max_silence_s_is_not_the_next_trials_silence(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "CLOSE_S", 60.0)

    def trial(config: dict[str, Any], report: Any) -> None:
        try:
            while True:
                report(x=config["a"])
        finally:
            time.sleep(3 if config["a"] == 1 else 0)

    settings = {"max_silence_s": 2, "max_concurrent": 1, "stop": {"x": 0}}
    analysis = run(trial, {"a": tune.grid([1, 2])}, tmp_path, **settings)
    assert states(analysis) == ["complete"] * 2
    assert [trial.failures for trial in analysis.trials] == [0] * 2


def test_max_silence_s_is_refused_where_nobody_could_end_the_trial(tmp_path: Path) -> None:
    rlplat.init(num_cpus=1, num_gpus=0, backend="inproc")
    try:
        with pytest.raises(ConfigError, match=r"max_silence_s needs worker processes.*leave it out") as caught:
            run(lambda config: 1.0, {"a": 1}, tmp_path, max_silence_s=5)
    finally:
        rlplat.shutdown()
    assert len(str(caught.value).splitlines()) == 1 and not (tmp_path / "e").exists()
