"""A caller that is faster than its actor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.errors import OptionError, PendingCallsLimitExceeded

pytestmark = pytest.mark.process


class Slow:
    """Waits at a gate."""

    def __init__(self, gate: str) -> None:
        open(gate).close()

    def call(self, value: Any) -> Any:
        return value


def limited(num_calls: int, gate: str) -> Any:
    return rlplat.remote(num_cpus=0, max_pending_calls=num_calls)(Slow).remote(gate)


def test_a_call_above_the_limit_is_refused_until_results_are_here(cluster: None, tmp_path: Path) -> None:
    """The creation is no call; calls of every form count."""
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    actor = limited(3, gate)
    refs = [
        actor.call.remote(1),
        actor.call.remote([2, "no scalar"]),
        actor.call.options(timeout_s=60).remote(3),
    ]
    for argument in (4, [4, "no scalar"]):
        with pytest.raises(PendingCallsLimitExceeded, match="Slow has 3 calls of this process to finish"):
            actor.call.remote(argument)
    open(gate, "w").close()
    assert rlplat.get(refs) == [1, [2, "no scalar"], 3]
    for value in range(10):
        assert rlplat.get([actor.call.remote(value) for _ in range(3)]) == [value] * 3


def test_the_limit_goes_with_the_handle_and_counts_for_each_process(cluster: None, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    actor = limited(1, gate)

    @rlplat.remote(num_cpus=0)
    def call_twice(box: list) -> str:
        ref = box[0].call.remote(1)
        try:
            box[0].call.remote(2)
        except PendingCallsLimitExceeded:
            open(gate, "w").close()
            return f"refused, {rlplat.get(ref)}"
        return "taken"

    mine = actor.call.remote(0)
    assert rlplat.get(call_twice.remote([actor]), timeout=60) == "refused, 1"
    assert rlplat.get(mine) == 0


def test_without_the_option_there_is_no_limit(cluster: None, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    actor = limited(-1, gate)
    refs = [actor.call.remote(value) for value in range(3000)]
    open(gate, "w").close()
    assert rlplat.get(refs) == [*range(3000)]
    with pytest.raises(OptionError, match="max_pending_calls"):
        limited(-2, gate)
