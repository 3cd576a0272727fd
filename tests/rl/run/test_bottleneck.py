"""The hint at the end of a run, from made-up clocks."""

from __future__ import annotations

from typing import Any

import pytest

from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.run.bottleneck import add_seconds, bottleneck, shares


def clocks(sample_s: float, update_s: float, env: float, act: float) -> dict[str, float]:
    """env, act: shares of the rollout workers' own time."""
    return {
        "time/sample_s": sample_s,
        "time/update_s": update_s,
        "rollout/sample_s": 0.9 * sample_s,  # the rest is the way there and back
        "rollout/env_s": env * 0.9 * sample_s,
        "rollout/act_s": act * 0.9 * sample_s,
    }


def config(**settings: Any) -> AlgorithmConfig:
    return AlgorithmConfig(env="X", **settings)


def test_shares_are_of_the_whole_time() -> None:
    measured = shares(clocks(80.0, 20.0, env=0.75, act=0.25))
    assert measured == pytest.approx({"env stepping": 0.6, "acting": 0.2, "the learner's update": 0.2})


@pytest.mark.parametrize(
    ("num_workers", "num_cpus", "said"),
    [
        (0, 4, "try --num-rollout-workers 2"),
        (1, 4, "try --num-rollout-workers 2"),
        (2, 8, "try --num-rollout-workers 4"),
        (3, 4, "try --num-rollout-workers 4"),
        (4, 4, "on all 4 CPUs: only a faster environment or more CPUs would help"),
        (1, 1, "on all 1 CPUs: only a faster environment or more CPUs would help"),
    ],
)
def test_env_stepping_asks_for_workers_but_never_for_more_than_cpus(num_workers: int, num_cpus: int, said: str) -> None:
    hint = bottleneck(clocks(91.25, 8.75, env=0.8, act=0.1), config(num_rollout_workers=num_workers), num_cpus)
    assert hint.startswith("73 % of the time is env stepping") and hint.endswith(said)


def test_simulators_that_listen_to_one_process_are_not_asked_for_workers() -> None:
    hint = bottleneck(clocks(91.25, 8.75, env=0.8, act=0.1), AlgorithmConfig(env="external", num_rollout_workers=0), 4)
    assert hint == "73 % of the time is env stepping: simulators that step faster would help"


def test_acting_asks_for_more_rows_at_once_then_for_workers() -> None:
    seconds = clocks(100.0, 0.0, env=0.1, act=0.7)
    assert bottleneck(seconds, config(num_envs_per_worker=8), 2) == (
        "70 % of the time is acting: try --num-envs-per-worker 16, which changes what is learnt"
    )
    assert bottleneck(seconds, config(num_envs_per_worker=64), 2).endswith("try --num-rollout-workers 2")
    assert bottleneck(seconds, config(num_envs_per_worker=64, num_rollout_workers=2), 2) == ""


def test_learning_says_that_workers_would_not_help() -> None:
    hint = bottleneck(clocks(10.0, 90.0, env=0.8, act=0.1), config(), 8)
    assert hint.startswith("90 % of the time is the learner's update") and hint.endswith(
        "more rollout workers would not"
    )


def test_where_nothing_stands_out_or_was_measured_it_is_silent() -> None:
    assert bottleneck(clocks(60.0, 40.0, env=0.8, act=0.1), config(), 8) == ""
    assert bottleneck(clocks(0.09, 0.01, env=0.9, act=0.1), config(), 8) == "", "too short to tell"
    assert bottleneck({}, config(), 8) == ""
    assert bottleneck({"time/sample_s": 9.0, "time/update_s": 1.0}, config(), 8) == ""


def test_only_seconds_are_added_up() -> None:
    seconds: dict[str, float] = {}
    for _ in range(2):
        add_seconds(seconds, {"time/update_s": 1.5, "rollout/env_s": 2.0, "rollout/worker_restarts": 1, "eval/x_s": 1})
    assert seconds == {"time/update_s": 3.0, "rollout/env_s": 4.0}


def turns(env: float, act: float, gradient: float, exchange: float, steps_s: float = 60.0) -> dict[str, float]:
    """A3C: means per update, summed over iterations."""
    return {
        "rollout/env_s": env,
        "rollout/act_s": act,
        "time/gradient_s": gradient,
        "time/exchange_s": exchange,
        "time/step_s": steps_s,
    }


@pytest.mark.parametrize(
    "seconds, said",
    [
        (turns(7.0, 1.0, 1.0, 1.0), "70 % of the time is env stepping: try --num-rollout-workers 4"),
        (turns(1.0, 1.0, 7.0, 1.0), "70 % of the time is the gradient: try --num-rollout-workers 4"),
        (
            turns(1.0, 1.0, 1.0, 7.0),
            "70 % of the time is the exchange with the parameter server: try --num-envs-per-worker 16, which makes "
            "fewer gradients",
        ),
        (turns(1.0, 1.0, 1.0, 1.0), ""),
        (turns(7.0, 1.0, 1.0, 1.0, steps_s=2.0), ""),
    ],
)
def test_a3c_workers_turns(seconds: dict[str, float], said: str) -> None:
    assert bottleneck(seconds, config(num_rollout_workers=2), 4) == said


def test_in_the_asynchronous_ring_the_busiest_is_named() -> None:
    """Workers and learner are busy side by side: shares of the round, which need not add up to 1."""
    seconds = {
        "time/round_s": 100.0,
        "time/worker_busy_s": 50.0,
        "time/learner_busy_s": 95.0,
        "rollout/sample_s": 10.0,
        "rollout/env_s": 8.0,
        "rollout/act_s": 2.0,
    }
    assert shares(seconds) == pytest.approx({"env stepping": 0.4, "acting": 0.1, "the learner's update": 0.95})
    assert bottleneck(seconds, config(), 4).startswith("95 % of the time is the learner's update")
    busy = seconds | {"time/worker_busy_s": 98.0, "time/learner_busy_s": 20.0}
    assert bottleneck(busy, config(), 4).startswith("78 % of the time is env stepping: try")


def test_where_the_settings_were_tuned_no_other_network_is_proposed() -> None:
    assert bottleneck(clocks(10.0, 90.0, env=0.8, act=0.1), config(), 8, is_tuned=True) == ""
    stepping = bottleneck(clocks(90.0, 10.0, env=0.8, act=0.1), config(), 8, is_tuned=True)
    assert "num-rollout-workers" in stepping
