"""The journal file: whole lines, one writer, nothing confirmed is lost, and Optuna's own tools read it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="needs the extra 'tune'")

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from rlplat.errors import ConfigError
from rlplat.tune.journal import Journal
from tests.patience import soon


def log(number: int, **more: Any) -> dict[str, Any]:
    return {"op_code": 2, "worker_id": "me", "study_id": 0, "user_attr": {"n": number}, **more}


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["user_attr"]["n"] for line in path.read_bytes().splitlines()]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "study.journal")
    yield journal
    journal.close()


def test_lines_are_in_the_file_when_sync_returns_and_not_before(journal: Journal) -> None:
    journal.append_logs([log(1)])
    assert journal.path.read_bytes() == b""
    journal.append_logs([log(2)])
    journal.sync()
    assert numbers(journal.path) == [1, 2]


def test_the_disk_has_them_soon_and_at_once_when_asked(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    synced_sizes: list[int] = []
    fdatasync = os.fdatasync

    def spy(descriptor: int) -> None:
        synced_sizes.append(os.fstat(descriptor).st_size)
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", spy)
    journal.append_logs([log(1)])
    journal.sync()
    size = journal.path.stat().st_size
    assert soon(lambda: size in synced_sizes)
    journal.append_logs([log(2)])
    journal.sync(wait=True)
    assert journal.path.stat().st_size in synced_sizes


def test_a_disk_that_fails_later_is_told_by_the_next_sync(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        journal.append_logs([log(1)])
        journal.sync()

        def is_told() -> bool:
            try:
                journal.sync()
            except ConfigError as error:
                return f"{journal.path} cannot be written: Input/output error" in str(error)
            return False

        assert soon(is_told)
    journal.append_logs([log(2)])
    journal.sync()  # the disk has recovered
    journal.sync()
    assert numbers(journal.path) == [1, 2]


def test_a_torn_last_line_is_cut_off_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    whole = b"".join(json.dumps(log(n)).encode() + b"\n" for n in range(3))
    for torn in (b"{", b'{"op_code": 9, "worker_id": "x', b"\0" * 5000, b'{"op_code": 2}'):
        path.write_bytes(whole + torn)
        journal = Journal(path)
        journal.append_logs([log(3)])
        journal.close()
        assert numbers(path) == [0, 1, 2, 3]
    path.write_bytes(b'{"op_code": 0, "study')
    journal = Journal(path)
    assert journal.is_empty
    journal.close()


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    lines = [json.dumps(log(n)).encode() + b"\n" for n in range(5)]
    for damaged in (b"{]\n", b"17\n", b"{}\n", b"\xff\xfe\n", b"\n"):
        path.write_bytes(b"".join([*lines[:3], damaged, *lines[4:]]))
        journal = Journal(path)
        with pytest.raises(ConfigError, match=r"study\.journal is damaged in line 4 \(at byte \d+\)"):
            list(journal.read_logs(0))
        journal.close()


def test_a_disk_that_takes_a_half_gives_it_back_and_gets_it_later(journal: Journal) -> None:
    """A limit on the size of files makes the kernel write a part and refuse the rest, as a full disk does."""
    journal.append_logs([log(1)])
    journal.sync()
    before = journal.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        journal.append_logs([log(2, text="x" * 100)])
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"study\.journal cannot be written: File too large; .*--resume"):
                journal.sync()
            assert journal.path.read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    journal.append_logs([log(3)])
    journal.sync()
    assert numbers(journal.path) == [1, 2, 3]


def test_a_journal_that_was_removed_is_noticed(journal: Journal) -> None:
    journal.append_logs([log(1)])
    journal.sync()
    journal.path.unlink()
    journal.append_logs([log(2)])
    with pytest.raises(ConfigError, match="was removed while the experiment was going"):
        journal.sync()


def test_reading_sees_the_lines_of_others_and_those_in_memory(journal: Journal) -> None:
    journal.append_logs([log(1)])
    assert [entry["user_attr"]["n"] for entry in journal.read_logs(0)] == [1]
    with open(journal.path, "ab") as other:  # optuna-dashboard saves a note
        other.write(json.dumps(log(2)).encode() + b"\n")
    journal.append_logs([log(3)])
    assert [entry["user_attr"]["n"] for entry in journal.read_logs(0)] == [1, 2, 3]


def test_what_is_not_json_is_refused_and_leaves_no_line(journal: Journal) -> None:
    with pytest.raises(TypeError):
        journal.append_logs([log(1, bad=object())])
    journal.append_logs([log(2)])
    journal.sync()
    assert numbers(journal.path) == [2]


WRITER = """
import sys
from pathlib import Path
from rlplat.tune.journal import Journal

journal = Journal(Path(sys.argv[1]))
number = sum(1 for _ in journal.read_logs(0))
while True:
    for _ in range(number % 7 + 1):
        log = {"op_code": 2, "study_id": 0, "user_attr": {"n": number}, "text": "x" * (number % 5 * 3000)}
        journal.append_logs([log])
        number += 1
    journal.sync()
    print(number, flush=True)
"""


@pytest.mark.process
def test_what_was_confirmed_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    for round_ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout
        confirmed = 0
        for _ in range(20 + 37 * round_):
            confirmed = int(writer.stdout.readline())
        writer.kill()
        rest, _ = writer.communicate()
        confirmed = max([confirmed, *(int(line) for line in rest.splitlines()[:-1])])
        Journal(path).close()
        found = numbers(path)
        assert found == list(range(len(found)))
        assert len(found) >= confirmed


def test_optuna_reads_it_while_it_is_written(tmp_path: Path) -> None:
    from rlplat.tune.study import Study
    from tests.tune.studies import DISTRIBUTIONS, run_trial

    path = tmp_path / "study.journal"
    study = Study.open(path, "demo", ["max"], resume=False)
    for number in range(3):
        run_trial(study, number)
    study.sync()
    theirs = optuna.load_study(study_name="demo", storage=JournalStorage(JournalFileBackend(str(path))))
    assert [trial.state.name for trial in theirs.trials] == ["COMPLETE"] * 3
    assert theirs.best_trial.number == 2 and theirs.best_trial.user_attrs["config"]["alpha"] == 0.2
    assert theirs.trials[1].distributions == DISTRIBUTIONS
    run_trial(study, 3)
    study.sync()
    assert len(theirs.trials) == 4

    study.close()
