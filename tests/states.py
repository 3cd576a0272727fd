"""Two states of an algorithm, compared bit by bit, and a run that goes on from a saved one."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.checkpoint_state import pack, unpack


def assert_equal(one: Any, other: Any, place: str = "") -> None:
    """Equal in every key, element and bit, but for seconds (`*_s`)."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for key in one:
            if not key.endswith("_s"):
                assert_equal(one[key], other[key], f"{place}/{key}")
    elif isinstance(one, list | tuple):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, f"{place}/{index}")
    else:
        np.testing.assert_array_equal(one, other, err_msg=place)


def assert_resumes(algorithm: Any, config: Any, *, before: int, after: int) -> list[Any]:
    """After `before` steps a saved run and the one that it is loaded into make `after` steps alike, bit by bit -> the
    results of these."""
    with algorithm(config) as one:
        assert one.not_saved == ()
        for _ in range(before):
            one.step()
        state = one.get_state()
        expected = [one.step() for _ in range(after)]
        final = one.get_state()
    packed = pack(state)
    assert packed.not_a_number == []  # a checkpoint with NaN would not be resumed
    with algorithm(config) as other:
        other.set_state(unpack(packed.files))
        for first in expected:
            assert_equal(vars(first), vars(other.step()))
        resumed = other.get_state()
    for each in (final, resumed):
        each.get("rollout_workers", {}).pop("incarnations", None)  # a resumed run has new ones
    assert_equal(final, resumed)
    return expected
