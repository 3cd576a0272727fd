"""The study in a PostgreSQL database: a real server, started here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("optuna", reason="needs the extra 'tune'")
pytest.importorskip("psycopg2", reason="needs the extra 'postgres'")

import optuna

from rlplat.errors import ConfigError, MissingExtra
from rlplat.rl.run.interruption import Interrupted, Interruption
from rlplat.tune import database
from rlplat.tune.address import shown
from rlplat.tune.study import Study
from rlplat.tune.trial import TrialState
from tests.patience import soon
from tests.tune.postgres import PASSWORD, PostgresServer, postgres_server
from tests.tune.studies import SCENARIOS, Scenario, as_optuna_sees, begin, checkpoint, report, run_trial


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """For a test that stops it."""
    with postgres_server() as server:
        yield server


@pytest.mark.process
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_trial_comes_back_as_it_was(scenario: Scenario, server: PostgresServer) -> None:
    name = scenario.__name__
    study = Study.open(server.url, name, ["max"], resume=False)
    trials = scenario(study)
    study.close()
    assert Study.read(server.url, name) == trials
    again = Study.open(server.url, name, ["max"], resume=True)
    assert again.load() == trials
    for trial in trials:
        if not trial.state.has_ended:
            report(again, trial, 7.0, trial.progress + 0.5)
            trial.state = TrialState.COMPLETE
            again.end(trial)
    assert again.load() == trials
    again.name_metrics(["score"])
    seen = as_optuna_sees(again)
    assert "RUNNING" not in [trial.state.name for trial in seen.trials] and seen.metric_names == ["score"]
    again.close()
    assert again.load() == trials


def test_optuna_sees_an_ordinary_study(server: PostgresServer) -> None:
    study = Study.open(server.url, "seen", ["max"], resume=False)
    study.settle({"seed": 1, "space": {"alpha": {"uniform": [0, 1]}}, "num_samples": 4})
    for number, state in enumerate((TrialState.COMPLETE, TrialState.STOPPED, TrialState.FAILED)):
        run_trial(study, number, state)
    running = begin(study, 3)
    for value in (float("inf"), float("-inf"), float("nan"), 0.1 + 0.2):
        report(study, running, value)
    study.sync()
    theirs = optuna.load_study(study_name="seen", storage=f"postgresql+psycopg2{server.url[len('postgresql') :]}")
    seen = theirs.trials
    assert [trial.number for trial in seen] == [0, 1, 2, 3]
    assert [trial.state.name for trial in seen] == ["COMPLETE", "PRUNED", "FAIL", "RUNNING"]
    assert [trial.value for trial in seen] == [0.0, 1.0, None, None]
    assert seen[1].params == {"alpha": 0.1, "layers": 2} and seen[1].intermediate_values == {
        1: 0.0,
        2: 0.5,
        3: 1.0,
    }
    assert str(seen[3].intermediate_values) == "{1: inf, 2: -inf, 3: nan, 4: 0.30000000000000004}"
    assert theirs.user_attrs["space"] == {"alpha": {"uniform": [0, 1]}}
    duration = seen[1].datetime_complete - seen[1].datetime_start
    assert 0 <= duration.total_seconds() < 60
    assert abs(seen[3].datetime_start.timestamp() - time.time()) < 60
    theirs._storage.remove_session()
    theirs._storage._backend.engine.dispose()  # type: ignore[attr-defined]
    study.close()


def test_several_experiments_share_a_database(server: PostgresServer) -> None:
    first = Study.open(server.url, "first", ["max"], resume=False)
    second = Study.open(server.socket_url, "second", ["min"], resume=False)
    for number in range(3):
        run_trial(first, number)
        run_trial(second, number)
    first.close()
    second.close()
    assert [trial.number for trial in Study.read(server.url, "second")] == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"holds .*'first'.*not 'third'"):
        Study.read(server.url, "third")
    with pytest.raises(ConfigError, match="name one"):
        Study.read(server.url)
    with pytest.raises(ConfigError, match=r"there is an experiment 'first' in postgresql://tuner@127.*--resume"):
        Study.open(server.url, "first", ["max"], resume=False)
    with pytest.raises(ConfigError, match="mode was max and is min now"):
        Study.open(server.url, "first", ["min"], resume=True)


def test_an_experiment_that_was_refused_before_its_first_report_is_not_there(server: PostgresServer) -> None:
    study = Study.open(server.url, "refused", ["max"], resume=False)
    study.settle({"seed": 1})
    begin(study, 0)
    study.close()
    study = Study.open(server.url, "refused", ["min"], resume=False)
    assert study.settings == {} and study.load() == []
    run_trial(study, 0)
    study.close()
    with pytest.raises(ConfigError, match="there is an experiment 'refused'"):
        Study.open(server.url, "refused", ["min"], resume=False)


def test_a_second_tuner_is_told_who_has_it(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_LOCK_GRACE_S", 0.1)
    study = Study.open(server.url, "held", ["max"], resume=False)
    with pytest.raises(ConfigError, match=rf"'held' in .* is still running: rlplat tune \(pid {os.getpid()} on"):
        Study.open(server.url, "held", ["max"], resume=True)
    study.close()
    Study.open(server.url, "held", ["max"], resume=True).close()


WRITER = """
import sys
from rlplat.tune import database
from rlplat.tune.study import Study
from tests.tune.studies import begin, report

