"""A process that has passed on refs of others dies (docs/decisions/0011): nothing is freed early, nothing is kept.

The orders in which news can be lost are the simulator's affair (`python -m tests.simulation --loans`); this is the same
code with real processes.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied
from rlplat.runtime.refs import backend
from tests.patience import soon


@rlplat.remote
class Keeper:
    def __init__(self) -> None:
        self._kept: list[Any] = []

    def keep(self, refs: list[Any]) -> int:
        self._kept += refs
        return len(self._kept)

    def values(self) -> list[int]:
        return list(rlplat.get(self._kept))

    def forget(self) -> None:
        self._kept = []


@rlplat.remote
class Lender:
    def lend(self, keeper: Any, refs: list[Any], is_sure: bool) -> None:
        """Passes on what it has borrowed, and holds it as well. `is_sure`: waits until it is there."""
        self._refs = refs
        kept = keeper.keep.remote(refs)
        if is_sure:
            rlplat.get(kept)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def _num_owned() -> int:
    client: Any = backend()
    with client.link.lock:
        client.objects.collect()
        return len(client.objects.book)


def test_what_a_dead_process_has_passed_on_lives_as_long_as_its_borrower(cluster: None) -> None:
    keeper = Keeper.remote()
    rlplat.get(keeper.keep.remote([]))
    at_first = _num_owned()
    for number in range(10):
        lender, refs = Lender.remote(), [rlplat.put(number)]
        lender.lend.remote(keeper, refs, bool(number % 2))
        with pytest.raises(ActorDied):
            rlplat.get(lender.die.remote())
        del lender, refs
    kept = set(rlplat.get(keeper.values.remote()))
    assert {1, 3, 5, 7, 9} <= kept <= set(range(10))  # what was under way when the lender died may be lost
    rlplat.get(keeper.forget.remote())
    assert soon(lambda: _num_owned() == at_first)
