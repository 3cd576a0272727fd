"""Experiments whose study was damaged: each way is named; what a crash leaves is no damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat import tune
from rlplat.cli import main
from rlplat.errors import ConfigError

Damage = Callable[[list[bytes]], list[bytes]]


def trial(config: dict[str, Any], report: Any) -> None:
    for step in range(4):
        report(x=config["a"] * step)


def resumed(path: Path) -> Any:
    return tune.run(trial, {"a": tune.grid([1, 2, 3])}, metric="x", out=path, resume=path.exists(), progress=False)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "e"
    rlplat.init(backend="inproc")
    try:
        resumed(path)
    finally:
        rlplat.shutdown()
    return path


@pytest.fixture
def place(sound: Path, tmp_path: Path, runtime: None) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "e"))


def number(lines: list[bytes], start: bytes) -> int:
    return next(index for index, line in enumerate(lines) if line.startswith(start))


DAMAGES: dict[str, tuple[Damage, str]] = {
    "cut in half": (
        lambda lines: lines[: len(lines) // 2],
        r"was cut: it has no trial \d, whose reports are in results",
    ),
    "a line cut": (lambda lines: [*lines[:6], lines[6][:20] + b"\n", *lines[7:]], "damaged in line 7"),
    "a line of zeros": (lambda lines: [*lines[:6], b"\0" * 80 + b"\n", *lines[6:]], "damaged in line 7"),
    "the first trial missing": (
        lambda lines: [line for line in lines if b'"op_code":4' not in line],
        "damaged in line",
    ),
    "a report missing": (
        lambda lines: [line for line in lines if b'"report:2"' not in line],
        "study.journal: trial 0 .* is damaged .*report:2",
    ),
    "of another Optuna": (lambda lines: [*lines, b'{"op_code":99,"worker_id":"x"}\n'], "damaged in line"),
    "other fields": (
        lambda lines: [line.replace(b'"trial_id"', b'"id"') for line in lines],
        "damaged in line",
    ),
    "of another rlplat": (
        lambda lines: [line.replace(b'"state":"complete"', b'"state":"flying"') for line in lines],
        "study.journal: trial 0 was not written by this version",
    ),
    "empty": (lambda lines: [], "study.journal"),
    "another file": (lambda lines: [b"\x89PNG\n\x1a"], "damaged in line 1"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_journal_is_named(kind: str, place: Path) -> None:
    damage, said = DAMAGES[kind]
    journal = place / "study.journal"
    journal.write_bytes(b"".join(damage(journal.read_bytes().splitlines(keepends=True))))
    with pytest.raises(ConfigError, match=said) as refused:
        resumed(place)
    assert str(place) in str(refused.value)


def test_what_is_no_file_is_named(place: Path) -> None:
    journal = place / "study.journal"
    journal.unlink()
    journal.mkdir()
    for look in (lambda: resumed(place), lambda: tune.load(place).trials):
        with pytest.raises(ConfigError, match=r"study\.journal is not a file"):
            look()


@pytest.mark.parametrize("text", ["", "metric: 3\nmode: max\n", "metric: x\nmode: [{}]\n"])
def test_settings_that_are_none_are_named(place: Path, text: str) -> None:
    (place / "experiment.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"experiment\.yaml is damaged: it has metric .* with mode"):
        tune.load(place)


@pytest.mark.parametrize("damage", [b"\xff\xfe\x00" * 99, b"a,b\n" + b'"' * 200_000, b""])
def test_what_follows_from_the_study_is_made_anew(place: Path, damage: bytes) -> None:
    whole = (place / "results.csv").read_bytes()
    for name in ("results.csv", "best.yaml"):
        (place / name).write_bytes(damage)
    assert main(["tune", "show", str(place), "--json"]) == 0
    assert len(resumed(place).trials) == 3
    assert (place / "results.csv").read_bytes() == whole


def test_a_last_line_that_was_cut_is_said_and_continued(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = place / "study.journal"
    journal.write_bytes(journal.read_bytes()[:-5])
    again = tune.run(trial, {"a": tune.grid([1, 2, 3])}, metric="x", out=place, resume=True)
    assert [one.values for one in again.trials] == [(3,), (6,), (9,)]
    assert "study.journal: its last line was not written whole" in capsys.readouterr().err


def test_lines_of_results_that_are_none_are_passed_over(place: Path) -> None:
    with open(place / "results.jsonl", "a") as file:
        file.write('{"trial": "x", "step": []}\n{"trial": 0, "step": 1}\n[]\n')
    assert len(resumed(place).history()) == 12
