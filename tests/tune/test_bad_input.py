"""What people get wrong in an experiment: one message that names the thing and the fix, before anything is on the disk
or runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from rlplat import tune
from rlplat.errors import ConfigError, InfeasibleResources
from rlplat.tune.search import Searcher
from rlplat.tune.spec import ExperimentSpec, check_demand


def train(config: dict[str, Any], report: Any) -> None:
    report(accuracy=config["alpha"])


def returning(config: dict[str, Any]) -> float:
    return config["alpha"]


class Steps:
    def __init__(self, config: dict[str, Any]) -> None:
        pass

    def step(self) -> dict[str, float]:
        return {"accuracy": 1.0}


SPEC = ExperimentSpec(trainable=train, config={"alpha": tune.uniform(0, 1)}, metric="accuracy", name="bad", out="exp")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing that is checked leaves anything behind."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert list(tmp_path.glob("exp*")) + list(tmp_path.glob("runs")) == []


def spec_with(origins: dict[str, str] | None = None, **changes: Any) -> ExperimentSpec:
    return ExperimentSpec(**{**dict(SPEC), **changes}).written_at(origins or {})


def complaint(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        spec_with(**changes).checked()
    return str(caught.value)


def test_what_is_right_is_settled() -> None:
    spec = SPEC.checked()
    assert (spec.metric, spec.mode, spec.name, spec.out) == (("accuracy",), ("max",), "bad", Path("exp"))
    assert spec.checked() is spec
    spec = spec_with(name="", out=Path()).checked()
    assert spec.name == "train" and str(spec.out).startswith("runs/train-20")
    assert spec_with(out=Path("~/exp")).checked().out == Path.home() / "exp"
    assert spec_with(metric=("a", "b")).checked().mode == ("max", "max")


def test_an_algorithm_has_a_metric_and_its_schedules_end_with_the_experiment() -> None:
    pytest.importorskip("torch")
    spec = ExperimentSpec(trainable="ppo", config={"env": "CartPole-v1"}, stop={"env_steps": 5000}).checked()
    assert spec.metric == ("episode_return_mean",) and spec.name == "ppo"
    assert spec.config == {"env": "CartPole-v1", "stop": {"env_steps": 5000}}
    config = {"env": "CartPole-v1", "stop": {"env_steps": 7}}
    kept = ExperimentSpec(**{**dict(spec), "config": config}).checked()
    assert kept.config["stop"] == {"env_steps": 7}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_samples": 0}, "'num_samples' (from argument num_samples): 0 (must be a whole number from 1"),
        ({"num_samples": True}, "'num_samples' (from argument num_samples): true (must be a whole number"),
        ({"max_concurrent": 0}, "'max_concurrent' (from argument max_concurrent): 0 (must be a whole number from 1"),
        ({"seeds_per_trial": 0}, "'seeds_per_trial' (from argument seeds_per_trial): 0 (must be a whole number from 1"),
        ({"max_failures": -1}, "'max_failures' (from argument max_failures): -1 (must be a whole number from 0"),
        ({"seed": -1}, "'seed' (from argument seed): -1 (must be a whole number from 0"),
        ({"max_silence_s": 0}, "'max_silence_s' (from argument max_silence_s): 0 (must be a number above 0"),
        ({"time_budget_s": math.nan}, "'time_budget_s' (from argument time_budget_s): nan (must be a number above 0"),
        ({"stop": {"accuracy": "high"}}, "'stop.accuracy' (from argument stop): 'high' (must be a number)"),
        ({"stop": {"accuracy": math.inf}}, "'stop.accuracy' (from argument stop): inf (must be a number)"),
        ({"resources": {"cpu": -1}}, "'resources.cpu' (from argument resources): -1 (must be a number of at least 0)"),
        ({"resources": {"gpu": 1.5}}, "{'gpu': 1.5} (gpu is a share of one GPU or a whole number)"),
        ({"resources": {"num_cpus": 1}}, "unknown resource 'num_cpus'; did you mean 'cpu'?"),
        ({"resources": {"GPU": 1}}, "unknown resource 'GPU'; did you mean 'gpu'?"),
        ({"metric": ()}, "which metric is to be the best?"),
        ({"metric": ("a", "a")}, "metric: 'a' is there twice"),
        ({"mode": ("maximum",)}, "'mode' (from argument mode): ('maximum',) (must be max or min"),
        ({"metric": ("a", "b"), "mode": ("max",)}, "1 mode (max) for 2 metrics (a, b): give one for each"),
        ({"mode": ("max", "min")}, "2 modes (max, min) for 1 metric (accuracy): give one for each"),
        ({"name": "a/b"}, "name becomes a directory"),
        ({"name": ".."}, "name becomes a directory"),
        ({"config": {"alpha": tune.uniform(1, 1)}}, "'alpha': uniform: the range is empty: low (1) must be below"),
        (
            {"config": {name: tune.grid(range(100)) for name in "abc"}, "num_samples": 2},
            "the grid a (100) x b (100) x c (100) has 1,000,000 points; with num_samples=2 there are 2,000,000 trials",
        ),
        ({"searcher": Searcher("bayes")}, "no searcher 'bayes'"),
        ({"searcher": Searcher("tpe", points={"alpha": 0.3})}, "bad value for 'points': {'alpha': 0.3}"),
        ({"searcher": Searcher("tpe", warm_start=[3])}, "bad value for 'warm_start': [3]"),
        ({"scheduler": "ahsa"}, "did you mean 'asha'?"),
        ({"scheduler": 3}, "scheduler must be a name"),
        ({"trainable": "pp"}, "unknown algorithm 'pp'; did you mean 'ppo'?"),
        ({"trainable": "./nothing.py:train"}, "there is no file nothing.py"),
        ({"trainable": "os:nothing"}, "'os' has no 'nothing'"),
        ({"trainable": 3}, "3"),
        ({"trainable": lambda: None}, "config"),
        ({"stop": lambda trial, result: True}, "stop is a dict of metrics and what is to be reached, {'step': 100}"),
        ({"resources": {"cpu": 0}}, "{'cpu': 0} (a trial takes at least a share of a CPU, as in {cpu: 0.5})"),
        ({"storage": "sqlite:///x.db"}, "storage: SQLite locks up while several processes write; omit storage"),
        ({"storage": "mysql://host/x"}, "postgresql://"),
        ({"storage": "postgresql://host"}, "postgresql://user@host/database"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_message(changes: dict[str, Any], said: str) -> None:
    assert said in complaint(**changes)


def test_a_searcher_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"searcher is a name, a dict with a name, or a tune\.Searcher"):
        tune.run(train, SPEC.config, metric="accuracy", searcher=Searcher)  # type: ignore[arg-type]


def test_names_of_ray_say_what_they_are_here() -> None:
    with pytest.raises(ImportError, match=r"no 'grid_search'; here it is tune\.grid"):
        tune.grid_search([1, 2])
    with pytest.raises(ImportError, match=r"no 'with_resources'; here it is tune\.run"):
        exec("from rlplat.tune import with_resources")
    with pytest.raises(AttributeError, match=r"no attribute 'gird'$"):
        tune.gird([1, 2])


def test_complaints_about_a_file_say_where() -> None:
    origins = {"scheduler": "exp.yaml:3", "searcher.name": "exp.yaml:4", "searcher": "exp.yaml:4"}
    origins |= {"config.alpha": "exp.yaml:5", "metric": "--set metric", "metric.x": ""}
    assert complaint(origins=origins, scheduler="ahsa").startswith("exp.yaml:3: unknown trial scheduler 'ahsa'")
    assert complaint(origins=origins, searcher=Searcher("tp")).startswith("exp.yaml:4: no searcher 'tp'")
    assert "'alpha' in exp.yaml:5: " in complaint(origins=origins, config={"alpha": tune.uniform(2, 1)})
    assert complaint(origins=origins, metric=("a", "a")).startswith("metric (from --set metric): ")


def test_a_scheduler_that_pauses_is_not_for_a_trainable_that_cannot_be_saved() -> None:
    for trainable in (returning, Steps):
        said = complaint(trainable=trainable, scheduler={"name": "hyperband", "max_progress": 9})
        assert "cannot be saved" in said and "take asha or median" in said


def test_two_objectives_have_no_single_score_to_judge_by() -> None:
    said = complaint(metric=("a", "b"), scheduler={"name": "asha", "max_progress": 9})
    assert "scheduler asha judges by one metric, and there are 2 (a, b)" in said


def test_what_cannot_travel_to_another_process_is_named() -> None:
    lock = Lock()

    def holds_a_lock(config: dict[str, Any], report: Any) -> None:
        with lock:
            report(accuracy=1)

    assert "lock" in complaint(trainable=holds_a_lock)


def test_the_config_of_an_algorithm_is_tried_before_anything_starts() -> None:
    pytest.importorskip("torch")
    base = {"env": "CartPole-v1"}
    origins = {"config.learning_rte": "exp.yaml:7", "config.discount": "exp.yaml:8"}
    said = complaint(trainable="ppo", origins=origins, config={**base, "learning_rte": tune.uniform(0, 1)})
    assert "unknown key 'learning_rte' in exp.yaml:7; did you mean 'learning_rate'?" in said
    said = complaint(trainable="ppo", origins=origins, config={**base, "discount": tune.uniform(0.9, 1.5)})
    assert "bad value for 'discount' in exp.yaml:8: 1.5" in said or "1.4999" in said
    said = complaint(trainable="ppo", config={**base, "discount": tune.normal(0.95, 0.05)})
    assert "bad value for 'discount'" in said and "1.1" in said, "what is drawn now and then"
    ExperimentSpec(trainable="ppo", config={**base, "discount": tune.normal(0.95, 0.01)}).checked()
    assert "'env' is not set" in complaint(trainable="ppo", config={})


@pytest.mark.parametrize(
    ("demand", "changes", "said"),
    [
        ({"CPU": 4.0}, {"resources": {"cpu": 4}},
         "one trial needs cpu 4 in exp.yaml:9, and the whole cluster has CPU 2; lower resources.cpu"),
        ({"CPU": 3.0}, {}, "one trial needs cpu 3, and the whole cluster has CPU 2; lower config.num_rollout_workers"),
        ({"GPU": 1.0}, {"resources": {"gpu": 1}}, "needs gpu 1, and the whole cluster has CPU 2; lower resources.gpu"),
        ({"tpu": 1.0}, {"resources": {"tpu": 1}},
         "needs tpu 1, and the whole cluster has CPU 2, tpus 4; there is no 'tpu'; did you mean 'tpus'?"),
    ],
)  # fmt: skip
def test_a_demand_larger_than_the_cluster_names_what_to_lower(
    demand: dict[str, float], changes: dict[str, Any], said: str
) -> None:
    spec = spec_with({"resources.cpu": "exp.yaml:9"} if changes else {}, **changes)
    cluster = {"CPU": 2.0, "GPU": 0.0, **({"tpus": 4.0} if "tpu" in demand else {})}
    check_demand({"CPU": 2.0}, cluster, spec)
    with pytest.raises(InfeasibleResources) as caught:
        check_demand(demand, cluster, spec)
    assert said in str(caught.value)


def test_to_begin_or_resume_needs_a_directory() -> None:
    with pytest.raises(ConfigError, match=r"resume='auto' needs out="):
        tune.run(lambda config: 1.0, {}, metric="x", resume="auto")
