"""The runtime's own lines: with a stderr that takes none, what they tell of is handled all the same."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rlplat.runtime.link.dropped import Dropped
from rlplat.runtime.process.say import say


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def full() -> Any:
    return open("/dev/full", "w")


@pytest.mark.parametrize("stderr", [closed, full, lambda: None], ids=["closed", "full", "none"])
def test_a_line_that_cannot_be_written_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, stderr: Callable[[], Any]
) -> None:
    monkeypatch.delenv("RLPLAT_DROPS_FILE", raising=False)
    monkeypatch.setattr(sys, "stderr", stderr())
    say("an actor died")
    dropped = Dropped("driver")
    dropped.add("Done from", "w1", "senseless")
    assert dropped.count == 1


def test_a_line_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    say("an actor died")
    assert capsys.readouterr().err == "rlplat: an actor died\n"
