"""Seeds as one curve: the interquartile mean and its interval, against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rlplat.dashboard.bands import band, interquartile_mean


@pytest.mark.parametrize(
    ("values", "expected"),
    [([7.0], 7.0), ([0.0, 9.0], 4.5), ([0.0, 3.0, 9.0], 4.0), ([100.0, 1.0, 2.0, -50.0], 1.5),
     ([9.0, 1.0, 2.0, 3.0, -9.0], 2.0), ([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 50.0, 60.0], 2.5)],
)  # fmt: skip
def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(values)) == pytest.approx(expected)
    assert interquartile_mean(np.array([values, values]).T) == pytest.approx([expected, expected])


def test_one_run_is_its_own_band() -> None:
    found = band([(np.array([0.0, 10.0]), np.array([1.0, 3.0]))], num_points=3)
    assert found.x.tolist() == [0, 5, 10] and found.middle.tolist() == [1, 2, 3]
    assert found.low.tolist() == found.high.tolist() == [1, 2, 3] and found.num_runs.tolist() == [1, 1, 1]


def test_a_run_counts_only_where_it_has_been() -> None:
    long, short = (np.arange(5.0), np.zeros(5)), (np.arange(1.0, 4.0), np.full(3, 6.0))
    found = band([long, short], num_points=5)
    assert found.num_runs.tolist() == [1, 2, 2, 2, 1]
    assert found.middle.tolist() == [0, 3, 3, 3, 0]
    assert (found.low <= found.middle).all() and (found.middle <= found.high).all()
    assert found.low[2] == 0 and found.high[2] == 6


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    x = np.array([0.0, 1.0])
    hits = 0
    for _ in range(100):
        found = band([(x, np.full(2, value)) for value in rng.normal(size=12)], num_points=2)
        hits += bool(found.low[0] <= 0.0 <= found.high[0])
    assert 84 <= hits <= 100  # of 100; percentile intervals of 12 runs are a little narrow


def test_a_gap_where_no_run_has_a_value_is_left_out_and_nothing_gives_nothing() -> None:
    early, late = (np.array([0.0, 1.0]), np.ones(2)), (np.array([9.0, 10.0]), np.ones(2))
    found = band([early, late], num_points=11)
    assert found.x.tolist() == [0, 1, 9, 10] and not np.isnan(found.middle).any()
    assert len(band([]).x) == 0 and len(band([(np.zeros(0), np.zeros(0))]).x) == 0
    assert band([(np.array([3.0]), np.array([7.0]))]).middle.tolist() == [7.0]
