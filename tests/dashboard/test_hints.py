"""Each rule speaks about the fault that it is for, with its number, and is silent about a run that learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlplat.dashboard.hints import RECENT, RULES, hints
from tests.dashboard.made_runs import learning

FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a KL that is too large": ({"learner/approx_kl": 0.2}, {}, "KL of 0.2"),
    "nearly all samples clipped": ({"learner/clip_fraction": 0.6}, {}, "60% of the samples"),
    "a learning rate of 0": (
        {"learner/approx_kl": 0.0, "learner/clip_fraction": 0.0, "learner/learning_rate": 0.0}, {}, "does not change",
    ),
    "a value function that lags": ({"learner/explained_variance": -0.5}, {}, "explained variance -0.50"),
    "a reward that never changes": ({"episode_return_mean": -200.0}, {}, "every mean return is -200"),
    "episodes that never end": ({"episodes": 0, "episode_return_mean": None}, {}, "no episode has ended in 30,720"),
    "no exploration left": (
        {"learner/entropy": lambda n: 0.69 if n < 5 else 0.001, "episode_return_mean": lambda n: 20.0 + n % 3}, {},
        "nearly deterministic",
    ),
    "gradients far beyond the limit": ({"learner/gradient_norm": 40.0}, {"max_gradient_norm": 0.5}, "80 times"),
    "NaN in the losses": ({"learner/skipped_minibatches": 1}, {}, "30 minibatches"),
    "a policy that forgot": (
        {"episode_return_mean": lambda n: 20.0 + (n if n < 30 else 0.0)}, {}, "fell from 49 to 20",
    ),
    "an evaluation that is far worse": (
        {"eval/return_mean": 10.0, "eval/return_std": 5.0, "episode_return_mean": lambda n: 200.0 + n}, {},
        "evaluation returns 10, training 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str) -> None:
    changed, config, words = FAULTS[fault]
    found = hints(learning(60 if "forgot" in fault else 30, **changed), config)
    assert [words in hint.symptom for hint in found] == [True], found
    assert found[0].advice


def test_every_rule_has_a_fault() -> None:
    spoken = set()
    for changed, config, _ in FAULTS.values():
        for num in (30, 60):
            spoken |= {rule for rule in RULES if [*rule(learning(num, **changed), config)]}
    assert spoken == set(RULES)


@pytest.mark.parametrize("num", [0, 1, RECENT - 1, RECENT, 60])
def test_a_run_that_learns_has_no_hint(num: int) -> None:
    assert hints(learning(num), {"max_gradient_norm": 0.5}) == []


@pytest.mark.parametrize("value", [None, "text", float("nan"), True, 10**400])
def test_metrics_that_are_no_numbers_say_nothing(value: Any) -> None:
    names: list[str] = [name for name in learning(1)[0] if name != "iteration"]
    missing: Callable[[int], Any] = lambda n: value  # noqa: E731
    assert hints(learning(60, **dict.fromkeys(names, missing)), {"max_gradient_norm": "x"}) == []
