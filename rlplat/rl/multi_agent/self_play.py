"""`OpponentPool`: earlier weights of a policy that is trained, for opponents to play with.

    pool.add.remote(env_steps, parameter_server.latest.remote())            # the driver, every snapshot_period
    drawn = get(pool.draw.remote(rng.random(), my_snapshot))                # a rollout worker, before each fragment
    if drawn is not None:
        my_snapshot, weights = drawn

The worker brings the random number: what is drawn does not depend on who asks first.
"""

from __future__ import annotations

from typing import Any, Literal

from rlplat.rl.interfaces import Weights


class OpponentPool:
    """An actor beside the parameter servers; snapshots are numbered from 0 and the oldest goes first."""

    def __init__(self, capacity: int, sampling: Literal["latest", "uniform"]) -> None:
        self._capacity, self._sampling = capacity, sampling
        self._snapshots: list[tuple[int, int, Weights]] = []
        """(number, env steps, weights), oldest first."""
        self._next_number = 0

    def add(self, env_steps: int, latest: tuple[int, Weights]) -> int:
        """latest: (version, weights), as the parameter server gives them; returns the snapshot's number."""
        number = self._next_number
        self._next_number += 1
        self._snapshots.append((number, env_steps, latest[1]))
        del self._snapshots[: -self._capacity]
        return number

    def draw(self, at: float, held: int = -1) -> tuple[int, Weights] | None:
        """(number, weights) of one snapshot, or None when it is the one that the caller holds already.

        at: uniform in [0, 1).
        """
        if not self._snapshots:
            raise ValueError(
                "the pool of opponents is empty; the driver adds the first snapshot before sampling"
            )
        index = len(self._snapshots) - 1
        if self._sampling == "uniform":
            index = min(index, int(at * len(self._snapshots)))
        number, _, weights = self._snapshots[index]
        return None if number == held else (number, weights)

    def latest(self, than_version: int = -1) -> tuple[int, Weights] | None:
        """The newest snapshot, as from a parameter server: what evaluation plays against."""
        if not self._snapshots or self._snapshots[-1][0] <= than_version:
            return None
        return self._snapshots[-1][0], self._snapshots[-1][2]

    def env_steps(self) -> list[int]:
        """When the snapshots that are kept were taken, oldest first."""
        return [env_steps for _, env_steps, _ in self._snapshots]

    def get_state(self) -> dict[str, Any]:
        return {
            "next_number": self._next_number,
            "snapshots": [
                {"number": number, "env_steps": env_steps, "weights": weights}
                for number, env_steps, weights in self._snapshots
            ],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._next_number = int(state["next_number"])
        self._snapshots = [
            (int(each["number"]), int(each["env_steps"]), each["weights"]) for each in state["snapshots"]
        ]
