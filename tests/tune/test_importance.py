"""Parameter importance: what matters comes first, whatever kind of parameter it is; too few trials say nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlplat.tune.analysis import MIN_TRIALS, Analysis
from rlplat.tune.domains import choice, loguniform, normal, randint, uniform
from rlplat.tune.trial import Trial, TrialState


class Known(Analysis):
    domains: Any = None


def importances(params: list[dict[str, Any]], scores: list[float], domains: Any, mode: str = "max") -> dict[str, float]:
    trials = [
        Trial(number, {}, of_trial, 0, TrialState.COMPLETE, values=(score if mode == "max" else -score, 0.0))
        for number, (of_trial, score) in enumerate(zip(params, scores, strict=True))
    ]
    analysis = Known(trials, ["x", "y"], [mode, "max"])
    analysis.domains = domains
    return analysis.importances


DOMAINS = {"nothing": uniform(-1, 1), "much": uniform(-1, 1), "little": uniform(-1, 1)}


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("num", [100, 1000])
def test_what_matters_comes_first(num: int, mode: str) -> None:
    rng = np.random.default_rng(0)
    params = [{name: domain.sample(rng) for name, domain in DOMAINS.items()} for _ in range(num)]
    scores = [-10 * of_trial["much"] ** 2 - 2 * of_trial["little"] ** 2 for of_trial in params]
    found = importances(params, scores, DOMAINS, mode)
    assert sum(found.values()) == pytest.approx(1) and next(iter(found)) == "much" and found["nothing"] < 0.15
    assert importances(params[: MIN_TRIALS - 1], scores[: MIN_TRIALS - 1], DOMAINS) == {}


def test_logarithmic_ranges_options_conditional_parameters_and_those_of_no_trial() -> None:
    rng = np.random.default_rng(3)
    domains = {
        "lr": loguniform(1e-6, 1),
        "kind": choice(["a", "b", None]),
        "size": randint(1, 9),
        "noise": normal(0, 1),
        "b.only": uniform(0, 1),
    }
    params, scores = [], []
    for _ in range(300):
        drawn = {name: domain.sample(rng) for name, domain in domains.items()}
        if drawn["kind"] != "b":
            del drawn["b.only"]
        params.append(drawn)
        scores.append(-abs(np.log10(drawn["lr"]) + 4) - 3 * (drawn["kind"] == "a") - 5 * drawn.get("b.only", 0))
    params[0]["lr"] = 10.0  # PBT may leave a range
    found = importances(params, scores, domains | {"gone": uniform(0, 1)})
    assert set(found) == set(domains) and next(iter(found)) == "lr"
    assert min(found["lr"], found["kind"]) > 2 * max(found["size"], found["noise"]) and found["b.only"] > 0
