"""Numbers for people."""

import math

import pytest

from rlplat.figures import figure


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1103.4, "-1103"),
        (475.0, "475"),
        (21.36, "21.4"),
        (0.934, "0.934"),
        (0.98, "0.98"),
        (0.0, "0"),
        (999.7, "1000"),
        (99.96, "100"),
        (1e12, "1000000000000"),
        (3.1e-4, "0.00031"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (7, "7"),
    ],
)
def test_three_significant_digits_and_whole_digits_always(value: float, text: str) -> None:
    assert figure(value) == text
