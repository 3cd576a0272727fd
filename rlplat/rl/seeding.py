"""One tree of random numbers per run: run -> role -> worker -> purpose. Same seed, same config, same curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from rlplat.given.global_random import GlobalRandom, seed_everything, seeded_within

Role = Literal["learner", "rollout", "evaluation"]
_ROLES: dict[Role, int] = {"learner": 0, "rollout": 1, "evaluation": 2}
Purpose = Literal["choice", "final", "report"]
"""Of an evaluation: during the training, to choose the best weights by; at the end of a run; `rlplat evaluate`. The
largest of many means over the same episodes is too large: each purpose has episodes of its own."""
PURPOSE_INDICES: dict[Purpose, int] = {"choice": 0, "final": 2, "report": 3}
"""Of `seed_sequences(seed, "evaluation", index)`; 1 is for recording data sets."""
_SHARED = 2
"""The child of an actor's sequence, beside those of `seed_sequences`, for what all code in its process draws from."""
_num_seeded = 0


def seed_sequences(run_seed: int, role: Role, index: int = 0, incarnation: int = 0) -> list[np.random.SeedSequence]:
    """Independent seeds [for the policy or network, for the environments] of one actor.

    A worker's next incarnation gets new ones: replaying the numbers of the one that died could make it die again.
    """
    return np.random.SeedSequence(run_seed, spawn_key=(_ROLES[role], index, incarnation)).spawn(2)


def seed_process(run_seed: int, role: Role, index: int = 0, incarnation: int = 0) -> None:
    """Seed what all code of this process draws from (`random`, `numpy.random`, torch, TensorFlow), in the constructor
    of an actor: environments and networks of users draw other numbers in every process, the same in every run."""
    global _num_seeded
    _num_seeded += 1
    seed_everything(_shared(run_seed, role, index, incarnation))


@contextmanager
def process_seeded(run_seed: int, role: Role, index: int = 0) -> Iterator[None]:
    """`seed_process` for a while: what an evaluation draws neither depends on the one before nor changes the training
    beside it, where both share a process."""
    with seeded_within(_shared(run_seed, role, index, 0)):
        yield


class ProcessSeeds:
    """The generators of the process in which a run begins: its program's own, given back at the end of the run if an
    actor of the run has lived in that process (num_rollout_workers=0)."""

    def __init__(self) -> None:
        self._before, self._num_seeded = GlobalRandom(), _num_seeded

    def give_back(self) -> None:
        if _num_seeded != self._num_seeded:
            self._before.install()


def _shared(run_seed: int, role: Role, index: int, incarnation: int) -> int:
    key = (_ROLES[role], index, incarnation, _SHARED)
    return number_of(np.random.SeedSequence(run_seed, spawn_key=key))


def sequence_of(seed: int | np.random.SeedSequence) -> np.random.SeedSequence:
    return seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)


def number_of(sequence: np.random.SeedSequence) -> int:
    """Its 63 bits, as generators of all packages take them."""
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


class Generators:
    """In the place of one generator: each draws for the rows of its own block."""

    def __init__(self, each: Sequence[np.random.Generator], ended: Callable[[], np.ndarray] | None = None) -> None:
        """ended: bool[S * B], whose columns `uniform` draws."""
        self._each, self._ended = each, ended

    def standard_exponential(self, size: tuple[int, ...]) -> np.ndarray:
        shape = (size[0] // len(self._each), *size[1:])
        return np.concatenate([each.standard_exponential(shape) for each in self._each])

    def standard_normal(self, size: tuple[int, ...], dtype: Any) -> np.ndarray:
        shape = (size[0] // len(self._each), *size[1:])
        return np.concatenate([each.standard_normal(shape, dtype) for each in self._each])

    def uniform(self, low: float, high: float, size: tuple[int, int]) -> np.ndarray:
        """float64[size]: new states, a column for every environment that ended."""
        assert self._ended is not None
        if not size[1]:
            return np.empty(size)
        counts = self._ended().reshape(len(self._each), -1).sum(axis=1)
        return np.concatenate(
            [each.uniform(low, high, (size[0], n)) for each, n in zip(self._each, counts, strict=True)], axis=1
        )
