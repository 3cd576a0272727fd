"""Aim: found again after a kill, with what it holds; a row sent twice stands once.

With Aim itself where it is installed, else with the part of its API that is used, as aim 3.29 has it.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlplat.tracking.history import Row
from rlplat.tracking.to_aim import AimTracker
from rlplat.tracking.tracker import TrackedRun


class FakeRun:
    stored: dict[str, dict[str, dict[int, float]]] = {}

    def __init__(self, run_hash: str | None = None, *, repo: str, force_resume: bool = False, **options: Any) -> None:
        assert set(options) == {
            "experiment",
            "system_tracking_interval",
            "log_system_params",
            "capture_terminal_logs",
        }
        assert force_resume == (run_hash is not None)
        self.hash = run_hash or f"hash{len(self.stored)}"
        self.metrics = self.stored.setdefault(self.hash, {})
        self.name, self.params = "", dict[str, Any]()

    def __setitem__(self, key: str, value: Any) -> None:
        self.params[key] = value

    def track(self, value: Any, name: str | None = None, step: int | None = None) -> None:
        assert step is not None and (name is None) == isinstance(value, dict)
        for each, number in value.items() if name is None else [(name, value)]:
            self.metrics.setdefault(each, {})[step] = number

    def get_metric(self, name: str, context: Any) -> Any:
        if name not in self.metrics:
            return None
        values = list(self.metrics[name].values())[::-1]  # Aim's are in no order
        return types.SimpleNamespace(values=types.SimpleNamespace(sparse_numpy=lambda: ((), values)))

    def close(self) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrackedRun]:
    monkeypatch.chdir(tmp_path)
    if importlib.util.find_spec("aim") is None:
        monkeypatch.setattr(FakeRun, "stored", {})
        fakes = {"aim": {"Run": FakeRun}, "aim.storage": {}, "aim.storage.context": {"Context": dict}}
        for name, names in fakes.items():
            module = types.ModuleType(name)
            module.__dict__.update(names)
            monkeypatch.setitem(sys.modules, name, module)
    yield TrackedRun("key", "demo", "demo-group", "", {"stop.env_steps": 100, "seed": None}, 0.0, tmp_path)


def rows(*steps: int) -> list[Row]:
    return [Row(each, 0.5, {"env_steps": float(each), "episode_return_mean": each / 10}) for each in steps]


def metric(tracker: AimTracker, name: str) -> list[float]:
    context = sys.modules["aim.storage.context"].Context({})
    return sorted(tracker._run.get_metric(name, context).values.sparse_numpy()[1])


def test_a_copy_that_was_killed_finds_its_run_and_what_it_holds(run: TrackedRun) -> None:
    tracker = AimTracker()
    assert tracker.open(run) == 0
    tracker.log(rows(10, 20, 30))
    again = AimTracker()  # without finish(): as after kill -9
    assert again.open(run) == 30
    again.log(rows(30, 40))
    assert metric(again, "env_steps") == [10, 20, 30, 40]
    assert metric(again, "episode_return_mean") == [1, 2, 3, 4]
    again.finish("finished")
    other = AimTracker()
    assert other.open(TrackedRun("key-2", "demo (2)", "demo-group", "", {}, 0.0, run.directory)) == 0
    other.finish("interrupted")


def test_a_row_of_which_half_was_sent_is_not_held(run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = AimTracker()
    tracker.open(run)
    tracker.log(rows(10))
    real, calls = tracker._run.track, []

    def track(*arguments: Any, **named: Any) -> None:
        calls.append(named)
        if len(calls) == 2:
            raise ConnectionError("killed here")
        real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(tracker._run, "track", track)
        with pytest.raises(ConnectionError):
            tracker.log(rows(20))
    assert metric(tracker, "env_steps") == [10]
    tracker.finish("failed")
