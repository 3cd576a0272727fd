"""A study with several tuners: whose a trial is, while connections come and go."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("optuna", reason="needs the extra 'tune'")
pytest.importorskip("psycopg2", reason="needs the extra 'postgres'")

from rlplat import tune
from rlplat.errors import ConfigError
from rlplat.tune.core.trial import Trial, TrialState
from rlplat.tune.joined_tuner import check_join
from rlplat.tune.settings.spec import ExperimentSpec
from rlplat.tune.storage import database, shared_study
from rlplat.tune.storage.shared_study import SharedStudy
from rlplat.tune.storage.study import Study
from tests.patience import soon
from tests.tune.postgres import PostgresServer, postgres_server
from tests.tune.studies import DISTRIBUTIONS, begin, checkpoint, new_trial, report
from tests.vanishing import deafen


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def pair(
    server: PostgresServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SharedStudy, SharedStudy]]:
    """Two tuners; who loses its connection loses its trials at once."""
    monkeypatch.setattr(shared_study, "ORPHAN_S", 0.0)
    monkeypatch.setattr(shared_study, "KEEPALIVE", (1, 1, 1))
    name = request.node.name
    one, two = (SharedStudy.open(server.url, name, ["max"], resume=False) for _ in range(2))
    for study in (one, two):
        with study.settling():
            study.settle({"experiment": {}})
    yield one, two
    one.close()
    two.close()


def created(study: SharedStudy, number: int) -> Trial:
    with study.turn() as is_mine:
        assert is_mine
        return begin(study, number)


def cut(server: PostgresServer, study: SharedStudy) -> None:
    """The server ends the connection; its tuner does not know yet."""
    pid = study._writer._connection.info.backend_pid
    server.ask(f"SELECT pg_terminate_backend({pid})")
    assert soon(lambda: server.ask(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}") == "0")


def orphans(study: SharedStudy, number: int) -> list[int]:
    study.others(number, [number])
    return study.others(number, [number])[1]


@pytest.mark.process
def test_others_see_what_is_reported_and_take_nothing_from_the_living(
    pair: tuple[SharedStudy, SharedStudy],
) -> None:
    one, two = pair
    trial = created(one, 0)
    report(one, trial, 0.5)
    one.sync()
    trials, left = two.others(0, [])
    assert [other.history for other in trials] == [[(1, 0.5)]] and left == []
    assert orphans(two, 0) == []
    assert two.take(0) is None
    report(one, trial, 0.7)
    one.sync()
    assert two.others(1, [0])[0][0].history == [(1, 0.5), (2, 0.7)]
    assert two.others(1, [])[0] == []


@pytest.mark.process
def test_what_was_taken_over_is_not_written_by_the_tuner_that_comes_back(
    server: PostgresServer, pair: tuple[SharedStudy, SharedStudy], request: pytest.FixtureRequest
) -> None:
    one, two = pair
    taken, kept, ended = (created(one, number) for number in range(3))
    for trial in (taken, kept, ended):
        report(one, trial, 0.5)
        checkpoint(one, trial)
    one.sync()
    cut(server, one)
    assert soon(lambda: orphans(two, 0) == [0, 1, 2])
    theirs = [two.take(0), two.take(2)]
    for trial in theirs:
        assert trial is not None and trial.history == [(1, 0.5)] and trial.checkpoint is not None
        report(two, trial, 0.6)
    two.sync()
    for trial in (taken, kept, ended):
        report(one, trial, 0.9)
    ended.state = TrialState.COMPLETE
    one.end(ended)
    one.sync()
    assert one.lost and one.let_go() == [0, 2] and not one.lost
    histories = [trial.history for trial in Study.read(server.url, request.node.name)]
    assert histories == [[(1, 0.5), (2, 0.6)], [(1, 0.5), (2, 0.9)], [(1, 0.5), (2, 0.6)]]
    assert orphans(one, 0) == []
    for trial in theirs:
        assert trial is not None
        trial.state = TrialState.COMPLETE
        two.end(trial)
    two.sync()
    assert [trial.state.has_ended for trial in one.load()] == [True, False, True]


@pytest.mark.parametrize("has_asked", [False, True], ids=["silent", "before an answer"])
def test_trials_of_a_machine_that_vanishes_are_orphans(
    pair: tuple[SharedStudy, SharedStudy], has_asked: bool
) -> None:
    """Its connection is never closed: the server must find out by itself."""
    one, two = pair
    created(one, 0)
    connection = one._writer._connection
    deafen(connection.fileno())
    if has_asked:
        text = b"SELECT 1\0"
        os.write(connection.fileno(), b"Q" + struct.pack("!I", 4 + len(text)) + text)
    assert soon(lambda: orphans(two, 0) == [0])
    assert two.take(0) is not None


def test_of_two_that_want_a_trial_one_gets_it(
    server: PostgresServer, pair: tuple[SharedStudy, SharedStudy], request: pytest.FixtureRequest
) -> None:
    one, two = pair
    third = SharedStudy.open(server.url, request.node.name, ["max"], resume=False)
    created(one, 0)
    one.close()
    assert soon(lambda: orphans(two, 0) == [0] == orphans(third, 0))
    assert [two.take(0) is None, third.take(0) is None] == [False, True]
    third.close()


@pytest.mark.process
def test_a_turn_ends_with_its_connection_and_what_was_made_in_it_is_not_there(
    server: PostgresServer, pair: tuple[SharedStudy, SharedStudy], request: pytest.FixtureRequest
) -> None:
    one, two = pair
    with one.turn() as is_mine:
        assert is_mine
        cut(server, one)
        created(two, 0)
        one.create(new_trial(0), DISTRIBUTIONS)  # before it knows
    assert one.let_go() == [0]
    with one.turn() as is_mine:
        assert is_mine
        cut(server, one)
        one.others(0, [])  # it knows
        one.create(new_trial(1), DISTRIBUTIONS)
    assert one.let_go() == [1]
    assert [trial.number for trial in Study.read(server.url, request.node.name)] == [0]
    created(one, 1)
    assert [trial.number for trial in Study.read(server.url, request.node.name)] == [0, 1]


def test_numbers_are_taken_once_and_without_holes(
    server: PostgresServer, pair: tuple[SharedStudy, SharedStudy], request: pytest.FixtureRequest
) -> None:
    def make(study: SharedStudy) -> None:
        number = 0
        while number < 60:
            with study.turn() as is_mine:
                if is_mine:
                    number += len(study.others(number, [])[0])
                    study.create(new_trial(number), DISTRIBUTIONS)
                    number += 1

    threads = [threading.Thread(target=make, args=[study]) for study in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [trial.number for trial in Study.read(server.url, request.node.name)]
    assert numbers == list(range(len(numbers))) and len(numbers) >= 60


def test_a_turn_is_one_tuners(pair: tuple[SharedStudy, SharedStudy], monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = pair
    monkeypatch.setattr(shared_study, "SETTLING_S", 0.05)
    with one.turn():
        with pytest.raises(ConfigError, match="has had its turn"), two.settling():
            pass
    with two.settling():
        pass


def test_alone_and_together_exclude_each_other(
    server: PostgresServer, pair: tuple[SharedStudy, SharedStudy],
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(database, "_LOCK_GRACE_S", 0.1)
    with pytest.raises(ConfigError, match="is still going"):
        Study.open(server.url, request.node.name, ["max"], resume=True)
    alone = Study.open(server.url, "alone", ["max"], resume=False)
    with pytest.raises(ConfigError, match="is still going"):
        SharedStudy.open(server.url, "alone", ["max"], resume=False)
    alone.close()


def test_a_study_without_a_report_is_begun_anew_once_nobody_is_at_it(
    server: PostgresServer, pair: tuple[SharedStudy, SharedStudy], request: pytest.FixtureRequest
) -> None:
    one, two = pair
    created(one, 0)
    one.close()
    third = SharedStudy.open(server.url, request.node.name, ["max"], resume=False)
    assert len(third.load()) == 1
    third.close()
    two.close()
    fourth = SharedStudy.open(server.url, request.node.name, ["max"], resume=False)
    assert fourth.load() == [] and "experiment" not in fourth.settings
    fourth.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"storage": ""}, "add --storage postgresql://user@host/database"),
        (
            {"scheduler": {"name": "hyperband", "max_progress": 9}},
            "trial scheduler hyperband pauses or copies",
        ),
        ({"scheduler": {"name": "asha", "variant": "promotion"}}, "trial scheduler asha pauses or copies"),
        ({"scheduler": {"name": "pbt", "perturbation_period": 3}}, "trial scheduler pbt pauses or copies"),
        ({"scheduler": {"name": "pb2", "perturbation_period": 3}}, "trial scheduler pb2 pauses or copies"),
    ],
    ids=["journal", "hyperband", "promotion", "pbt", "pb2"],
)
def test_what_several_tuners_cannot_do_is_refused(settings: dict[str, object], said: str) -> None:
    def trial(config, report):  # type: ignore[no-untyped-def]
        report(score=1.0)

    given = {"storage": "postgresql://nobody@127.0.0.1:1/db"} | settings
    spec = ExperimentSpec(trial, {"x": tune.uniform(0, 1)}, metric=("score",), **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=said):
        check_join(spec.checked())
