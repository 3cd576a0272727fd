"""A small algorithm for tests of the loop and the commands: counts, in this process, with no runtime below it.

Each step is `batch` env steps and one finished episode whose return is the number of the iteration; its state is a
random generator and an array, so that a resumed run can be compared bit by bit.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from rlplat.errors import EnvError, ObjectLost
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.interfaces import Episode, Result
from rlplat.rl.run.algorithm import Algorithm


class CountingConfig(AlgorithmConfig):
    batch: PositiveInt = 10
    """Env steps per iteration."""
    fail_at: int = 0
    """Iteration that raises EnvError; 0: none."""
    signal_at: int = 0
    """Iteration in which this process gets `signal_number`; 0: none, -1: while the algorithm is made."""
    signal_number: int = signal.SIGINT
    num_signals: int = 1
    wait_at: str = ""
    """A path: every step waits until this fifo has been opened and closed for writing."""
    no_episodes: bool = False
    lost_states: int = 0
    """So many calls of get_state raise ObjectLost."""


class CountingAlgorithm(Algorithm[CountingConfig]):
    name = "counting"
    config_class = CountingConfig
    not_saved = ("environment state",)
    spaces = "Box(1,) -> Discrete(2)"

    def __init__(self, config: CountingConfig) -> None:
        self.config = config  # no more of `Algorithm`'s: there are no actors, and no runtime is started
        self.iteration = 0
        self.rng = np.random.default_rng(config.seed)
        self.sums = np.zeros(3)
        self.is_closed = False
        self.lost_states = config.lost_states
        if config.signal_at < 0:
            os.kill(os.getpid(), config.signal_number)

    def step(self) -> Result:
        self.iteration += 1
        config = self.config
        if config.wait_at:
            Path(config.wait_at).read_bytes()
        if self.iteration == config.fail_at:
            raise EnvError(f"environment 3 of '{config.env}' raised ValueError: no such action")
        if self.iteration == config.signal_at:
            for _ in range(config.num_signals):
                os.kill(os.getpid(), config.signal_number)
        self.sums += self.rng.normal(size=3)
        has_episodes = not config.no_episodes
        return Result(
            iteration=self.iteration,
            env_steps=self.iteration * config.batch,
            episodes=self.iteration if has_episodes else 0,
            episode_return_mean=float(self.iteration) if has_episodes else None,
            episode_length_mean=float(config.batch) if has_episodes else None,
            metrics={"learner/sum": float(self.sums[0]), "learner/undefined": float("nan")},
        )

    def evaluate(self, episodes: int) -> list[Episode]:
        return [Episode(float(self.iteration + index), index) for index in range(episodes)]

    def get_state(self) -> dict[str, Any]:
        if self.lost_states:
            self.lost_states -= 1
            raise ObjectLost("segment s-w1-1 is gone")
        return {"iteration": self.iteration, "rng": self.rng.bit_generator.state, "sums": self.sums}

    def set_state(self, state: dict[str, Any]) -> None:
        self.iteration = state["iteration"]
        self.rng.bit_generator.state = state["rng"]
        self.sums = np.array(state["sums"])

    def close(self) -> None:
        self.is_closed = True
