"""Numbers of infos: the same from every kind of loop, each episode with its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rlplat.errors import EnvError, UsageError
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.envs.check import check_env, preflight
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.vector_env import VectorEnv
from rlplat.rl.envs.watchdog import NO_LIMITS
from rlplat.rl.info_metrics import InfoMetrics, number_of
from rlplat.rl.interfaces import Episode
from rlplat.rl.run.evaluation import evaluation_metrics
from rlplat.rl.sampling.tally import RunTally
from tests.rl.info_envs import ASKED, OF_EVEN, OF_ODD, TellingEnv

TELLING = "tests.rl.info_envs:TellingEnv"


def told(env: VectorEnv, steps: int = 12) -> list[dict[str, float]]:
    """Of the first environment's first two episodes."""
    env.reset()
    episodes = []
    for _ in range(steps):
        env.step(np.zeros(env.num_envs, np.int64))
        episodes += env.pop_episodes()[:1]
    env.close()
    return [dict(episode.metrics) for episode in episodes[:2]]


class OldForm(SyncVectorEnv):
    """final_info as it was before gymnasium 1.0: an array of dicts, None where nothing ended."""

    def step(self, actions: Any) -> Any:
        *others, info = super().step(actions)
        if final := info.pop("final_info", None):
            rows = np.full(self.num_envs, None, object)
            for b in np.flatnonzero(final["_fuel"]):
                row = {key: final[key][b] for key in final if key[0] != "_" and key not in ("metrics", "inner")}
                row = {key: value for key, value in row.items() if final[f"_{key}"][b]}
                row["metrics"] = {"height": final["metrics"]["height"][b], "deep": {"x": 6}}
                row["inner"] = {"r": final["inner"]["r"][b]}
                rows[b] = row
            info["final_info"] = rows
        return *others, info


@pytest.mark.parametrize("way", ["sync", "async", "SAME_STEP", "NEXT_STEP", "DISABLED", "OldForm", "AsyncVectorEnv"])
def test_every_loop_tells_the_same(way: str) -> None:
    if way in ("sync", "async"):
        env = make_vector_env(TELLING, 2, vectorization=way, env_metrics=ASKED)  # type: ignore[arg-type]
    else:
        kind = {"OldForm": OldForm, "AsyncVectorEnv": AsyncVectorEnv}.get(way, SyncVectorEnv)
        mode = AutoresetMode[way] if way.isupper() else AutoresetMode.SAME_STEP
        env = VectorEnv(kind([TellingEnv] * 2, autoreset_mode=mode), "T", limits=NO_LIMITS, env_metrics=ASKED)
    assert told(env) == [OF_EVEN, OF_ODD], way


def test_without_a_wish_what_is_under_metrics_is_told() -> None:
    assert told(make_vector_env(TELLING, 1)) == [{"height": 3.0, "deep/x": 6.0}] * 2
    raw = SyncVectorEnv([TellingEnv], autoreset_mode=AutoresetMode.SAME_STEP)
    assert told(VectorEnv(raw, "T", limits=NO_LIMITS)) == [{"height": 3.0, "deep/x": 6.0}] * 2
    assert told(make_vector_env("CartPole-v1", 1), 400) == [{}, {}]


