"""PB2: population based training whose new values are chosen by a Gaussian process instead of at random.

Parker-Holder, Nguyen, Roberts 2020, "Provably Efficient Online Hyperparameter Optimization with Population-Based
Bandits", algorithm 1 and section 4. Each period of each trial is one observation:

    x = (time, score at its begin, hyper-parameters)     y = change of the score, by progress

and the values of a copy are those with the highest upper confidence bound for the next period of the weights that it
copies (time and score are theirs):

    argmax  mean(x) + sqrt(beta) * deviation(x)      beta = 0.2 + log(0.4 n), the authors' constants

where the deviation, not the mean, also knows what the other trials are trying now (GP-BUCB, Desautels et al. 2014). The
process forgets: its kernel is (TV-GP-UCB, Bogunovic et al. 2016)

    k((x, i), (x', j)) = (1 - epsilon)^(|i - j| / 2) * variance * exp(-|x - x'|^2 / (2 lengthscale^2))

with time i, j in periods. Everything is made anew from the recorded scores at each choice: there is no state to lose.
Only numbers are chosen so (log ranges by their logarithm); other parameters change as in PBT.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rlplat.errors import ConfigError, MissingExtra
from rlplat.tune.schedulers.pbt import PBT
from rlplat.tune.trial import Trial

MAX_OBSERVATIONS = 200
"""The latest ones: older ones have little weight, and the fit costs their third power."""
NUM_CANDIDATES = 512
"""Random points at which the bound is looked at; it is climbed from the best few."""
JITTER = 1e-6


@dataclass(frozen=True)
class Kernel:
    """The time-varying squared exponential kernel, and the noise of an observation."""

    variance: float = 1.0
    lengthscale: float = 0.5
    epsilon: float = 0.1
    """How fast what was seen loses its meaning, by periods. 0: never."""
    noise: float = 0.1
    """Variance of an observation."""

    def __call__(self, a: np.ndarray, times_a: np.ndarray, b: np.ndarray, times_b: np.ndarray) -> np.ndarray:
        """a: float[N, D], times_a: float[N] in periods, b: float[M, D], times_b: float[M] -> float[N, M]."""
        assert a.shape[1] == b.shape[1] and a.shape[0] == len(times_a) and b.shape[0] == len(times_b)
        squares = ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1)
        forgotten = (1.0 - self.epsilon) ** (np.abs(times_a[:, None] - times_b[None, :]) / 2)
        return np.asarray(self.variance * forgotten * np.exp(-squares / (2 * self.lengthscale**2)))


class GaussianProcess:
    """Posterior of a function with this kernel after noisy observations; y is standardised by the caller."""

    def __init__(self, kernel: Kernel, x: np.ndarray, times: np.ndarray, y: np.ndarray) -> None:
        """x: float[N, D], times: float[N], y: float[N]."""
        self.kernel, self._x, self._times = kernel, x, times
        covariance = kernel(x, times, x, times) + (kernel.noise + JITTER) * np.eye(len(x))
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ y

    def mean(self, x: np.ndarray, times: np.ndarray) -> np.ndarray:
        """x: float[M, D], times: float[M] -> float[M]."""
        return np.asarray(self.kernel(x, times, self._x, self._times) @ self._weights)

    def deviation(self, x: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Of the function, without the noise: float[M]."""
        across = self.kernel(x, times, self._x, self._times)
        explained = np.einsum("mn,nk,mk->m", across, self._inverse, across, optimize=True)
        return np.asarray(np.sqrt(np.maximum(self.kernel.variance - explained, 1e-12)))


def log_likelihood(
    logs: np.ndarray, squares: np.ndarray, halves: np.ndarray, y: np.ndarray
) -> tuple[float, np.ndarray]:
    """Of observations y: float[N], and its gradient.

    logs: the logarithms of a kernel's four numbers. squares: squared distances, float[N, N]; halves: half the
    distances in time, float[N, N].
    """
    variance, lengthscale, epsilon, noise = np.exp(logs)
    signal = variance * (1.0 - epsilon) ** halves * np.exp(-squares / (2 * lengthscale**2))
    identity = np.eye(len(y))
    factor = np.linalg.cholesky(signal + (noise + JITTER) * identity)
    half = np.linalg.inv(factor)
    inverse = half.T @ half
    weights = inverse @ y
    value = -0.5 * y @ weights - np.log(np.diag(factor)).sum() - 0.5 * len(y) * math.log(2 * math.pi)
    slope = 0.5 * (np.outer(weights, weights) - inverse)
    changes = (
        signal,
        signal * squares / lengthscale**2,
        -signal * halves * epsilon / (1.0 - epsilon),
        noise * identity,
    )
    return float(value), np.array([(slope * change).sum() for change in changes])


def fitted_kernel(x: np.ndarray, times: np.ndarray, y: np.ndarray) -> Kernel:
    """The kernel under which the observations are most likely: maximum marginal likelihood, from two starts."""
    from scipy.optimize import minimize

    squares = ((x[:, None, :] - x[None, :, :]) ** 2).sum(-1)
    halves = np.abs(times[:, None] - times[None, :]) / 2

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = log_likelihood(logs, squares, halves, y)
        return -value, -gradient

    bounds = [(-3.0, 2.0), (-3.0, 1.5), (-7.0, -0.7), (-7.0, 1.0)]  # logarithms
    starts = [np.log([1.0, 0.5, 0.1, 0.1]), np.log([1.0, 1.5, 0.02, 0.5])]
    found = [
        minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30}) for start in starts
    ]
    best = min(found, key=lambda result: float(result.fun))
    return Kernel(*(float(value) for value in np.exp(best.x)))


