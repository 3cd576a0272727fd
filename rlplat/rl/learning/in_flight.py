"""`InFlight`: the driver of rings whose actors do not wait for each other: what is running, and what follows from each.

    in_flight = InFlight()
    in_flight.ask(worker.sample.remote(weights), then=on_rollout)       # returns at once
    while not enough:
        in_flight.next()                                # waits for one answer; on_rollout(ref) asks for what follows

Only refs pass through it. What is asked, and when, is the algorithm's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import rlplat
from rlplat.errors import RlplatError

if TYPE_CHECKING:
    from rlplat import ObjectRef


class InFlight:
    def __init__(self) -> None:
        self._then: dict[ObjectRef, Callable[[ObjectRef], None]] = {}

    def ask(self, ref: ObjectRef, then: Callable[[ObjectRef], None]) -> None:
        """then(ref): called by `next` or `finish` when the value is there, or has failed; it may ask for more."""
        self._then[ref] = then

    def next(self) -> None:
        """Wait until something is there, and hand it on. Where several handlers raise, the first failure is raised when
        all were called: what has arrived is counted."""
        ready, _ = rlplat.wait(list(self._then), num_returns=1)
        self._hand_on(ready)

    def finish(self) -> None:
        """Hand on all that is running and what follows from it, until nothing is; raises as `next` does, at the end."""
        failures: list[RlplatError] = []
        while self._then:
            try:
                self.next()
            except RlplatError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _hand_on(self, ready: list[ObjectRef]) -> None:
        failures: list[RlplatError] = []
        for ref in ready:
            try:
                self._then.pop(ref)(ref)
            except RlplatError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Forget what is running."""
        self._then.clear()
