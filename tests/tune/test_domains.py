"""Domains: what is in them, how likely, and how a value finds its way back to a share."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rlplat import tune
from rlplat.tune.domains import Domain, Range

SHARES = st.floats(0, 1, exclude_max=True)
ENDS = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
POSITIVE_ENDS = st.tuples(st.floats(1e-9, 1e3), st.floats(1.001, 1e6)).map(lambda pair: (pair[0], pair[0] * pair[1]))


def draws(domain: Domain, size: int = 4000) -> list:
    rng = np.random.default_rng(1)
    return [domain.sample(rng) for _ in range(size)]


@given(ENDS, SHARES)
def test_uniform_is_in_the_half_open_range_and_share_finds_it(ends, share):
    domain = tune.uniform(*ends)
    value = domain.at(share)
    assert ends[0] <= value < ends[1]
    assert domain.share(value) == pytest.approx(share, abs=1e-6)


@given(POSITIVE_ENDS, SHARES)
def test_loguniform_has_a_uniform_logarithm(ends, share):
    domain = tune.loguniform(*ends)
    value = domain.at(share)
    assert ends[0] <= value < ends[1]
    wanted = math.log(ends[0]) + share * (math.log(ends[1]) - math.log(ends[0]))
    assert math.log(value) == pytest.approx(wanted, abs=1e-6)
    assert domain.share(value) == pytest.approx(share, abs=1e-6)


@given(st.integers(-1000, 1000), st.integers(1, 1000), SHARES)
def test_randint_has_its_low_end_and_not_its_high_end(low, width, share):
    domain = tune.randint(low, low + width)
    value = domain.at(share)
    assert type(value) is int
    assert low <= value < low + width
    assert domain.at(domain.share(value)) == value
    assert domain.at(0.0) == low
    assert domain.at(math.nextafter(1, 0)) == low + width - 1


@given(st.integers(1, 1000), st.integers(1, 1000), SHARES)
def test_lograndint_likewise(low, width, share):
    domain = tune.lograndint(low, low + width)
    value = domain.at(share)
    assert type(value) is int
    assert low <= value < low + width
    assert domain.at(domain.share(value)) == value
    assert domain.at(0.0) == low


def test_every_integer_is_as_likely_as_the_others():
    counts = np.bincount(draws(tune.randint(0, 5), 10_000), minlength=5)
    assert len(counts) == 5
    assert counts.min() > 1850  # 2000 expected, standard deviation 40
    assert counts.max() < 2150


def test_lograndint_is_as_often_below_ten_as_above():
    values = np.array(draws(tune.lograndint(1, 100)))
    assert np.mean(values < 10) == pytest.approx(0.5, abs=0.03)


def test_quniform_has_both_ends_and_each_step_as_likely():
    values = draws(tune.quniform(0, 1, 0.25), 10_000)
    counts = {value: values.count(value) for value in set(values)}
    assert sorted(counts) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert min(counts.values()) > 1850
    assert sorted(set(draws(tune.quniform(0, 1, 0.1)))) == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]
    assert sorted(set(draws(tune.quniform(0, 1, 0.4)))) == [0, 0.4, 0.8]  # 1.2 is beyond


def test_qloguniform_has_steps_and_prefers_small_ones():
    values = draws(tune.qloguniform(1, 64, 1))
    assert {value == round(value) for value in values} == {True}
    assert min(values) == 1
    assert max(values) == 64
    assert values.count(1.0) > 10 * values.count(30.0)


def test_a_normal_has_its_distribution():
    values = np.array(draws(tune.normal(3, 0.5), 20_000))
    assert stats.kstest(values, stats.norm(3, 0.5).cdf).pvalue > 0.05
    assert np.mean(values) == pytest.approx(3, abs=0.015)  # its standard error is 0.0035
    assert np.std(values) == pytest.approx(0.5, abs=0.01)
    assert len(set(values)) == 20_000


def test_a_qnormal_is_a_normal_rounded_to_multiples_of_its_step():
    values = np.array(draws(tune.qnormal(3, 10, 5), 20_000))
    assert np.array_equal(values % 5, np.zeros(20_000))
    for value in (-5, 0, 5, 10):  # mean and phase of the steps have nothing to do with each other
        wanted = stats.norm(3, 10).cdf(value + 2.5) - stats.norm(3, 10).cdf(value - 2.5)
        assert np.mean(values == value) == pytest.approx(wanted, abs=0.012)
    assert 0.3 in draws(tune.qnormal(0, 1, 0.1)), "not 0.30000000000000004"


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-9, 1 - 1e-9))
def test_a_normals_share_finds_its_value(mean, deviation, share):
    domain = tune.normal(mean, deviation)
    value = domain.at(share)
    assert domain.contains(value)
    assert domain.share(value) == pytest.approx(share, abs=1e-6)
    assert value == pytest.approx(mean + deviation * stats.norm.ppf(share), abs=1e-4 * deviation)


@given(st.floats(-100, 100), st.floats(0.1, 100), st.floats(0.05, 50), SHARES)
def test_a_qnormals_values_are_found_again(mean, deviation, quantum, share):
    domain = tune.qnormal(mean, deviation, quantum)
    value = domain.at(share)
    assert domain.contains(value)
    assert abs(value - mean) <= 8 * deviation + quantum
    if abs(value - mean) < 5 * deviation:
        assert domain.at(domain.share(value)) == value


@pytest.mark.parametrize("domain", [tune.normal(-1, 2), tune.qnormal(-1, 2, 0.5)])
def test_a_normal_has_ends_far_out_and_every_share_a_value(domain):
    shares = (0.0, 5e-324, 2**-53, 0.5, math.nextafter(1, 0), 1.0)
    values = [domain.at(share) for share in shares]
    assert values == sorted(values)
    assert all(math.isfinite(value) and domain.contains(value) for value in values)
    assert domain.clip(math.inf) == domain.top
    assert 0 < domain.share(domain.at(2**-53)) < 1e-15
    assert not domain.contains(100)


def test_a_choice_is_even():
    values = draws(tune.choice(["a", "b"]))
    assert values.count("a") / len(values) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("domain", "value", "clipped"),
    [
        (tune.uniform(0, 1), -3, 0.0),
        (tune.uniform(0, 1), 2, math.nextafter(1, 0)),
        (tune.uniform(0, 1), 0.5, 0.5),
        (tune.loguniform(1e-3, 1), 0, 1e-3),
        (tune.randint(1, 10), 10, 9),
        (tune.randint(1, 10), 3.6, 4),
        (tune.randint(1, 10), -math.inf, 1),
        (tune.lograndint(2, 9), 1, 2),
        (tune.quniform(0, 1, 0.25), 0.4, 0.5),
        (tune.quniform(0, 1, 0.4), 5, 0.8),
        (tune.normal(0, 1), 1.5, 1.5),
        (tune.normal(0, 1), -1000, -8.0),
        (tune.qnormal(1, 1, 0.5), 0.3, 0.5),
        (tune.choice([1, 2]), 2, 2),
        (tune.choice([[1], [2]]), "[2]", "[2]"),
    ],
)
def test_clip_gives_the_nearest_value_inside(domain, value, clipped):
    assert domain.clip(value) == clipped
    assert type(domain.clip(value)) is type(clipped)
    assert domain.contains(clipped)


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (tune.uniform(0, 1), "0.5"),
        (tune.uniform(0, 1), None),
        (tune.uniform(0, 1), True),
        (tune.uniform(0, 1), math.nan),
        (tune.randint(0, 3), [1]),
        (tune.normal(0, 1), math.nan),
        (tune.normal(0, 1), "0"),
        (tune.choice(["a"]), "b"),
        (tune.choice(["a"]), ["a"]),
    ],
)
def test_what_is_no_value_of_the_domain_is_no_member(domain, value):
    assert not domain.contains(value)
    with pytest.raises(TypeError):
        domain.clip(value)


def test_numbers_have_an_order_and_names_have_none():
    assert tune.choice([8, 16, 32]).is_ordered
    assert not tune.choice(["relu", "tanh"]).is_ordered
    assert not tune.choice([True, False]).is_ordered


def test_labels_are_scalars_that_tell_the_options_apart():
    sgd = {"name": "sgd", "momentum": tune.uniform(0, 1)}
    assert tune.choice([1, "a", None, 0.5]).labels == (1, "a", None, 0.5)
    assert tune.choice([[64, 64], [32]]).labels == ("[64, 64]", "[32]")
    assert tune.choice([sgd, {"name": "adam"}]).labels == ("sgd", "adam")
    assert tune.choice([{"sgd": {"lr": tune.uniform(0, 1)}}, {"adam": {}}]).labels == ("sgd", "adam")
    assert tune.choice([{"width": 1}, {"width": 2}]).labels == ("width=1", "width=2")
    assert tune.choice([{"a": tune.uniform(0, 1)}, {"a": tune.uniform(1, 2)}]).labels == (
        "option 0",
        "option 1",
    )


def test_a_range_tells_its_text_and_its_kind():
    assert tune.uniform(0, 1).text == "uniform(0, 1)"
    assert tune.quniform(0, 1, 0.1).text == "quniform(0, 1, 0.1)"
    assert tune.normal(0, 0.5).text == "normal(0, 0.5)" and tune.qnormal(0, 10, 5).text == "qnormal(0, 10, 5)"
    assert tune.choice(["a"]).text == "choice(['a'])"
    assert isinstance(tune.randint(0, 2), Range)
    assert tune.lograndint(1, 2).is_log
    assert tune.lograndint(1, 2).is_integer