def test_a_vector_environment_given_as_it_is_tells_its_numbers() -> None:
    def make(num_envs: int) -> SyncVectorEnv:
        return SyncVectorEnv([TellingEnv] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    assert told(make_vector_env(make, 2, env_metrics=ASKED)) == [OF_EVEN, OF_ODD]


def test_a_number_under_metrics_can_be_summed_by_name() -> None:
    assert told(make_vector_env(TELLING, 1, env_metrics=["height:sum"])) == [{"height": 6.0, "deep/x": 6.0}] * 2


def test_a_restored_environment_has_what_its_episode_had_told() -> None:
    with (
        make_vector_env(TELLING, 1, keep_state=True, env_metrics=ASKED) as one,
        make_vector_env(TELLING, 1, keep_state=True, env_metrics=ASKED) as other,
    ):
        one.reset()
        for _ in range(2):
            one.step(np.zeros(1, np.int64))
        other.set_state(one.get_state())
        for env in (one, other):
            env.step(np.zeros(1, np.int64))
        assert one.pop_episodes()[0].metrics["fuel"] == other.pop_episodes()[0].metrics["fuel"] == 6.0


@pytest.mark.parametrize("way", ["sync", "async", "SAME_STEP"])
def test_what_is_no_number_is_refused_by_name(way: str) -> None:
    if way == "SAME_STEP":
        raw = SyncVectorEnv([lambda: TellingEnv("yes")], autoreset_mode=AutoresetMode.SAME_STEP)
        env = VectorEnv(raw, "T", limits=NO_LIMITS, env_metrics=ASKED)
    else:
        kwargs = {"success": "yes"}
        env = make_vector_env(TELLING, 1, env_kwargs=kwargs, vectorization=way, env_metrics=ASKED)  # type: ignore[arg-type]
    with pytest.raises(EnvError, match=r"info\['success'\] is 'yes' \(str\), but env_metrics names it"):
        told(env)
    env.close()


def test_the_pre_flight_refuses_it_before_anything_starts() -> None:
    with pytest.raises(UsageError, match=r"info\['success'\] is 'yes'"):
        preflight(AlgorithmConfig(env=TELLING, env_kwargs={"success": "yes"}, env_metrics=["success"]))
    preflight(AlgorithmConfig(env=TELLING, env_kwargs={"success": "yes"}))
    assert "numbers in info, which env_metrics can name: deep/x, fuel, height, inner/r" in str(
        check_env(TELLING, steps=30)
    )


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (np.bool_(False), 0.0),
        (3, 3.0),
        (np.float32(0.5), 0.5),
        (np.array(2), 2.0),
        (np.array([2.0]), 2.0),
        (10**400, math.inf),
        ("3", None),
        (np.zeros(2), None),
        ([], None),
        ({}, None),
        (2j, None),
        (object(), None),
    ],
)
def test_what_a_number_is(value: Any, number: float | None) -> None:
    assert number_of(value) == number


def test_infinities_and_none_count_as_not_told() -> None:
    metrics = InfoMetrics(["a", "b:sum"])
    for info in ({"a": 1, "b": 1}, {"a": math.inf, "b": math.nan}, {"a": None, "b": None}, {"b": 2}):
        metrics.add(info)
    assert metrics.pop() == {"a": 1.0, "b": 3.0}


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        (["success", "fuel:sum"], ["success", "fuel:sum"]),
        ("success, fuel:sum", ["success", "fuel:sum"]),
        (
            [{"name": "fuel", "reduce": "sum"}, {"name": "a"}, {"b": "sum"}, "c:last"],
            ["fuel:sum", "a", "b:sum", "c"],
        ),
        ({"fuel": "sum", "a": "last"}, ["fuel:sum", "a"]),
    ],
)
def test_ways_to_write_it(given: Any, spelled: list[str]) -> None:
    assert AlgorithmConfig(env="X", env_metrics=given).env_metrics == spelled


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["fuel:max"], "'fuel' is reduced by last or sum, not by 'max'"),
        (["a", "a:sum"], "'a' is named twice"),
        ([3], "3 names no number of info"),
        ([":sum"], "has no name"),
        (5, "5 is no list of names"),
    ],
)
def test_bad_names_are_refused(given: Any, said: str) -> None:
    with pytest.raises(Exception, match=said):
        AlgorithmConfig(env="X", env_metrics=given)


def test_means_are_over_the_episodes_that_have_it() -> None:
    episodes = [Episode(1.0, 1, {"a": 1.0}), Episode(1.0, 1, {"a": 0.0, "b": 5.0}), Episode(1.0, 1)]
    tally = RunTally()
    tally.count(3, episodes)
    again = RunTally()
    again.set_state(tally.get_state())
    for each in (tally, again):
        assert each.result({}).metrics == {"env/a_mean": 0.5, "env/b_mean": 5.0}
    figures = evaluation_metrics(episodes)
    assert (figures["eval/env/a_mean"], figures["eval/env/b_mean"]) == (0.5, 5.0)
