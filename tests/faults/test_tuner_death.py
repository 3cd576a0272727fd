"""The tuner dies by kill -9, its hosts do, the disk fills up: the experiment continues, and doubles nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest

pytest.importorskip("optuna", reason="needs the extra 'tune'")

from rlplat.rl.run.run_directory import is_running
from rlplat.tune.directory import take_back
from rlplat.tune.study import Study
from rlplat.tune.trial import TrialState
from tests.faults.tuner_program import HELD_AT, NUM_STEPS
from tests.forks import Door, Program
from tests.patience import soon
from tests.tune.postgres import PASSWORD, PostgresServer, postgres_server

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
SLACK = 4
"""Steps that may run again: up to two since the last checkpoint, the one of the checkpoint, one that was under way."""


class Life:
    """One experiment, and all the lives of its tuner."""

    door: ClassVar[Door]
    """Some fifty lives begin in this file."""

    def __init__(self, directory: Path, **orders: Any) -> None:
        self.directory, self.orders = directory, orders
        self.deaths = 0
        directory.mkdir(exist_ok=True)

    def run(self, **orders: Any) -> list[list[Any]] | None:
        """To its end, or None when it was killed before."""
        return self.told(self.start(**orders))

    def start(self, **orders: Any) -> Program:
        return self.door.start("tests.faults.tuner_program", [str(self.directory), json.dumps(self.orders | orders)])

    def told(self, tuner: Program) -> list[list[Any]] | None:
        out, errors = tuner.communicate()
        if tuner.returncode == -signal.SIGKILL:
            self.deaths += 1
            return None
        assert tuner.returncode == 0, out + errors
        trials: list[list[Any]] = json.loads(out.splitlines()[-1])
        return trials

    def refusal(self, tuner: Program) -> str:
        """The last line of what a tuner said that gave up."""
        out, errors = tuner.communicate()
        assert tuner.returncode == 1, out + errors
        self.deaths += 1
        return errors.splitlines()[-1]

    def has_come_to(self, num_steps: int) -> Callable[[], bool]:
        return lambda: sum(word == "step" for word, *_ in self.story()) >= num_steps

    def hold(self, number: int = 0, steps: int = HELD_AT) -> None:
        """Every trial from that number on waits when it has made so many steps."""
        draft = self.directory / "hold.draft"
        draft.write_text(f"{number} {steps}")
        draft.rename(self.directory / "hold")

    def let_go(self) -> None:
        (self.directory / "hold").unlink()

    def has_made(self, number: int, steps: int) -> Callable[[], bool]:
        return lambda: any(
            word == "step" and rest == [str(number), rest[1], str(steps)] for word, *rest in self.story()
        )

    def begins(self, number: int) -> list[int]:
        """The processes in which a trial began."""
        return [int(line[2]) for line in self.story() if line[:2] == ["begin", str(number)]]

    @property
    def journal(self) -> Path:
        return self.directory / "experiment" / "study.journal"

    def story(self) -> list[list[str]]:
        path = self.directory / "story"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def results(self) -> Counter[tuple[int, int]]:
        lines = (self.directory / "experiment" / "results.jsonl").read_text().splitlines()
        return Counter((line["trial"], line["step"]) for line in map(json.loads, lines))

    def check(self, trials: list[list[Any]]) -> None:
        """What holds after any number of deaths."""
        assert self.results() == {(number, step): 1 for number, _, steps, *_ in trials for step in range(1, steps + 1)}
        furthest: Counter[str] = Counter()
        ends: Counter[str] = Counter()
        at_work: dict[str, str] = {}
        for word, number, *rest in self.story():
            if word == "end":
                ends[number] += 1
                continue
            process, step = rest[0], int(rest[1])
            if word == "begin":
                assert step >= furthest[number] - SLACK, f"trial {number} lost checkpointed work"
                assert step <= furthest[number]
                at_work[number] = process
            else:
                assert process == at_work[number], f"two processes ran trial {number} at once"
                furthest[number] = max(furthest[number], step)
        for number, state, steps, *_ in trials:
            assert furthest[str(number)] >= steps
            assert state != "complete" or ends[str(number)] >= 1
        again = sum(ends.values()) - len(ends)
        assert again <= 2 * self.deaths  # only what had ended in the last moment, and was not recorded


@pytest.fixture(scope="module", autouse=True)
def door() -> Iterator[None]:
    with Door("rlplat.tune.run_experiment", "rlplat.tune.tuner", "rlplat.runtime.api", "safetensors") as Life.door:
        yield


@pytest.fixture(scope="module")
def uninterrupted(door: None, tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    trials = Life(tmp_path_factory.mktemp("uninterrupted")).run(backend="inproc")
    assert trials is not None
    assert [trial[1:3] for trial in trials] == [["complete", NUM_STEPS]] * 8
    return trials


def deaths_at_random(directory: Path, num_deaths: int, seed: int, **orders: Any) -> list[list[Any]]:
    life, chance = Life(directory, **orders), random.Random(seed)
    trials = None
    while trials is None:
        fuse = {"kill_after_s": chance.uniform(0.05, 1.0)} if life.deaths < num_deaths else {}
        trials = life.run(**fuse)
    assert life.deaths, "it was over before the first death"
    life.check(trials)
    return trials


def test_a_tuner_that_is_killed_again_and_again_runs_every_trial_once(
    tmp_path: Path, uninterrupted: list[list[Any]]
) -> None:
    assert deaths_at_random(tmp_path, 5, seed=1, step_s=0.1) == uninterrupted


POINTS = [
    ("before rlplat.tune.study:Study.report", 1),
    ("after rlplat.tune.directory:ExperimentDirectory.record", 1),
    ("after rlplat.tune.directory:ExperimentDirectory.flush", 1),
    ("before rlplat.tune.study:Study.sync", 2),
    ("before rlplat.tune.study:Study.create", 1),
    ("after rlplat.tune.study:Study.create", 2),
    ("before rlplat.tune.study:Study.report", 3),
    ("after rlplat.tune.study:Study.report", 4),
    ("before rlplat.tune.trials.host:TrialHost.save", 2),
    ("after rlplat.tune.trials.host:TrialHost.save", 2),
    ("before rlplat.tune.study:Study.note", 3),
    ("after rlplat.tune.study:Study.note", 3),
    ("before rlplat.tune.directory:ExperimentDirectory.flush", 5),
    ("after rlplat.tune.directory:ExperimentDirectory.flush", 5),
    ("before rlplat.tune.journal:Journal.flush", 4),
    ("after rlplat.tune.journal:Journal.flush", 5),
    ("before rlplat.tune.study:Study.end", 1),
    ("after rlplat.tune.study:Study._finish", 1),
    ("after rlplat.tune.directory:ExperimentDirectory.end", 1),
    ("after rlplat.tune.directory:ExperimentDirectory.reconcile", 1),
    ("after rlplat.tune.experiment:Experiment.restore", 1),
]


def test_a_tuner_that_dies_at_any_named_point_runs_every_trial_once(
    tmp_path: Path, uninterrupted: list[list[Any]]
) -> None:
    life = Life(tmp_path, backend="inproc")
    for point, count in POINTS:
        assert life.run(kill_at=[point, count]) is None, f"the experiment was over before {point}, call {count}"
    trials = life.run()
    assert trials is not None
    life.check(trials)
    assert trials == uninterrupted


@pytest.mark.parametrize(
    "settings",
    [
        {"searcher": "tpe", "num_samples": 14},
        {"scheduler": {"name": "asha", "reduction_factor": 3, "max_progress": 9}},
        {"scheduler": {"name": "hyperband", "max_progress": 9}},
        {"scheduler": {"name": "pbt", "synch": True, "perturbation_period": 3, "mutations": ["alpha"]}},
    ],
    ids=["tpe", "asha", "hyperband", "pbt"],
)
def test_searchers_and_trial_schedulers_go_on_where_they_were(settings: dict[str, Any], tmp_path: Path) -> None:
    """One trial at a time, so that the outcome depends on nothing but the order of the reports."""
    orders = {
        "settings": {"max_concurrent": 1, **settings},
        "backend": "inproc",
        "checkpoint_period": 1,
        "step_s": 0.03,
    }
    undisturbed = Life(tmp_path / "undisturbed", **orders).run()
    assert undisturbed is not None
    if "scheduler" in settings and settings["scheduler"]["name"] != "pbt":
        assert {state for _, state, *_ in undisturbed} == {"complete", "stopped"}
    assert deaths_at_random(tmp_path / "disturbed", 2, seed=5, **orders) == undisturbed


# ---------------------------------------------------------------- not the tuner's own death


def test_hosts_that_are_killed_are_replaced_and_others_go_on(tmp_path: Path, uninterrupted: list[list[Any]]) -> None:
    life = Life(tmp_path, settings={"max_failures": 6})
    life.hold(0, 2)
    tuner = life.start()
    for number, steps in ((0, 2), (2, 5), (4, 7), (7, 3)):
        life.hold(number, steps)
        assert soon(life.has_made(number, steps))
        begun = life.begins(number)
        os.kill(begun[-1], signal.SIGKILL)
        assert soon(lambda number=number, begun=begun: len(life.begins(number)) > len(begun))  # type: ignore[misc]
    life.let_go()
    life.deaths = 4  # of hosts: what was under way there is done again
    trials = life.told(tuner)
    assert trials == uninterrupted
    life.check(trials)
    assert [trial.failures for trial in Study.read(life.journal)] == [1, 0, 1, 0, 1, 0, 0, 1]


def test_a_full_disk_ends_it_with_one_message_and_it_goes_on_later(
    tmp_path: Path, uninterrupted: list[list[Any]]
) -> None:
    """A limit on the size of the tuner's files: like a full disk it takes a part and refuses the rest."""
    life = Life(tmp_path)
    message = life.refusal(life.start(largest_file=6000))
    assert f"{life.journal} cannot be written: File too large" in message and "--resume" in message
    recorded = Study.read(life.journal)  # whole lines
    assert recorded and life.journal.read_bytes().endswith(b"\n")
    trials = life.run()
    assert trials == uninterrupted
    life.check(trials)


