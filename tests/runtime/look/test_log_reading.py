"""Reading what the node wrote of workers' output: last lines, lines as they come, rotation, ended clusters."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlplat.errors import ConfigError
from rlplat.runtime.look.log_reading import choose, find_logs, follow, worker_logs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLPLAT_LOG_DIR", str(tmp_path))
    folder = tmp_path / "rlplat-4711-99-abc" / "logs"
    folder.mkdir(parents=True)
    (folder / "w2.log").write_text("# w2 pid=12 started=1\none\ntwo\n")
    (folder / "w10.log").write_text("# w10 pid=20 started=1\n# Actor Learner\nthree\nfour")
    return folder


def test_who_printed(folder: Path) -> None:
    logs = worker_logs(folder)
    assert [(log.worker, log.pid, log.actor) for log in logs] == [("w2", 12, ""), ("w10", 20, "Learner")]
    for name in ("Learner", "w10", "20"):
        assert choose(logs, name) == [logs[1]]
    assert choose(logs, "all") == logs
    with pytest.raises(ConfigError, match="those that have: w2, w10 Learner"):
        choose(logs, "w3")


def test_tail_gives_whole_lines_and_goes_on_behind_them(folder: Path) -> None:
    plain, actor = worker_logs(folder)
    assert plain.tail(1) == ["two"] and plain.tail(0) == []
    assert plain.tail(100) == ["one", "two"], "what the node wrote itself is left out"
    assert actor.tail(1) == ["three"], "the line that is being written comes later"
    with open(actor.path, "a") as file:
        file.write(" and a half\nfive\nsi")
    assert actor.news() == ["four and a half", "five"]
    assert actor.news() == []


def test_many_lines_are_read_from_the_end(folder: Path) -> None:
    (folder / "w2.log").write_text("".join(f"line {n} {'x' * 50}\n" for n in range(10_000)))
    assert [line.split()[1] for line in worker_logs(folder)[0].tail(3)] == ["9997", "9998", "9999"]


def test_a_file_that_is_begun_anew_loses_nothing(folder: Path) -> None:
    log = worker_logs(folder)[0]
    log.tail(1)
    with open(log.path, "a") as file:
        file.write("old\n")
    os.replace(log.path, f"{log.path}.1")
    log.path.write_text("new\n")
    assert log.news() == ["old", "new"]
    assert worker_logs(folder)[0].tail(3) == ["two", "old", "new"]


def test_following_hears_of_new_workers_and_ends_with_the_cluster(folder: Path) -> None:
    """What was written before the end is read, whenever the end is noticed."""
    logs = worker_logs(folder)
    for log in logs:
        log.tail(0)
    steps = iter(["write", "new worker", "end"])

    def is_over() -> bool:
        step = next(steps)
        if step == "write":
            with open(folder / "w2.log", "a") as file:
                file.write("hello\n")
        elif step == "new worker":
            (folder / "w11.log").write_text("# w11 pid=21 started=1\nfirst\n")
        else:
            with open(folder / "w2.log", "a") as file:
                file.write("bye\n")
        return step == "end"

    heard = [(log.worker, line) for log, line in follow(logs, lambda: worker_logs(folder), is_over)]
    assert heard == [("w2", "hello"), ("w11", "first"), ("w2", "bye")]


def test_the_logs_of_a_cluster_that_has_ended(folder: Path, tmp_path: Path) -> None:
    newer = tmp_path / "rlplat-4712-99-abc" / "logs"
    newer.mkdir(parents=True)
    os.utime(folder, (1, 1))
    assert find_logs(None) == newer
    for name in ("4711", "rlplat-4711-99-abc", "/dev/shm/rlplat-4711-99-abc/"):
        assert find_logs(name) == folder
    with pytest.raises(ConfigError, match="there are no logs of a cluster '5'"):
        find_logs("5")
