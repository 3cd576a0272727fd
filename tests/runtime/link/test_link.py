"""What the parts of a process share: one handler for a kind of message, chores when they are due."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlplat.errors import RuntimeFault
from rlplat.runtime.link.chores import NEVER, Chores
from rlplat.runtime.link.link import Link
from rlplat.runtime.wire import messages


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    made = Link(str(tmp_path), "driver", spin=False)
    yield made
    made.loop.close()


def test_a_message_has_one_handler(link: Link) -> None:
    link.on(messages.Ping, lambda sender, _: None)
    with pytest.raises(RuntimeFault, match="two parts of this process want Ping"):
        link.on(messages.Ping, lambda sender, _: None)


def test_a_python_without_its_gil_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(RuntimeFault, match="set PYTHON_GIL=1"):
        Link(str(tmp_path), "driver", spin=False)


def test_the_end_is_told_to_every_part(link: Link) -> None:
    told: list[str] = []
    link.at_end(lambda error: told.append(f"calls: {error.kind}"))
    link.at_end(lambda error: told.append(f"waiters: {error.kind}"))
    link._on_node_lost()
    assert told == ["calls: NodeLost", "waiters: NodeLost"]
    assert not link.loop.is_open


def test_a_chore_runs_when_it_is_due_and_not_before() -> None:
    chores, done, due_s = Chores(), list[str](), {"early": 1000.0, "late": NEVER}
    for name in due_s:
        chores.add(lambda name=name: done.append(name), lambda name=name: due_s[name])  # type: ignore[misc]
    assert chores.next_s() == 1000.0
    chores.run_due()
    assert done == []
    due_s["early"] = -1.0
    assert chores.next_s() == 0.0
    chores.run_due()
    assert done == ["early"]


def test_a_chore_with_litter_is_due_whenever_the_process_is_awake() -> None:
    chores, litter = Chores(), [3, 4]
    chores.add(litter.clear, lambda: NEVER, [], litter)
    assert chores.next_s() == NEVER
    chores.run_due()
    assert litter == []
