"""Weights of one run as the beginning of another (`--init-from RUN`): whose.

initial = find_initial("runs/demo:best")                # before anything starts
line = initial.give_to(algorithm)                       # its optimizer, counters and environments stay new
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from rlplat.errors import CheckpointError
from rlplat.paths import user_path
from rlplat.rl.interfaces import Weights
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.run.trained_agent import load

_CHECKPOINT = re.compile(r"(.+):([^:/]+)")


@dataclass(frozen=True)
class InitialWeights:
    path: str
    """Of the checkpoint."""
    algorithm: str
    env_steps: int
    spaces: str
    weights: Weights

    def give_to(self, algorithm: Algorithm[Any]) -> str:
        """What to tell about it; CheckpointError names every leaf that does not fit."""
        spaces = str(algorithm.spaces)
        differ = f"its spaces are {self.spaces}, and here {spaces}" if self.spaces != spaces else ""
        try:
            algorithm.set_weights(self.weights)
        except CheckpointError as error:
            other = f"it is a run of {self.algorithm}" if self.algorithm != algorithm.name else ""
            hint = "; ".join(filter(None, [other, differ]))
            raise CheckpointError(
                f"cannot start from {self.path}: {error}" + (f"\n  ({hint})" if hint else "")
            ) from None
        told = f"starting from the weights of {self.path} ({self.env_steps:,} env steps)"
        return f"{told}; note: {differ}" if differ else told


def find_initial(source: str | os.PathLike[str]) -> InitialWeights:
    """source: RUN (its newest checkpoint), RUN:best, RUN:step_4096, or a checkpoint's directory."""
    match = None if os.path.exists(user_path(source)) else _CHECKPOINT.fullmatch(os.fspath(source))
    agent = load(match[1], match[2]) if match else load(source)
    saved = agent.checkpoint
    info = saved.info
    return InitialWeights(str(saved.path), info.algorithm, info.env_steps, info.spaces, agent.weights())
