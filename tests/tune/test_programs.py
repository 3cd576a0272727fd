"""Programs: every kind of trainable, turn by turn."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.tune.program import TrialContext
from rlplat.tune.programs import open_program


def context(directory: Path, **changes: Any) -> TrialContext:
    return TrialContext(**{"number": 3, "seed": 7, "directory": directory} | changes)


def counting(config: dict, report: Any) -> None:
    for index in range(config.get("n", 3)):
        report(index=index)


def state_of(position: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    return {"position": position, "rng": rng.bit_generator.state}


def walk(config: dict, report: Any) -> None:
    """A random walk that goes on bit for bit from its checkpoint."""
    rng = np.random.default_rng(report.seed)
    position = np.zeros(3)
    if report.checkpoint is not None:
        position, rng.bit_generator.state = report.checkpoint["position"], report.checkpoint["rng"]
    state = functools.partial(state_of, position, rng)  # what it holds, and made when it is called
    while True:
        position += rng.normal(size=3)
        report(step=report.step, x=position[0], checkpoint=state)


def walking(config: dict, report: Any) -> Any:
    rng = np.random.default_rng(report.seed)
    position = np.zeros(3)
    if report.checkpoint is not None:
        position, rng.bit_generator.state = report.checkpoint["position"], report.checkpoint["rng"]
    while True:
        position += rng.normal(size=3)
        yield {"step": report.step, "x": position[0]}, state_of(position, rng)


class Walk:
    def __init__(self, config: dict, context: TrialContext) -> None:
        self.rng, self.position, self.num_steps = np.random.default_rng(context.seed), np.zeros(3), 0

    def step(self) -> dict:
        self.position += self.rng.normal(size=3)
        self.num_steps += 1
        return {"step": self.num_steps - 1, "x": self.position[0]}

    def save(self) -> dict:
        return {"position": self.position, "rng": self.rng.bit_generator.state, "num_steps": self.num_steps}

    def load(self, state: dict) -> None:
        self.position, self.rng.bit_generator.state = state["position"], state["rng"]
        self.num_steps = state["num_steps"]


@pytest.mark.parametrize("trainable", [walk, walking, Walk])
def test_goes_on_from_a_checkpoint_bit_for_bit(trainable: Any, tmp_path: Path) -> None:
    whole = open_program(trainable, {}, context(tmp_path))
    expected = [whole.step() for _ in range(20)]
    whole.close()

    first = open_program(trainable, {}, context(tmp_path))
    seen = [first.step() for _ in range(8)]
    assert first.can_save
    name = first.save_to(tmp_path / "checkpoints")
    assert name == "step_8"
    assert first.step() == expected[8]  # saving did not disturb it
    first.close()
    second = open_program(trainable, {}, context(tmp_path))
    second.load_from(tmp_path / "checkpoints" / name)
    seen += [second.step() for _ in range(12)]
    second.close()
    assert seen == expected


def test_nothing_of_the_function_runs_between_two_steps(tmp_path: Path) -> None:
    running = []

    def trial(config: dict, report: Any) -> None:
        while True:
            running.append(True)
            report(a=1)
            running.append(True)

    program = open_program(trial, {}, context(tmp_path))
    for _ in range(200):
        running.clear()
        program.step()
        assert running
        running.clear()
        threading.Event().wait(0.0001)
        assert not running
    program.close()
