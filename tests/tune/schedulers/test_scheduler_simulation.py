"""The real experiment with each scheduler on made-up curves (benchmarks/tune_simulation.py): halving pays where early
reports tell; and every report is accounted for."""

import numpy as np
import pytest

from benchmarks.tune_judges import make_judge
from benchmarks.tune_problems import load_problems
from benchmarks.tune_simulation import simulate

TRAININGS = 8
SEEDS = 8


@pytest.fixture(scope="module")
def problem():
    return load_problems(["ranked"])[0]


def regret(problem, method):
    """(median regret over the whole budget, trials per seed)."""
    budget = TRAININGS * problem.max_progress
    traces = [
        simulate(
            problem,
            make_judge("rlplat", method, problem.max_progress, seed),
            workers=4,
            budget=budget,
            max_progress=problem.max_progress,
            seed=seed,
        )
        for seed in range(SEEDS)
    ]
    assert all(len(trace.regret) == budget for trace in traces)
    return float(np.median([np.mean(trace.regret) for trace in traces])), np.mean([t.num_trials for t in traces])


def test_at_an_equal_budget_asha_and_hyperband_try_more_and_find_better_than_random_search(problem):
    random_regret, random_trials = regret(problem, "random")
    for method, more in {"median": 1.5, "asha": 8, "hyperband": 4}.items():
        found, trials = regret(problem, method)
        assert trials > more * random_trials, method
        assert found < (0.5 if more > 2 else 1.0) * random_regret, (method, found, random_regret)
