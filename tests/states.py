"""Two states of an algorithm, compared bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np


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
