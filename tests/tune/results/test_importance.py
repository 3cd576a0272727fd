"""Parameter importance: what matters comes first, what does not is called chance, too few trials say nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlplat.tune.results.importance import MIN_TRIALS, Axis, axis_of, importances
from rlplat.tune.space.space import choice, loguniform, normal, randint, uniform

DOMAINS = {"much": uniform(-1, 1), "little": uniform(-1, 1), "nothing": uniform(-1, 1)}


def some_trials(num: int, seed: int = 0) -> tuple[list[dict[str, Any]], list[float]]:
    rng = np.random.default_rng(seed)
    params = [{name: domain.sample(rng) for name, domain in DOMAINS.items()} for _ in range(num)]
    return params, [-10 * of_trial["much"] ** 2 - 2 * of_trial["little"] ** 2 for of_trial in params]


def axes_of(params: list[dict[str, Any]], domains: dict[str, Any]) -> dict[str, Axis]:
    return {
        name: axis_of(domain, [of_trial[name] for of_trial in params if name in of_trial])
        for name, domain in domains.items()
    }


@pytest.mark.parametrize("num", [100, 1000])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_matters_comes_first(num: int, seed: int) -> None:
    params, scores = some_trials(num, seed)
    found = importances(params, scores, axes_of(params, DOMAINS))
    shares = {importance.name: importance.share for importance in found}
    assert sum(shares.values()) == pytest.approx(1) and found[0].name == "much" and shares["nothing"] < 0.1
    assert not found[0].may_be_chance


def test_what_chance_alone_makes_is_taken_off() -> None:
    domains = {"much": uniform(-1, 1), **{f"nothing {k}": uniform(-1, 1) for k in range(6)}}
    shares = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        params = [{name: domain.sample(rng) for name, domain in domains.items()} for _ in range(60)]
        found = importances(
            params, [-(of_trial["much"] ** 2) for of_trial in params], axes_of(params, domains)
        )
        shares.append({one.name: one.share for one in found}["much"])
    assert np.mean(shares) > 0.93  # 0.89 without


def test_noise_is_called_chance() -> None:
    params, _ = some_trials(200)
    rng = np.random.default_rng(5)
    flags = [
        importance.may_be_chance
        for _ in range(20)
        for importance in importances(params, rng.normal(size=200).tolist(), axes_of(params, DOMAINS))
    ]
    assert np.mean(flags) > 0.85


def test_it_agrees_with_optunas(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    params, scores = some_trials(500)
    study = optuna.create_study(direction="maximize")
    distribution = optuna.distributions.FloatDistribution(-1, 1)
    for of_trial, score in zip(params, scores, strict=True):
        study.add_trial(
            optuna.trial.create_trial(
                params=of_trial, distributions=dict.fromkeys(of_trial, distribution), value=score
            )
        )
    theirs = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
    )
    ours = importances(params, scores, axes_of(params, DOMAINS))
    assert [importance.name for importance in ours][:2] == list(theirs)[:2] == ["much", "little"]
    assert ours[0].share == pytest.approx(theirs["much"], abs=0.15)


def test_logarithmic_ranges_options_and_conditional_parameters() -> None:
    rng = np.random.default_rng(3)
    domains = {
        "lr": loguniform(1e-6, 1),
        "kind": choice(["a", "b", None]),
        "size": randint(1, 9),
        "b.only": uniform(0, 1),
    }
    params, scores = [], []
    for _ in range(300):
        drawn = {name: domain.sample(rng) for name, domain in domains.items()}
        if drawn["kind"] != "b":
            del drawn["b.only"]
        params.append(drawn)
        scores.append(
            -abs(np.log10(drawn["lr"]) + 4) - 3 * (drawn["kind"] == "a") - 5 * drawn.get("b.only", 0)
        )
    found = {
        importance.name: importance for importance in importances(params, scores, axes_of(params, domains))
    }
    assert set(found) == set(domains)
    assert found["size"].may_be_chance and found["size"].share < 0.05
    assert (
        not found["lr"].may_be_chance
        and not found["kind"].may_be_chance
        and not found["b.only"].may_be_chance
    )


def test_too_few_trials_say_nothing() -> None:
    params, scores = some_trials(MIN_TRIALS - 1)
    assert importances(params, scores, axes_of(params, DOMAINS)) == []


def test_axes() -> None:
    assert axis_of(choice([1, 10]), []).options == (1, 10)
    assert axis_of(choice([True, 1]), []).position(1) == 1
    assert axis_of(choice([1, 10, 100]), []) == Axis(low=1, high=100, is_log=True, marks=(1, 10, 100))
    assert axis_of(choice([8, 4, 16]), []) == Axis(low=4, high=16, is_log=True, marks=(4, 8, 16))
    assert not axis_of(choice([10, 20, 30]), []).is_log and not axis_of(choice([0, 1, 1000]), []).is_log
    assert axis_of(loguniform(1e-4, 1), [2.0]) == Axis(low=1e-4, high=2.0, is_log=True), "PBT left the range"
    assert axis_of(randint(1, 9), [3]) == Axis(low=1, high=8, is_integer=True)
    assert axis_of(normal(1, 0.5), [1.2]) == Axis(low=-0.5, high=2.5), "three deviations"
    assert axis_of(normal(1, 0.5), [1.2, 3.0]) == Axis(low=-0.5, high=3.0)
    assert axis_of(None, [1e-4, 0.5]) == Axis(low=1e-4, high=0.5, is_log=True)
    assert axis_of(None, ["b", 1, "a"]).options == (1, "a", "b")
    assert axis_of(loguniform(0.01, 1), []).position(0.1) == pytest.approx(0.5)
    assert np.isnan(axis_of(uniform(0, 1), []).position("x"))
