"""What is said while a run starts."""

from __future__ import annotations

import pytest

import rlplat
from rlplat.rl.interfaces import Result
from rlplat.rl.run.view.progress import StillStarting
from tests.patience import soon


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.results: list[Result] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def show(self, result: Result, env_steps_per_s: float) -> None:
        self.results.append(result)

    def finish(self, ended_by: str, env_steps_per_s: float) -> None:
        self.lines.append(ended_by)

    def close(self) -> None:
        self.lines.append("closed")


@pytest.mark.parametrize("backend", ["ray", "zmq"])
def test_a_line_names_what_is_waited_for_until_the_first_result(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPLAT_BACKEND", backend)
    monkeypatch.setattr(rlplat, "is_initialized", lambda: is_there, raising=False)
    heard, is_there = Heard(), False
    progress = StillStarting(heard, 2, period_s=0.02)

    def waits_for(what: str) -> bool:
        return any(what in line and line.endswith(" s so far") for line in heard.lines)

    assert soon(lambda: waits_for("Ray is starting: " if backend == "ray" else "the runtime is starting: "))
    is_there = True
    assert soon(lambda: waits_for("the learner and the parameter server are starting"))
    assert any("a Python process for each" in line for line in heard.lines) == (backend == "ray")
    progress.is_made = True
    assert soon(lambda: waits_for("waiting for the first steps of 2 rollout workers"))
    progress.show(Result(1, 1, 0, None, None), 1.0)
    said = len(heard.lines)
    progress.close()
    assert heard.lines[said:] == ["closed"] and len(heard.results) == 1


def test_in_one_process_nothing_is_waited_for() -> None:
    heard = Heard()
    StillStarting(heard, 0, period_s=0.0).close()
    assert heard.lines == ["closed"]
