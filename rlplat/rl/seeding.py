"""One tree of random numbers per run: run -> role -> worker -> purpose. Same seed, same config, same curve."""

from __future__ import annotations

from typing import Literal

import numpy as np

Role = Literal["learner", "rollout", "evaluation"]
_ROLES: dict[Role, int] = {"learner": 0, "rollout": 1, "evaluation": 2}


def seed_sequences(
    run_seed: int, role: Role, index: int = 0, incarnation: int = 0
) -> list[np.random.SeedSequence]:
    """Independent seeds [for the policy or network, for the environments] of one actor.

    A worker's next incarnation gets new ones: replaying the numbers of the one that died could make it die again.
    """
    return np.random.SeedSequence(run_seed, spawn_key=(_ROLES[role], index, incarnation)).spawn(2)
