"""PB2: the kernel and the process against known answers, its choice on a constructed example, what it reads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import check_grad

from rlplat.errors import ConfigError
from rlplat.tune.domains import choice, loguniform, uniform
from rlplat.tune.schedulers.pb2 import (
    JITTER,
    PB2,
    GaussianProcess,
    Kernel,
    Period,
    fitted_kernel,
    log_likelihood,
    periods_of,
    upper_bound_choice,
)
from rlplat.tune.space import Space
from rlplat.tune.trial import Trial, TrialState, schedule_of
from tests.tune.population import Population


def test_the_kernel_by_hand() -> None:
    kernel = Kernel(variance=2.0, lengthscale=0.5, epsilon=0.19, noise=0.0)
    a, b = np.array([[0.0, 0.0]]), np.array([[0.3, 0.4], [0.0, 0.0]])
    values = kernel(a, np.array([1.0]), b, np.array([3.0, 5.0]))
    # |x - x'|^2 = 0.25, |i - j| = 2: 0.81^1 * 2 exp(-0.25 / 0.5); the same place four periods later: 0.81^2 * 2
    assert values == pytest.approx(np.array([[0.81 * 2 * math.exp(-0.5), 0.81**2 * 2]]))


def test_without_time_it_is_the_squared_exponential_of_scikit_learn() -> None:
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
    regressor = pytest.importorskip("sklearn.gaussian_process").GaussianProcessRegressor
    rng = np.random.default_rng(0)
    x, y, new = rng.random((20, 3)), rng.standard_normal(20), rng.random((5, 3))
    times = np.zeros(20)
    kernel = Kernel(variance=1.7, lengthscale=0.4, epsilon=0.3, noise=0.05)
    theirs = regressor(kernels.ConstantKernel(1.7) * kernels.RBF(0.4), alpha=0.05 + JITTER, optimizer=None).fit(x, y)
    mean, deviation = theirs.predict(new, return_std=True)
    ours = GaussianProcess(kernel, x, times, y)
    assert ours.mean(new, np.zeros(5)) == pytest.approx(mean)
    assert ours.deviation(new, np.zeros(5)) == pytest.approx(deviation)


def test_what_was_seen_long_ago_counts_less() -> None:
    kernel = Kernel(variance=1.0, lengthscale=1.0, epsilon=0.5, noise=1e-6)
    process = GaussianProcess(kernel, np.array([[0.5]]), np.array([0.0]), np.array([1.0]))
    here = np.array([[0.5]] * 3)
    times = np.array([0.0, 2.0, 20.0])
    assert process.mean(here, times) == pytest.approx([1.0, 0.5, 0.5**10], abs=1e-4)
    assert process.deviation(here, times) == pytest.approx([0, math.sqrt(0.75), 1], abs=3e-3)


def test_the_likelihood_is_the_normal_density_and_its_gradient_is_right() -> None:
    rng = np.random.default_rng(1)
    x, times, y = rng.random((8, 2)), rng.integers(0, 5, 8).astype(float), rng.standard_normal(8)
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)
    halves = np.abs(times[:, None] - times[None]) / 2
    kernel = Kernel(1.3, 0.6, 0.2, 0.3)
    covariance = kernel(x, times, x, times) + (0.3 + JITTER) * np.eye(8)
    logs = np.log([1.3, 0.6, 0.2, 0.3])
    expected = stats.multivariate_normal(np.zeros(8), covariance).logpdf(y)
    assert log_likelihood(logs, squares, halves, y)[0] == pytest.approx(expected)
    error = check_grad(
        lambda at: log_likelihood(at, squares, halves, y)[0],
        lambda at: log_likelihood(at, squares, halves, y)[1],
        logs,
    )
    assert error < 1e-4


@pytest.mark.slow
def test_a_fitted_kernel_knows_noise_from_signal_and_old_from_new() -> None:
    rng = np.random.default_rng(2)
    x, times = rng.random((120, 1)), np.arange(120) / 6.0
    smooth = np.sin(6 * x[:, 0])
    quiet = fitted_kernel(x, times, smooth + 0.02 * rng.standard_normal(120))
    loud = fitted_kernel(x, times, rng.standard_normal(120))
    assert quiet.noise < 0.01 < 0.3 < loud.noise
    assert quiet.epsilon < 0.01
    drifting = fitted_kernel(x, times, np.sin(6 * x[:, 0] + times))
    assert drifting.epsilon > 5 * quiet.epsilon


def choose(x: list[float], y: list[float], trying: list[float] | None = None) -> float:
    kernel = Kernel(variance=1.0, lengthscale=0.15, epsilon=1e-4, noise=0.01)
    seen = np.array([[0.0, value] for value in x])
    known = np.array([[0.0, value] for value in [*x, *(trying or [])]])
    process = GaussianProcess(kernel, seen, np.zeros(len(seen)), np.array(y))
    certainty = GaussianProcess(kernel, known, np.zeros(len(known)), np.zeros(len(known)))
    rng = np.random.default_rng(0)
    (chosen,) = upper_bound_choice(process, certainty, np.array([0.0]), 0.0, 1, len(seen), rng)
    return float(chosen)


def test_it_takes_the_best_where_all_is_known_and_the_unknown_where_all_is_bad() -> None:
    grid = [i / 10 for i in range(11)]
    assert choose(grid, [3 - 40 * (value - 0.7) ** 2 for value in grid]) == pytest.approx(0.7, abs=0.05)
    known = [value for value in grid if value <= 0.5]
    assert choose(known, [-1.0] * len(known)) > 0.7


def test_it_does_not_take_what_others_are_trying() -> None:
    x, y = [0.4, 0.5, 0.6], [-2.0, -2.0, -2.0]
    first = choose(x, y)
    second = choose(x, y, trying=[first])
    assert abs(first - second) > 0.3


def test_the_bound_of_a_choice_is_the_highest_there_is() -> None:
    kernel = Kernel(variance=1.0, lengthscale=0.2, epsilon=0.1, noise=0.1)
    rng = np.random.default_rng(3)
    x, times, y = rng.random((12, 2)), np.arange(12.0), rng.standard_normal(12)
    process = GaussianProcess(kernel, x, times, y)
    chosen = upper_bound_choice(process, process, np.array([0.3]), 13.0, 1, 12, rng)
    line = np.column_stack([np.full(1001, 0.3), np.linspace(0, 1, 1001)])
    kappa = math.sqrt(0.2 + math.log(0.4 * 12))

    def bound(points: np.ndarray) -> np.ndarray:
        at = np.full(len(points), 13.0)
        return np.asarray(process.mean(points, at) + kappa * process.deviation(points, at))

    assert bound(np.array([[0.3, chosen[0]]]))[0] >= bound(line).max() - 1e-6


def test_periods_are_read_from_scores_and_copies() -> None:
    trial = Trial(0, {}, {"lr": 3.0}, 0)
    trial.history = [(float(p), float(p)) for p in range(1, 8)]  # lr 1: a gain of 1 by step, boundaries at 4
    trial.history += [(p, 20 + 2 * (p - 8)) for p in (9.0, 10.0, 11.0, 12.0, 13.0)]
    trial.notes["exploits"] = [
        {"reports": 7, "progress": 8.0, "score": 20.0, "before": {"lr": 1.0}, "params": {"lr": 3.0}}
    ]
    assert periods_of(trial, 4) == [
        Period(1.0, 1.0, {"lr": 1.0}, 1.0),
        Period(8.0, 20.0, {"lr": 3.0}, 2.0),
    ]
    assert [period.begin for period in periods_of(Trial(0, {}, {}, 0, history=trial.history), 4)] == [1, 4, 9]


@pytest.mark.parametrize("space", [{"layers": choice([[1], [2, 3]]), "a": choice(["b", "c"])}, {"n": choice([1, 2])}])
def test_a_space_without_a_range_is_refused(space: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="take pbt"):
        PB2(4).open(0, Space.parse(space))


class Moving:
    """What a step is worth is 1 - (x - c)^2, and c moves from 0.2 to 0.8 in twenty steps."""

    def __init__(self, config: dict[str, Any], seed: int) -> None:
        self.config, self.rng, self.steps, self.total = config, np.random.default_rng(seed), 0, 0.0

    def step(self) -> dict[str, Any]:
        best = 0.2 + 0.6 * self.steps / 20
        self.total += 1 - (self.config["x"] - best) ** 2 + 0.01 * self.rng.standard_normal()
        self.steps += 1
        return {"score": self.total}


@pytest.mark.slow
def test_it_follows_a_moving_optimum_and_mixes_with_choices() -> None:
    space = {"x": uniform(0.0, 1.0), "kind": choice(["a", "b"]), "unused": loguniform(1e-4, 1.0)}
    population = Population(Moving, space, lambda: PB2(1, synch=True), num_samples=8, slots=8, stop={"step": 20}).run()
    assert all(trial.state is TrialState.COMPLETE for trial in population.trials)
    best = population.experiment.roster.best()[0]
    best_fixed = 20 - sum((0.5 - (0.2 + 0.6 * step / 20)) ** 2 for step in range(20))
    assert best.values[0] > best_fixed
    late = [params["x"] for progress, params in schedule_of(best) if progress >= 12]
    assert late and max(late) > 0.6
    for trial in population.trials:
        assert 1e-4 <= trial.params["unused"] < 1.0 and 0 <= trial.params["x"] < 1