def upper_bound_choice(
    process: GaussianProcess,
    certainty: GaussianProcess,
    context: np.ndarray,
    time: float,
    num_free: int,
    num_observations: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The point of [0, 1]^num_free with the highest upper confidence bound.

    process: gives the mean; certainty: the deviation (it also knows the points that are being tried). context: the
    coordinates before the free ones, which are given.
    """
    from scipy.optimize import minimize

    kappa = math.sqrt(0.2 + max(0.0, math.log(0.4 * num_observations)))

    def bound(points: np.ndarray) -> np.ndarray:
        x = np.hstack([np.tile(context, (len(points), 1)), points])
        times = np.full(len(points), time)
        return np.asarray(process.mean(x, times) + kappa * certainty.deviation(x, times))

    candidates = rng.random((NUM_CANDIDATES, num_free))
    order = np.argsort(-bound(candidates))[:3]
    climbed = [
        minimize(
            lambda point: -float(bound(point[None])[0]),
            candidates[index],
            method="L-BFGS-B",
            bounds=[(0.0, 1.0)] * num_free,
            options={"maxiter": 30},
        ).x
        for index in order
    ]
    points = np.clip(np.vstack([*climbed, candidates[order]]), 0.0, 1.0)
    return np.asarray(points[int(np.argmax(bound(points)))])


@dataclass(frozen=True)
class Period:
    """What one trial got out of one period with the same hyper-parameters."""

    begin: float
    """Progress."""
    score: float
    """At the begin."""
    params: dict[str, Any]
    gain: float
    """Change of the score by unit of progress."""


def periods_of(trial: Trial, period: float) -> list[Period]:
    """From the recorded scores and copies of a trial: one for each boundary that it came to."""
    exploits = trial.notes.get("exploits", [])
    # (reports before, progress, score, params) at which each stretch with the same hyper-parameters begins
    first = exploits[0]["before"] if exploits else trial.params
    begins: list[tuple[int, float, float | None, dict[str, Any]]] = [(0, 0.0, None, first)]
    begins += [(e["reports"], e["progress"], e["score"], e["params"]) for e in exploits]
    ends = [begin[0] for begin in begins[1:]] + [len(trial.history)]
    found: list[Period] = []
    for (start, progress, score, params), end in zip(begins, ends, strict=True):
        for later, later_score in trial.history[start:end]:
            if score is None:  # nothing is known of the score before the first report
                progress, score = later, later_score
            elif math.floor(later / period + 1e-9) > math.floor(progress / period + 1e-9):
                found.append(Period(progress, score, params, (later_score - score) / (later - progress)))
                progress, score = later, later_score
    return found


class PB2(PBT):
    name: ClassVar[str] = "pb2"

    def open(self, seed: int, space: Any) -> None:
        from rlplat.tune.domains import Range

        try:
            import scipy.optimize  # noqa: F401  before anything runs, not at the first choice
            import threadpoolctl  # noqa: F401
        except ImportError as error:
            raise MissingExtra(str(error.name).split(".")[0], "tune", "the trial scheduler 'pb2'") from None
        super().open(seed, space)
        self._numbers = {name: how for name, how in self.mutations.items() if isinstance(how, Range)}
        if not self._numbers:
            raise ConfigError(
                "trial scheduler 'pb2' chooses numbers, and the space has no uniform, loguniform or randint that may "
                "change: take pbt"
            )

    def explore(self, source: Trial, target: Trial, names: Sequence[str], rng: np.random.Generator) -> dict[str, Any]:
        from threadpoolctl import threadpool_limits

        explored = super().explore(source, target, names, rng)
        numbers = [name for name in names if name in self._numbers]
        members = [member.trial for member in self._members.values()]
        periods = sorted(
            (p for trial in members for p in periods_of(trial, self.perturbation_period)),
            key=lambda p: p.begin,
        )
        periods = [p for p in periods if all(name in p.params for name in numbers)][-MAX_OBSERVATIONS:]
        if len(periods) < 2 or not numbers or source.checkpoint is None:
            return explored
        now = source.checkpoint.progress
        score = self._score(source)
        scores = np.array([p.score for p in periods])
        low, spread = scores.min(), max(float(np.ptp(scores)), 1e-12)

        def point(at_score: float, params: dict[str, Any]) -> list[float]:
            return [(at_score - low) / spread, *(self._numbers[name].share(params[name]) for name in numbers)]

        x = np.array([point(p.score, p.params) for p in periods])
        times = np.array([p.begin for p in periods]) / self.perturbation_period
        gains = np.array([p.gain for p in periods])
        y = np.clip((gains - gains.mean()) / (gains.std() + 1e-12), -3.0, 3.0)
        trying = [
            trial
            for trial in members
            if trial is not target
            and not trial.state.has_ended
            and "boundary" in trial.notes
            and all(name in trial.params for name in numbers)
        ]
        x_too = np.array([*x, *(point(self._score(trial), trial.params) for trial in trying)])
        times_too = np.array([*times, *(t.notes["boundary"][1] / self.perturbation_period for t in trying)])
        # The trials have the CPUs: two threads of BLAS that wait for each other take ten times as long as one.
        with threadpool_limits(1):
            kernel = fitted_kernel(x, times, y)
            chosen = upper_bound_choice(
                GaussianProcess(kernel, x, times, y),
                GaussianProcess(kernel, x_too, times_too, np.zeros(len(x_too))),
                np.array([(score - low) / spread]),
                now / self.perturbation_period,
                len(numbers),
                len(periods),
                rng,
            )
        explored |= {name: self._numbers[name].at(float(u)) for name, u in zip(numbers, chosen, strict=True)}
        return explored
