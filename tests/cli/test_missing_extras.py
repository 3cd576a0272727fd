"""What a command lacks is installed, where a script of a checkout has started it; elsewhere it is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlplat.cli import exit_codes
from rlplat.errors import ConfigError, MissingExtra

pytestmark = pytest.mark.process


def lacking(arguments: list[str]) -> int:
    try:
        raise MissingExtra("ale-py", "atari", "Pong")
    except MissingExtra as error:
        raise ConfigError("the environment cannot be made") from error


@pytest.fixture
def begun_again(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    begun: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: begun.append(words))
    monkeypatch.delenv(exit_codes._TRIED, raising=False)
    return begun


def script(folder: Path, code: int) -> str:
    path = folder / "install"
    path.write_text(f"#!/bin/sh\necho $@ >>{folder}/asked\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


def test_it_is_installed_once_and_the_command_begins_again(
    begun_again: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(exit_codes.INSTALL, script(tmp_path, 0))
    monkeypatch.setattr("sys.argv", ["rlplat", "train", "--env", "Pong"])
    exit_codes.run_and_report(lacking, [], is_program=True)
    assert (tmp_path / "asked").read_text() == "atari\n"
    assert begun_again[0][1:] == ["-m", "rlplat.cli", "train", "--env", "Pong"]
    assert "Pong needs ale-py; it is installed now, once" in capsys.readouterr().err
    assert exit_codes.run_and_report(lacking, [], is_program=True) == 2  # it is still missing
    assert len(begun_again) == 1 and (tmp_path / "asked").read_text() == "atari\n"


def test_elsewhere_and_where_that_fails_it_is_named(
    begun_again: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_codes.run_and_report(lacking, [], is_program=True) == 2
    monkeypatch.setenv(exit_codes.INSTALL, script(tmp_path, 1))
    assert exit_codes.run_and_report(lacking, [], is_program=False) == 2  # a function of a program of the user's
    assert not (tmp_path / "asked").exists()
    assert exit_codes.run_and_report(lacking, [], is_program=True) == 2
    assert (tmp_path / "asked").exists() and not begun_again
    assert "Pong needs ale-py" in capsys.readouterr().err
