"""Checkpoints that cannot be written: a full disk, a `save` that raises. The trial goes on, and it is told once."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat import cli, tune
from rlplat.rl.run.run_directory import RunDirectory
from rlplat.tune.domains import loguniform
from rlplat.tune.events import (
    Advance,
    Begin,
    Interrupted,
    RecordChange,
    RecordEnd,
    RecordReport,
    Release,
    Save,
    Saved,
    Say,
)
from rlplat.tune.schedulers import FIFO, Continue, Pause, Stop, Verdict
from rlplat.tune.schedulers.halving import HyperBand
from rlplat.tune.schedulers.pbt import PBT
from rlplat.tune.trial import CheckpointMark, Trial, TrialState
from tests.tune.population import Killed, Population
from tests.tune.running import lines, run, states
from tests.tune.schedulers.test_pbt import Climber, has_its_lineage
from tests.tune.test_experiment import Scripted, begun, kinds, make, report
from tests.tune.trials.test_rl_program import SMALL

ERROR = "e/trials/00000/checkpoints: OSError: no space\nTraceback ..."


def refused(number: int, step: int) -> Saved:
    return Saved(number, None, step, error=ERROR)


# ---------------------------------------------------------------- what an experiment makes of it


def test_a_trial_that_cannot_be_saved_goes_on_and_it_is_told_once() -> None:
    experiment = make(1, checkpoint_period=1)
    trial = begun(experiment)
    report(experiment, 0, 0.1)
    experiment.handle(Saved(0, "step_1", 1))
    assert kinds(report(experiment, 0, 0.2)) == [RecordReport, Save, Advance]
    said, *rest = experiment.handle(refused(0, 2))
    assert isinstance(said, Say) and not said.to_log_only
    assert "trial 0 could not be saved at its report 2 and goes on; its checkpoint of report 1 stays" in said.text
    assert "e/trials/00000/checkpoints: OSError: no space" in said.text and kinds(rest) == [RecordChange]
    report(experiment, 0, 0.3)
    assert kinds(experiment.handle(refused(0, 3))) == [RecordChange]
    assert (trial.failures, trial.checkpoint) == (0, CheckpointMark(1, "step_1", 1.0))
    assert trial.notes["not_saved"] == "not saved at report 2 in e/trials/00000/checkpoints: OSError: no space"
    report(experiment, 0, 0.4)
    experiment.handle(Saved(0, "step_4", 4))
    assert trial.checkpoint == CheckpointMark(4, "step_4", 4.0)


def test_a_save_that_fails_is_tried_again_no_more_often_than_one_that_works() -> None:
    experiment = make(1)
    begun(experiment)
    assert Save in kinds(report(experiment, 0, 0.1, run_s=5.0))
    experiment.handle(Saved(0, None, 1, seconds=3.0, error=ERROR))
    assert Save not in kinds(report(experiment, 0, 0.1, run_s=29.0))
    assert Save in kinds(report(experiment, 0, 0.1, run_s=1.0))


def test_a_complete_trial_is_complete_without_its_last_state() -> None:
    experiment = make(1, stop={"acc": 0.5})
    trial = begun(experiment)
    assert kinds(report(experiment, 0, 0.6)) == [RecordReport, Say, Save]
    assert kinds(experiment.handle(refused(0, 1))) == [Say, RecordEnd, Release]
    assert (trial.state, trial.values, trial.checkpoint) == (TrialState.COMPLETE, (0.6,), None)


def test_an_interrupted_trial_goes_on_from_the_checkpoint_before() -> None:
    experiment = make(1, checkpoint_period=1)
    trial = begun(experiment)
    report(experiment, 0, 0.1)
    experiment.handle(Saved(0, "step_1", 1))
    experiment.handle(Interrupted("interrupted"))
    assert kinds(report(experiment, 0, 0.2)) == [RecordReport, Save]
    assert kinds(experiment.handle(refused(0, 2))) == [Say, RecordChange, RecordChange, Release]
    assert (trial.state, trial.step, trial.history) == (TrialState.WAITING, 1, [(1.0, 0.1)])


def test_when_the_time_budget_is_spent_its_last_report_is_its_result() -> None:
    experiment = make(1)
    trial = begun(experiment)
    experiment.handle(Interrupted("budget", ends_trials=True))
    report(experiment, 0, 0.2)
    assert kinds(experiment.handle(refused(0, 1))) == [Say, RecordChange, RecordEnd, Release]
    assert (trial.state, trial.values) == (TrialState.STOPPED, (0.2,))


def test_a_paused_trial_repeats_what_was_not_saved_and_is_not_judged_on_it_again() -> None:
    always = {(0, step): Pause() for step in range(1, 4)}
    experiment = make(1, Scripted(always))
    trial = begun(experiment)
    for step in (1, 2):  # the second time from the beginning, and over its first report
        assert kinds(report(experiment, 0, step / 10)) == [RecordReport, Save]
        experiment.handle(refused(0, step))
        assert (trial.state, trial.step) == (TrialState.PAUSED, step)
        actions = experiment.next_trial()  # nobody else is there
        assert kinds(actions)[-1] is Begin and trial.checkpoint is None and trial.step == 0
        for again in range(1, step + 1):
            assert kinds(report(experiment, 0, again / 10)) == [RecordReport, Advance]
    assert [score for _, score in trial.history] == [0.1, 0.2]


SCHEDULERS = {
    "hyperband": lambda: HyperBand(12, reduction_factor=2),
    "pbt": lambda: PBT(3),
    "pbt synch": lambda: PBT(3, synch=True),
}


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_disk_refuses_every_trial_comes_to_its_end(name: str, share: float, seed: int) -> None:
    """Also with a tuner that dies now and then. At most 400 steps a trial: nothing goes round in circles."""
    rng = np.random.default_rng(seed)
    make_scheduler: Any = SCHEDULERS[name]
    population = Population(
        Climber,
        {"lr": loguniform(1e-4, 1.0)},
        make_scheduler,
        num_samples=6,
        slots=[1, 2, 6][seed],
        order=seed,
        stop={"step": 12},
        refuse=lambda number, step: bool(rng.random() < share),
    )
    for kill_after in [*(int(n) for n in rng.integers(20, 200, size=3)), 6 * 400 * 3]:
        try:
            population.run(kill_after)
            break
        except Killed:
            population.restored()
    else:
        raise AssertionError("it goes round in circles")
    for trial in population.trials:
        assert trial.state.has_ended and trial.state is not TrialState.FAILED and trial.failures == 0
        assert trial.state is TrialState.STOPPED or trial.progress == 12
        assert has_its_lineage(trial)
    assert any(trial.state is TrialState.COMPLETE for trial in population.trials)
    assert share == 1.0 or population.copies or "pbt" not in name


def test_together_one_that_could_not_be_saved_keeps_nobody_from_copying() -> None:
    def play(**settings: Any) -> Population:
        scheduler: Any = SCHEDULERS["pbt synch"]
        space = {"lr": loguniform(1e-4, 1.0)}
        return Population(Climber, space, scheduler, num_samples=8, slots=8, stop={"step": 12}, **settings).run()

    copies = [copy for copy in play().copies if "_step_3" in copy[2]]
    assert len(copies) == 2
    middle = next(n for n in range(8) if n not in [number for copy in copies for number in copy[:2]])
    refused = play(refuse=lambda number, step: (number, step) == (middle, 3))
    assert [copy for copy in refused.copies if "_step_3" in copy[2]] == copies
    assert refused.trials[middle].notes["not_saved"].startswith("not saved at report 3")


# ---------------------------------------------------------------- with real trials


class Refusing:
    """`save` raises at the steps in `refused`; a line per step; it crashes once, in its fifth."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.steps, self.notes = config, 0, Path(config["notes"])

    def step(self) -> dict[str, Any]:
        self.steps += 1
        with self.notes.open("a") as file:
            file.write(f"{self.steps}\n")
        if self.steps == 5 and len(lines(self.notes)) == 5:
            raise ValueError("and then it crashed")
        return {"x": self.steps}

    def save(self) -> dict[str, Any]:
        if self.steps in self.config["refused"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return {"steps": self.steps}

    def load(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def test_a_save_that_raises_costs_no_retry_and_leaves_the_checkpoint_before_it(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"notes": str(tmp_path / "notes"), "refused": [3, 4]}
    settings = {"stop": {"step": 6}, "checkpoint_period": 1, "progress": True}
    (only,) = run(Refusing, config, tmp_path, **settings).trials
    assert lines(tmp_path / "notes") == ["1", "2", "3", "4", "5", "3", "4", "5", "6"]
    assert (only.state, only.step, only.failures) == (TrialState.COMPLETE, 6, 1)
    assert [score for _, score in only.history] == [1, 2, 3, 4, 5, 6]
    where = tmp_path / "e" / "trials" / "00000" / "checkpoints"
    told = [line for line in capsys.readouterr().err.splitlines() if "could not be saved" in line]
    assert len(told) == 1, told
    assert "trial 0 could not be saved at its report 3 and goes on; its checkpoint of report 2 stays" in told[0]
    assert f"{where}: OSError: [Errno 28] No space left on device" in told[0]
    assert "test_failed_saves.py" in (tmp_path / "e" / "log.txt").read_text()  # where it was raised


def test_what_could_not_be_saved_is_in_the_results_and_shown(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"notes": os.devnull, "refused": tune.grid([[], [2, 3]])}
    analysis = run(Refusing, config, tmp_path, stop={"step": 3}, checkpoint_period=1)
    assert states(analysis) == ["complete"] * 2 and [trial.failures for trial in analysis.trials] == [0, 0]
    where = tmp_path / "e" / "trials" / "00001" / "checkpoints"
    told = f"not saved at report 2 in {where}: OSError: [Errno 28] No space left on device"
    assert list(analysis.dataframe()["error"]) == ["", told]
    assert told in (tmp_path / "e" / "results.csv").read_text()
    assert cli.main(["tune", "show", str(tmp_path / "e"), "--no-pictures"]) == 0
    assert f"1 could not always be saved, the last one trial 1: {told}" in capsys.readouterr().out


class Large:
    """Its state is 100 kB. From step 3 to 5 no file may be larger than 10 kB: as on a full disk, a part is written."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.weights = np.zeros(12_500)

    def step(self) -> dict[str, Any]:
        self.weights += 1
        step = int(self.weights[0])
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = 10_000 if 3 <= step <= 5 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        return {"x": step}

    def save(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"].copy()


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_a_full_disk_leaves_no_half_of_a_checkpoint_and_once_there_is_room_the_next_is_written(
    cluster: None, num_seeds: int, tmp_path: Path
) -> None:
    settings = {
        "checkpoint_period": 1,
        "seeds_per_trial": num_seeds,
        "scheduler": StopsAt(5),
        "stop": {"step": 9},
    }
    full = run(Large, {}, tmp_path, **settings).trials[0]
    where = tmp_path / "e" / "trials" / "00000" / "checkpoints"
    assert (full.state, full.failures, full.checkpoint) == (
        TrialState.STOPPED,
        0,
        CheckpointMark(2, "step_2", 2.0),
    )
    assert sorted(path.name for path in where.iterdir() if path.is_dir()) == ["step_1", "step_2"]
    assert "[Errno 27] File too large" in full.notes["not_saved"]
    settings |= {"scheduler": "fifo", "out": tmp_path / "f"}
    freed = run(Large, {}, tmp_path, **settings).trials[0]
    assert (freed.state, freed.failures, freed.checkpoint) == (
        TrialState.COMPLETE,
        0,
        CheckpointMark(9, "step_9", 9.0),
    )


class StopsAt(FIFO):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def judge(self, trial: Trial) -> Verdict:
        return Stop("enough") if trial.step == self.step else Continue()


def test_an_algorithm_that_cannot_be_saved_trains_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    save_to = RunDirectory.save_to

    def full(self: RunDirectory, *args: Any, **kwargs: Any) -> Path:
        if self.last is not None and self.last.env_steps > 300:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save_to(self, *args, **kwargs)

    monkeypatch.setattr(RunDirectory, "save_to", full)
    rlplat.init(num_cpus=1, num_gpus=0, backend="inproc")
    try:
        settings = {"metric": "episode_return_mean", "stop": {"env_steps": 640}, "checkpoint_period": 1}
        space = {name: value for name, value in SMALL.items() if name != "stop"}
        (only,) = run("ppo", space, tmp_path, **settings).trials
    finally:
        rlplat.shutdown()
    assert (only.state, only.failures) == (TrialState.COMPLETE, 0) and only.progress >= 640
    assert only.checkpoint is not None and only.checkpoint.step == 2
    assert (tmp_path / "e" / "trials" / "00000" / "checkpoints" / only.checkpoint.name).is_dir()
    assert "No space left on device" in only.notes["not_saved"]
