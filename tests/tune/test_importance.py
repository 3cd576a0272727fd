"""Parameter importance: what matters comes first, what does not is called chance, too few trials say nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlplat.tune.analysis import MIN_TRIALS, importances
from rlplat.tune.domains import choice, loguniform, normal, randint, uniform

DOMAINS = {"much": uniform(-1, 1), "little": uniform(-1, 1), "nothing": uniform(-1, 1)}


def some_trials(num: int, seed: int = 0) -> tuple[list[dict[str, Any]], list[float]]:
    rng = np.random.default_rng(seed)
    params = [{name: domain.sample(rng) for name, domain in DOMAINS.items()} for _ in range(num)]
    return params, [-10 * of_trial["much"] ** 2 - 2 * of_trial["little"] ** 2 for of_trial in params]


@pytest.mark.parametrize("num", [100, 1000])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_matters_comes_first(num: int, seed: int) -> None:
    params, scores = some_trials(num, seed)
    found = importances(params, scores, DOMAINS)
    shares = {importance.name: importance.share for importance in found}
    assert sum(shares.values()) == pytest.approx(1) and found[0].name == "much" and shares["nothing"] < 0.1
    assert not found[0].may_be_chance


def test_what_chance_alone_makes_is_taken_off() -> None:
    domains = {"much": uniform(-1, 1), **{f"nothing {k}": uniform(-1, 1) for k in range(6)}}
    shares = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        params = [{name: domain.sample(rng) for name, domain in domains.items()} for _ in range(60)]
        found = importances(params, [-(of_trial["much"] ** 2) for of_trial in params], domains)
        shares.append({one.name: one.share for one in found}["much"])
    assert np.mean(shares) > 0.93  # 0.89 without


def test_noise_is_called_chance() -> None:
    params, _ = some_trials(200)
    rng = np.random.default_rng(5)
    flags = [
        importance.may_be_chance
        for _ in range(20)
        for importance in importances(params, rng.normal(size=200).tolist(), DOMAINS)
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
            optuna.trial.create_trial(params=of_trial, distributions=dict.fromkeys(of_trial, distribution), value=score)
        )
    theirs = optuna.importance.get_param_importances(study, evaluator=optuna.importance.PedAnovaImportanceEvaluator())
    ours = importances(params, scores, DOMAINS)
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
        scores.append(-abs(np.log10(drawn["lr"]) + 4) - 3 * (drawn["kind"] == "a") - 5 * drawn.get("b.only", 0))
    found = {importance.name: importance for importance in importances(params, scores, domains)}
    assert set(found) == set(domains)
    assert found["size"].may_be_chance and found["size"].share < 0.05
    assert not found["lr"].may_be_chance and not found["kind"].may_be_chance and not found["b.only"].may_be_chance


def test_too_few_trials_say_nothing() -> None:
    params, scores = some_trials(MIN_TRIALS - 1)
    assert importances(params, scores, DOMAINS) == []


def test_values_beyond_the_domain_count_as_the_nearest() -> None:
    params: list[dict[str, Any]] = [{"a": 10.0 ** (n % 8 - 6), "b": ("x", "y", "gone")[n % 3]} for n in range(40)]
    domains = {"a": loguniform(1e-4, 1), "b": choice(["x", "y"]), "c": normal(0, 1)}
    found = importances(params, [float(n % 8) for n in range(40)], domains)
    assert {one.name for one in found} == {"a", "b"} and found[0].name == "a"
