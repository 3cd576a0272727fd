"""Processes as /proc shows them: those that live, have ended, or carry a mark."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rlplat.processes import marked, start_time, stat_fields, state_of


@pytest.mark.process
def test_a_process_from_its_start_to_its_end() -> None:
    wait = [sys.executable, "-c", "input()"]
    with subprocess.Popen(wait, stdin=subprocess.PIPE, env={**os.environ, "A_MARK": "x y", "B": "1"}) as child:
        assert child.pid in marked("A_MARK=x y", "B=1") and os.getpid() not in marked("A_MARK=x y")
        assert child.pid not in marked("A_MARK=x") | marked("A_MARK=x y", "B=2")
        began = start_time(child.pid)
        assert began is not None and int(began) >= int(start_time(os.getpid()) or "")
        assert child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert state_of(child.pid) == "Z" and start_time(child.pid) is None  # nobody has waited for it
    assert stat_fields(child.pid) == [] and state_of(child.pid) == "" and start_time(child.pid) is None


def test_what_cannot_be_known_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptors(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("builtins.open", no_descriptors)
    with pytest.raises(OSError, match="Too many"):
        start_time(os.getpid())
