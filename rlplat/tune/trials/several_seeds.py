"""One config with several seeds: programs side by side in one trial, report by report.

A report holds the means over the seeds, and `<metric>_std` (the sample standard deviation) of every number. A seed that
ends before the others counts on with its last report, so that means of different reports are means over the same seeds;
the trial ends when all have ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlplat.errors import CheckpointError
from rlplat.given.global_random import GlobalRandom
from rlplat.tune.trials.checkpoints import TrialCheckpoints
from rlplat.tune.trials.program import Program, StillRunning, TrialContext


class SeveralSeeds:
    def __init__(self, open_one: Callable[[TrialContext], Program], context: TrialContext) -> None:
        """open_one: makes the program of one seed."""
        self._context = context
        self._checkpoints = TrialCheckpoints(context.number)
        self._seeds = [
            _OneSeed(
                open_one(
                    replace(context, seed=seed, directory=context.directory / f"seed_{index}", num_seeds=1)
                )
            )
            for index, seed in enumerate(seeds_of(context.seed, context.num_seeds))
        ]
        self._step = 0

    @property
    def can_save(self) -> bool:
        return all(seed.has_ended or seed.program.can_save for seed in self._seeds)

    def step(self) -> dict[str, Any] | None:
        for seed in self._seeds:
            seed.advance()
        if all(seed.has_ended for seed in self._seeds):
            return None
        self._step += 1
        return means([seed.last for seed in self._seeds])

    def save_to(self, directory: Path) -> str:
        if not self.can_save:
            raise CheckpointError(
                f"trial {self._context.number} cannot be saved: not every seed brought a checkpoint"
            )

        def save_each(beside: Path) -> dict[str, Any]:
            names = [
                "" if seed.has_ended else seed.program.save_to(beside / f"seed_{index}")
                for index, seed in enumerate(self._seeds)
            ]
            return {"names": names, "last": [seed.last for seed in self._seeds]}

        return self._checkpoints.save(directory, save_each, self._step)

    def load_from(self, path: Path) -> None:
        state, self._step = self._checkpoints.load(path, self._context.directory / "restored")
        num_saved = len(state["names"])
        if num_saved != len(self._seeds):
            raise CheckpointError(
                f"checkpoint {path} has {num_saved} seeds, and the trial {len(self._seeds)}"
            )
        for index, (seed, name, last) in enumerate(
            zip(self._seeds, state["names"], state["last"], strict=True)
        ):
            seed.last, seed.has_ended = last, not name
            if name:
                seed.load_from(path / f"seed_{index}" / name)

    def close(self) -> None:
        still_running: StillRunning | None = None
        for seed in self._seeds:
            try:
                seed.program.close()
            except StillRunning as error:
                still_running = error
        if still_running:
            raise still_running


class _OneSeed:
    """A program and the state of the global random number generators as it left it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.last: dict[str, Any] = {}
        self.has_ended = False
        self._random: GlobalRandom | None = None

    def advance(self) -> None:
        if self.has_ended:
            return
        if self._random is not None:
            self._random.install()
        metrics = self.program.step()
        self._random = GlobalRandom()
        if metrics is None:
            self.has_ended = True
        else:
            self.last = metrics

    def load_from(self, path: Path) -> None:
        self.program.load_from(path)  # a class is made and seeded here
        self._random = GlobalRandom()


def seeds_of(seed: int, num_seeds: int) -> list[int]:
    """The first is the trial's own."""
    children = np.random.SeedSequence(seed).spawn(num_seeds - 1)
    return [seed, *(int(child.generate_state(1)[0]) for child in children)]


def means(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the numbers, over those that report them; of texts the first."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for report in reports for name in report):
        values = [value for report in reports if (value := report.get(name)) is not None]
        if not values:
            merged[name] = None
            continue
        if any(isinstance(value, str) for value in values):
            merged[name] = values[0]
            continue
        mean = merged[name] = sum(values) / len(values)
        if len(values) > 1:
            merged[f"{name}_std"] = math.sqrt(
                sum((value - mean) ** 2 for value in values) / (len(values) - 1)
            )
    return merged