def test_a_directory_that_is_removed_ends_it_with_one_message(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.hold()
    tuner = life.start()
    assert soon(life.has_come_to(2 * HELD_AT))
    shutil.rmtree(tmp_path / "experiment", ignore_errors=True)
    life.let_go()
    assert f"{life.journal} was removed while the experiment was going" in life.refusal(tuner)


def test_results_whose_study_is_gone_are_not_dropped(tmp_path: Path) -> None:
    life = Life(tmp_path, backend="inproc", settings={"num_samples": 2})
    assert life.run() is not None
    results = life.results()
    life.journal.unlink()
    message = life.refusal(life.start())
    assert "has results of an experiment" in message and f"{life.journal} holds no" in message
    assert life.results() == results


def test_a_second_tuner_is_refused_and_disturbs_nothing(tmp_path: Path, uninterrupted: list[list[Any]]) -> None:
    gate = tmp_path / "gate"
    life = Life(tmp_path, gate=str(gate))
    tuner = life.start()
    assert soon(life.has_come_to(8), 60)  # two trials wait at the gate
    assert "is still running" in Life(tmp_path).refusal(life.start())
    assert is_running(tmp_path / "experiment")
    take_back(tmp_path / "experiment")  # what a refused command does; not where another one is at it
    gate.touch()
    trials = life.told(tuner)
    assert trials == uninterrupted
    life.check(trials)


# ---------------------------------------------------------------- in a database


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def test_a_tuner_with_a_database_is_killed_and_its_server_starts_anew(
    server: PostgresServer, tmp_path: Path, uninterrupted: list[list[Any]]
) -> None:
    life = Life(tmp_path, step_s=0.05, settings={"storage": server.url, "name": "demo"})
    for number, steps in ((0, 4), (2, 6)):
        life.hold(number, steps)
        tuner = life.start()
        assert soon(life.has_made(number, steps))
        tuner.kill()
        assert life.told(tuner) is None
    life.hold(7)  # so that it is not over before the server is
    tuner = life.start()
    assert soon(life.has_come_to(45))
    server.stop()
    server.start()
    life.let_go()
    trials = life.told(tuner)
    assert trials == uninterrupted
    life.check(trials)
    assert [trial.state for trial in Study.read(server.url, "demo")] == [TrialState.COMPLETE] * 8

    for path in (tmp_path / "experiment").rglob("*"):
        assert path.is_dir() or PASSWORD.encode() not in path.read_bytes(), f"{path} tells the password"
        assert path.is_dir() or quote(PASSWORD, safe="").encode() not in path.read_bytes()
    assert "sesame" not in server.ask("SELECT string_agg(value_json, '') FROM study_user_attributes")
    elsewhere = Life(tmp_path / "elsewhere", settings=life.orders["settings"])
    message = elsewhere.refusal(elsewhere.start())
    assert "there is an experiment 'demo' in postgresql://tuner@127.0.0.1" in message and "another name" in message