database._LOCK_GRACE_S = 60  # the server may take its time to see that the one before is dead
study = Study.open(sys.argv[1], "killed", ["max"], resume=True)
trials = study.load() or [begin(study, number) for number in range(3)]
while True:
    for trial in trials:
        report(study, trial, trial.step + 0.5)
    study.sync()
    print(trials[0].step, flush=True)
"""


@pytest.mark.process
def test_what_was_confirmed_survives_kill_9(server: PostgresServer) -> None:
    for round_ in range(3):
        command = [sys.executable, "-c", WRITER, server.url]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout
        lines = [writer.stdout.readline() for _ in range(5 + 7 * round_)]
        writer.kill()
        rest, _ = writer.communicate()
        confirmed = int([*lines, *rest.splitlines(keepends=True)][-1])
        trials = Study.read(server.url, "killed")
        steps = {trial.step for trial in trials}
        assert len(trials) == 3 and steps <= {confirmed, confirmed + 1}
        for trial in trials:
            assert trial.history == [(step, step - 0.5) for step in range(1, trial.step + 1)]


@pytest.mark.process
def test_a_server_that_starts_anew_is_waited_for_and_nothing_is_lost(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    study = Study.open(own_server.url, "demo", ["max"], resume=False, say=said.append)
    trial = begin(study, 0)
    for restarts, how in enumerate((signal.SIGINT, signal.SIGQUIT)):  # it ends connections; it crashes
        report(study, trial, 0.5)
        study.sync()
        own_server.stop(how)

        def write(number: int = 2 * restarts + 1) -> None:
            checkpoint(study, trial)
            report(study, trial, 0.75)
            begin(study, number)

        waiting = threading.Thread(target=write)
        waiting.start()
        assert soon(lambda restarts=restarts: len(said) == restarts + 1)  # type: ignore[misc]
        assert waiting.is_alive()
        own_server.start()
        waiting.join()
        run_trial(study, 2 * restarts + 2)
        assert len(as_optuna_sees(study).trials) == 2 * restarts + 3
    assert len(said) == 2
    for message in said:
        assert message.startswith("waiting for the storage, 60 s at most: ") and f":{own_server.port}" in message
        assert PASSWORD not in message
    trial.last = {}
    assert Study.read(own_server.url, "demo")[0] == trial

    monkeypatch.setattr(database, "PATIENCE_S", 0.3)
    own_server.stop()  # and stays away
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{own_server.port}.*waited for 0.3 s.*--resume"):
        begin(study, 5)
    own_server.start()
    begin(study, 5)  # it is back
    study.close()
    assert len(Study.read(own_server.url, "demo")) == 6


def test_a_server_that_cannot_be_reached_is_named(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CONNECT_S", 2)

    def refusal(url: str) -> str:
        began = time.monotonic()
        with pytest.raises(ConfigError) as caught:
            Study.open(url, "demo", ["max"], resume=False)
        assert time.monotonic() - began < 30  # a limit, not a speed: without it a silent server is waited for minutes
        assert "sesame" not in str(caught.value)
        with pytest.raises(ConfigError):
            Study.read(url, "demo")
        return str(caught.value)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        text = refusal(f"postgresql://tuner:sesame@127.0.0.1:{port}/db")
        assert f"PostgreSQL at 127.0.0.1:{port}, database 'db'" in text and "refused" in text
        probe.listen()  # somebody who never answers
        text = refusal(f"postgresql://tuner:sesame@127.0.0.1:{port}/db")
        assert f"127.0.0.1:{port}" in text and "timeout" in text
    text = refusal(server.url.replace("open%20", "sesame%20"))
    assert "password authentication failed" in text and "PGPASSWORD" in text
    assert "PGPASSWORD" in refusal(server.url_without_password)
    assert 'database "nowhere" does not exist' in refusal(server.url.replace("/postgres", "/nowhere"))


def test_storages_that_are_not_there_name_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"storage sqlite:///x.db: SQLite locks .* omit storage .* postgresql://"):
        Study.open("sqlite:///x.db", "demo", ["max"], resume=False)
    with pytest.raises(ConfigError, match="storage mysql://root@localhost/x: use postgresql://user@host/database"):
        Study.open("mysql://root@localhost/x", "demo", ["max"], resume=False)
    with pytest.raises(ConfigError, match=r"@host:port:x/db\?bad=1 is no PostgreSQL address") as caught:
        Study.open("postgresql://me:sesame@host:port:x/db?bad=1", "demo", ["max"], resume=False)
    assert "sesame" not in str(caught.value)
    assert shown("postgresql://me:a:b@c@host:1/db") == "postgresql://me@host:1/db"
    assert shown("postgresql://me@host/db?password=a&port=1") == "postgresql://me@host/db?port=1"
    assert shown("postgresql://me@host/db?password=a") == "postgresql://me@host/db"


@pytest.mark.process
def test_without_the_driver_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['psycopg2'] = None\n"
        "from rlplat.tune.study import Study\n"
        "Study.open('postgresql://me@host/db', 'demo', ['max'], resume=False)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert str(MissingExtra("psycopg2-binary", "postgres", "--storage postgresql://...")) in done.stderr


def test_a_signal_ends_the_wait_for_a_server() -> None:
    server = object.__new__(database.Server)
    server._say = lambda text: None

    def refuse() -> None:
        interruption.signal_number = signal.SIGTERM
        raise ConfigError("the server is away")

    with (
        Interruption(print) as interruption,
        interruption.deferred(),
        pytest.raises(Interrupted, match="SIGTERM"),
    ):
        server.patiently(refuse)
