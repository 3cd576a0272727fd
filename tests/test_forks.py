"""Forks of one process are processes of their own: exit codes, signals, what they say, the environment, sets."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forks import Door

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def doors() -> Iterator[tuple[Door, Door]]:
    with Door("json", hash_seed=1) as first, Door("json", hash_seed=2) as second:
        yield first, second


def test_a_fork_is_told_apart_by_nothing(
    doors: tuple[Door, Door], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLOUR", "blue")
    says = (
        "import os, sys; print(os.getcwd(), os.environ['COLOUR'], sys.argv); print('json' in sys.modules); sys.exit(3)"
    )
    endless = doors[0].start("-c", ["import time; time.sleep(1000)"])
    said = doors[0].start("-c", [says, "x"], cwd=tmp_path)
    assert said.communicate() == (f"{tmp_path} blue ['-c', 'x']\nTrue\n", "") and said.returncode == 3
    endless.kill()
    assert endless.communicate() == ("", "") and endless.returncode == -signal.SIGKILL
    assert "ZeroDivisionError" in doors[0].start("-c", ["1 / 0"]).communicate()[1]


def test_doors_differ_in_the_order_of_sets(doors: tuple[Door, Door]) -> None:
    program = ["print({*'abcdefg'})"]
    first, again, second = (door.start("-c", program).communicate() for door in (doors[0], *doors))
    assert first == again != second
