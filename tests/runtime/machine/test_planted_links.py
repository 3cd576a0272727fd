"""Names in a shared temporary directory are anybody's choice: nothing is done through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlplat.processes import start_time
from rlplat.runtime.machine import session, worker_logs
from rlplat.runtime.machine.session import SPILL_LINK

_DEAD = "rlplat-4194304-1"
"""Pids end before this one."""


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /tmp."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.delenv("RLPLAT_LOG_DIR")
    return folder


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of the user whose name begins like one of ours."""
    folder = tmp_path / "home" / "rlplat-clone"
    folder.mkdir(parents=True)
    (folder / "work").write_text("of months")
    return folder


def age(path: Path) -> None:
    os.utime(path, (1, 1), follow_symlinks=False)


def test_a_session_s_spill_link_leads_to_a_folder_of_that_session_only(shared: Path, precious: Path) -> None:
    old = shared / f"{_DEAD}-abc"
    old.mkdir()
    (old / SPILL_LINK).symlink_to(precious)
    session.remove_session(str(old))
    assert not old.exists()
    assert (precious / "work").exists()


def test_what_a_dead_session_spilled_goes_with_it(shared: Path) -> None:
    old, spilled = shared / f"{_DEAD}-abc", shared / f"{_DEAD}-xyz"
    old.mkdir()
    spilled.mkdir()
    (spilled / "s-w1-1").touch()
    (old / SPILL_LINK).symlink_to(spilled)
    age(old)
    session.remove_dead_sessions(str(shared))
    assert not old.exists() and not spilled.exists()


def test_a_link_is_no_dead_session(shared: Path, precious: Path, tmp_path: Path) -> None:
    planted = tmp_path / "home" / f"{_DEAD}-planted"
    planted.mkdir()
    (planted / SPILL_LINK).symlink_to(precious)
    age(planted)
    link = shared / f"{_DEAD}-link"
    link.symlink_to(planted)
    age(link)
    session.remove_dead_sessions(str(shared))
    session.remove_session(str(link))
    assert planted.exists()
    assert (precious / "work").exists()


def test_a_link_is_no_running_session(shared: Path, tmp_path: Path) -> None:
    name = f"rlplat-{os.getpid()}-{start_time(os.getpid())}"
    real = tmp_path / "home"
    real.mkdir()
    (real / "node").touch()
    (shared / f"{name}-link").symlink_to(real)
    assert str(shared / f"{name}-link") not in session.running_sessions()
    (shared / f"{name}-real").mkdir()
    (shared / f"{name}-real" / "node").touch()
    assert str(shared / f"{name}-real") in session.running_sessions()


def test_logs_are_not_written_through_a_link(shared: Path, tmp_path: Path) -> None:
    real = tmp_path / "home"
    for number in range(worker_logs.KEPT_SESSIONS + 1):
        (real / f"{_DEAD}-{number}").mkdir(parents=True)
    before = sorted(real.iterdir())
    (shared / f"rlplat-{os.getuid()}").symlink_to(real)
    folder = worker_logs.make_session_folder("rlplat-1-1-new", None)
    assert sorted(real.iterdir()) == before
    assert folder.resolve().is_relative_to(shared.resolve())
    assert folder.parent.stat().st_mode & 0o077 == 0


def test_a_log_file_is_not_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "w1.log").symlink_to(tmp_path / "precious")
    log = worker_logs.LogFile(str(tmp_path / "w1.log"))
    log.write(b"line\n")
    assert (tmp_path / "precious").read_text() == "mine"
    assert log.num_lost_bytes == 5


def test_a_log_folder_that_the_user_names_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "logs").symlink_to(tmp_path / "disk")
    assert worker_logs.make_session_folder("rlplat-1-1-new", str(tmp_path / "logs")).exists()
