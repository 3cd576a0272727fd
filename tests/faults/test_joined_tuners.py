"""Several tuners of one study in PostgreSQL, each a process with a cluster and a directory of its own."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("optuna", reason="needs the extra 'tune'")

from rlplat import tune
from rlplat.tune.core.trial import TrialState
from rlplat.tune.search.search import Searcher, make_searcher
from rlplat.tune.space.space import Space
from rlplat.tune.storage.study import Study
from tests.faults.test_tuner_death import Life
from tests.faults.tuner_program import HELD_AT, NUM_STEPS
from tests.patience import soon
from tests.tune.postgres import PASSWORD, PostgresServer, postgres_server

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


class Joined(Life):
    """Tuners that share an experiment; each has a directory `out` and the story is one."""

    def __init__(self, directory: Path, server: PostgresServer, **orders: Any) -> None:
        settings = {"storage": server.url, "name": directory.name} | orders.pop("settings", {})
        defaults = {"join": True, "backend": "inproc", "orphan_s": 0.3, "step_s": 0.05}
        super().__init__(directory, **defaults | orders, settings=settings)
        self.server = server
        self.tuners: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Joined:
        return self

    def __exit__(self, *_: object) -> None:
        for tuner in self.tuners:
            if tuner.poll() is None:
                tuner.kill()
                tuner.communicate()

    def start(self, out: str = "a", **orders: Any) -> subprocess.Popen[str]:
        self.tuners.append(super().start(out=out, **orders))
        return self.tuners[-1]

    def go_on_with(self, num_tuners: int) -> None:
        """Once so many have trials."""
        assert soon(lambda: len(self.who_began()) == num_tuners)
        self.let_go()

    def told_by_all(self, *tuners: subprocess.Popen[str]) -> list[list[Any]]:
        """What they all say in the end: every one knows the whole study."""
        told = [self.told(tuner) for tuner in tuners]
        assert told[0] is not None and all(other == told[0] for other in told)
        assert [number for number, *_ in told[0]] == list(range(len(told[0])))
        return told[0]

    def results(self) -> Counter[tuple[int, int]]:
        """Of all directories; where a trial was taken over, its first tuner may have written what was said again."""
        found: Counter[tuple[int, int]] = Counter()
        for path in self.directory.glob("*/results.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found += Counter({(line["trial"], line["step"]) for line in lines})
        return found if not self.deaths else Counter(dict.fromkeys(found, 1))

    def who_began(self) -> set[str]:
        return {line[2] for line in self.story() if line[0] == "begin"}

    def check_study(self) -> None:
        for trial in Study.read(self.server.url, self.directory.name):
            assert trial.state in (TrialState.COMPLETE, TrialState.STOPPED)
            steps = range(1, trial.step + 1)
            assert trial.history == [(step, pytest.approx(trial.config["alpha"] * step)) for step in steps]


def alphas(num: int) -> list[float]:
    """What a lone tuner tries."""
    searcher = make_searcher(Searcher(), Space.parse({"alpha": tune.uniform(0, 1)}), seed=3, num_samples=num)
    return [suggestion.config["alpha"] for n in range(num) if (suggestion := searcher.suggest(n))]


def test_two_tuners_share_the_trials_of_one_experiment(
    tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)  # no file of an experiment has it
    with Joined(tmp_path, server, step_s=0.001, settings={"num_samples": 40}) as joined:
        joined.hold()
        tuners = [joined.start("a"), joined.start("b")]
        joined.go_on_with(2)
        trials = joined.told_by_all(*tuners)
        assert [trial[3] for trial in trials] == alphas(40)
        assert [trial[1:3] for trial in trials] == [["complete", NUM_STEPS]] * 40
        joined.check(trials)
        joined.check_study()
        assert len(joined.who_began()) == 2
        for out in ("a", "b"):
            assert len(tune.load(tmp_path / out).trials) == 40
            rows = (tmp_path / out / "results.csv").read_text().splitlines()
            assert sorted(int(row.split(",")[0]) for row in rows[1:]) == list(range(40))
        best = {(tmp_path / out / "best.yaml").read_text() for out in ("a", "b")}
        assert len(best) == 1 and f"{max(alphas(40))}" in best.pop()


def test_three_tuners_learn_and_judge_together(tmp_path: Path, server: PostgresServer) -> None:
    settings = {"num_samples": 18, "searcher": {"name": "tpe", "n_startup_trials": 5}}
    settings["scheduler"] = {"name": "asha", "reduction_factor": 3, "max_progress": 9}
    with Joined(tmp_path, server, settings=settings) as joined:
        joined.hold()
        tuners = [joined.start(out) for out in "abc"]
        joined.go_on_with(3)
        trials = joined.told_by_all(*tuners)
        joined.check(trials)
        joined.check_study()
        assert len(trials) == 18 and {trial[1] for trial in trials} == {"complete", "stopped"}
        assert len(joined.who_began()) == 3
        told = " ".join((tmp_path / out / "log.txt").read_text() for out in "abc")
        compared = max(int(num) for num in re.findall(r"of (\d+) at 1 step", told))
        own = Counter(line[2] for line in joined.story() if line[0] == "begin")
        assert compared > max(own.values()), "it was judged by its own tuner's trials only"


def test_trials_of_tuners_that_are_killed_are_taken_over(tmp_path: Path, server: PostgresServer) -> None:
    orders = {"backend": "zmq", "step_s": 0.06, "settings": {"num_samples": 12}}
    with Joined(tmp_path, server, **orders) as joined:
        joined.hold()
        survivor, victim = joined.start("a"), joined.start("b")
        for steps in (4 * HELD_AT, 60 + random.Random(4).randrange(20)):
            assert soon(joined.has_come_to(steps))
            victim.kill()
            assert joined.told(victim) is None
            victim = joined.start("b")
            joined.hold(8)  # all trials before it go on, and it is not over before the second death
        joined.let_go()
        trials = joined.told_by_all(survivor, victim)
        assert [trial[3] for trial in trials] == alphas(12)
        assert [trial[1:3] for trial in trials] == [["complete", NUM_STEPS]] * 12
        joined.check(trials)
        joined.check_study()
        told = " ".join((tmp_path / out / "log.txt").read_text() for out in "ab")
        assert "of another tuner goes on here, from its report" in told


def test_trials_of_a_machine_that_vanishes_are_taken_over(tmp_path: Path, server: PostgresServer) -> None:
    """Its process stops, and its connection stays open without a sign of life."""
    with Joined(tmp_path, server) as joined:
        joined.hold()
        survivor = joined.start("a")
        assert soon(lambda: len(joined.who_began()) == 1, 60)
        lost = joined.start("b", vanish=[str(tmp_path / "vanish"), server.port])
        assert soon(lambda: len(joined.who_began()) == 2, 60)
        (tmp_path / "vanish").touch()
        assert soon(lambda: psutil.Process(lost.pid).status() == psutil.STATUS_STOPPED)
        (tmp_path / "hold").unlink()
        joined.deaths = 1
        trials = joined.told_by_all(survivor)
        assert [trial[1:4] for trial in trials] == [["complete", NUM_STEPS, alpha] for alpha in alphas(8)]
        joined.check(trials)
        joined.check_study()
        assert "of another tuner goes on here" in (tmp_path / "a" / "log.txt").read_text()


def test_without_the_dead_tuners_directory_its_trials_begin_again(
    tmp_path: Path, server: PostgresServer
) -> None:
    with Joined(tmp_path, server) as joined:
        joined.hold()
        first = joined.start("a")
        assert soon(joined.has_come_to(HELD_AT))
        first.kill()
        joined.let_go()
        assert joined.told(first) is None
        shutil.rmtree(tmp_path / "a")
        trials = joined.told_by_all(joined.start("b"))
        assert [trial[1:4] for trial in trials] == [["complete", NUM_STEPS, alpha] for alpha in alphas(8)]
        joined.check_study()
        log = (tmp_path / "b" / "log.txt").read_text()
        assert "of another tuner goes on here, from the beginning" in log
        ends = Counter(number for word, number, *_ in joined.story() if word == "end")
        assert set(ends) == {str(number) for number in range(8)}


def test_one_that_comes_late_helps_and_one_with_another_space_is_refused(
    tmp_path: Path, server: PostgresServer
) -> None:
    with Joined(tmp_path, server, step_s=0.06, settings={"num_samples": 12}) as joined:
        joined.hold()
        first = joined.start("a")
        assert soon(joined.has_come_to(HELD_AT))
        late, other = joined.start("b"), joined.start("c", highest=2)
        assert "'config.alpha" in joined.refusal(other)
        joined.deaths = 0  # it has run nothing
        joined.go_on_with(2)
        trials = joined.told_by_all(first, late)
        assert [trial[3] for trial in trials] == alphas(12)
        joined.check(trials)
        joined.check_study()
        assert len(joined.who_began()) == 2
        assert not (tmp_path / "c").exists()


def test_a_server_that_starts_anew_costs_nobody_a_trial(tmp_path: Path) -> None:
    with postgres_server() as server, Joined(tmp_path, server, orphan_s=5.0) as joined:
        joined.hold()
        tuners = [joined.start("a"), joined.start("b")]
        assert soon(lambda: len(joined.who_began()) == 2)
        joined.hold(7)  # so that it is not over before the server is
        assert soon(joined.has_come_to(30))
        server.stop()
        server.start()
        joined.let_go()
        trials = joined.told_by_all(*tuners)
        assert [trial[3] for trial in trials] == alphas(8)
        joined.check(trials)
        joined.check_study()
