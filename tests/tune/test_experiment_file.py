"""Experiment files: what is in them, what runs make of it, and complaints that name file, line and fix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlplat import tune
from rlplat.config import Layer, layer_from_flags, load_yaml, parse_yaml
from rlplat.errors import ConfigError
from rlplat.tune.experiment_file import (
    code_of,
    dump_experiment,
    experiment_of,
    load_experiments,
    refuse_changes,
    settings_of,
)
from rlplat.tune.search import Searcher
from rlplat.tune.spec import ExperimentSpec

FULL = """\
trainable: ppo
config:
  env: CartPole-v1
  learning_rate: {loguniform: [1e-4, 1e-2]}
  policy: {hidden_sizes: {choice: [[32], [64, 64]]}}
metric: episode_return_mean
mode: max
num_samples: 20
searcher: {name: tpe, n_startup_trials: 5}
scheduler: {name: asha, max_progress: 100000}
stop: {env_steps: 100_000}
resources: {cpu: 1}
max_concurrent: 2
seed: 1
"""
RUNS = """\
trainable: ppo
config: {env: CartPole-v1, learning_rate: {loguniform: [1e-4, 1e-2]}, policy: {hidden_sizes: [64], core: none}}
scheduler: {name: asha, max_progress: 1000}
stop: {env_steps: 1000, wall_s: 60}
seed: 10
runs:
  plain:
  wide:
    config.policy.hidden_sizes: [256]
    repeats: 3
  halving:
    config: {learning_rate: {uniform: [0, 1]}}
    scheduler: {name: hyperband, eta: 4}
    stop: {wall_s: null, env_steps: 99}
  longer: {scheduler: {max_progress: 5000}, seed: 3}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, *settings: Layer, only: tuple[str, ...] = ()) -> list[ExperimentSpec]:
    Path("exp.yaml").write_text(text)
    return load_experiments("exp.yaml", settings, only)


def complaint(text: str, *settings: Layer, only: tuple[str, ...] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, *settings, only=only)
    return str(caught.value)


def test_a_file_is_an_experiment() -> None:
    (spec,) = load(FULL)
    assert spec == ExperimentSpec(
        trainable="ppo",
        config={
            "env": "CartPole-v1",
            "learning_rate": {"loguniform": [1e-4, 1e-2]},
            "policy": {"hidden_sizes": {"choice": [[32], [64, 64]]}},
        },
        metric=("episode_return_mean",),
        mode=("max",),
        num_samples=20,
        stop={"env_steps": 100_000},
        resources={"cpu": 1},
        searcher=Searcher("tpe", {"n_startup_trials": 5}),
        scheduler={"name": "asha", "max_progress": 100_000},
        max_concurrent=2,
        seed=1,
        name="exp",
        out=Path("runs/exp"),
    )
    assert spec.where("config.learning_rate") == " in exp.yaml:4"
    assert spec.where("config.policy.hidden_sizes.choice") == " in exp.yaml:5"
    assert spec.where("resources") == " in exp.yaml:12" and spec.where("storage") == ""


def test_what_is_not_said_has_the_defaults_of_an_experiment() -> None:
    (spec,) = load("trainable: ppo\nname: mine\n")
    assert spec == ExperimentSpec(trainable="ppo", name="mine", out=Path("runs/mine"))
    assert load("trainable: ppo\nmetric: [a, b]\nmode: [min, max]\n")[0].mode == ("min", "max")
    assert load("trainable: ppo\nout: here\n")[0].out == Path("here")


def test_runs_change_the_base() -> None:
    specs = {spec.name: spec for spec in load(RUNS)}
    assert list(specs) == ["plain", "wide-1", "wide-2", "wide-3", "halving", "longer"]
    assert {str(spec.out) for spec in specs.values()} == {f"runs/exp/{name}" for name in specs}
    plain = specs["plain"]
    assert plain.config["policy"] == {"hidden_sizes": [64], "core": "none"}
    assert specs["wide-2"].config["policy"] == {"hidden_sizes": [256], "core": "none"}
    assert [specs[name].seed for name in specs] == [10, 10, 11, 12, 10, 3]
    # a domain is replaced, not mixed with the base's; so is a scheduler by another one; null takes away
    assert specs["halving"].config["learning_rate"] == {"uniform": [0, 1]}
    assert specs["halving"].scheduler == {"name": "hyperband", "eta": 4}
    assert specs["halving"].stop == {"env_steps": 99} and plain.stop == {"env_steps": 1000, "wall_s": 60}
    assert specs["longer"].scheduler == {"name": "asha", "max_progress": 5000}
    assert plain.scheduler == {"name": "asha", "max_progress": 1000}
    # complaints about a run point to where it was written
    assert specs["wide-1"].where("config.policy.hidden_sizes") == " in exp.yaml:9"
    assert specs["halving"].where("config.learning_rate") == " in exp.yaml:12"
    assert plain.where("config.learning_rate") == " in exp.yaml:2"


def test_only_takes_some_of_them() -> None:
    assert [spec.name for spec in load(RUNS, only=("wide",))] == ["wide-1", "wide-2", "wide-3"]
    assert [spec.name for spec in load(RUNS, only=("wide-2", "plain"))] == ["plain", "wide-2"]
    assert "--only wid: exp.yaml has no such run; did you mean 'wide'?" in complaint(RUNS, only=("wid",))
    assert "has no `runs`" in complaint(FULL, only=("wide",))


def test_flags_win_and_what_is_not_a_key_of_the_experiment_is_the_configs() -> None:
    flags = Layer(
        {"num_samples": 3, "learning_rate": 0.5, "policy": {"core": "lstm"}, "config": {"seed": 4}},
        {("num_samples",): "--num-samples", ("learning_rate",): "--set learning_rate"},
    )
    (spec,) = load(FULL, flags)
    assert spec.num_samples == 3 and spec.seed == 1
    assert spec.config == {
        "env": "CartPole-v1",
        "learning_rate": 0.5,
        "policy": {"hidden_sizes": {"choice": [[32], [64, 64]]}, "core": "lstm"},
        "seed": 4,
    }
    assert spec.where("config.learning_rate") == " (from --set learning_rate)"
    assert [spec.num_samples for spec in load(RUNS, flags)] == [3] * 6
    (spec,) = load(FULL, Layer({"learning_rate": {"uniform": [0, 1]}}))
    assert spec.config["learning_rate"] == {"uniform": [0, 1]}


def test_a_flag_that_looks_like_a_key_of_the_experiment_is_no_silent_new_key_of_the_config() -> None:
    flags = Layer({"num_sampels": 3}, {("num_sampels",): "--set num_sampels"})
    said = complaint(FULL, flags)
    assert "unknown key 'num_sampels' (from --set num_sampels); did you mean 'num_samples'?" in said
    assert "--set config.num_sampels=" in said
    text = "trainable: ./a.py:f\nconfig: {num_sampels: 1}\n"
    assert load(text, flags)[0].config == {"num_sampels": 3}  # the config has it: no mistake


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num_samples: 3\n", "which trainable? Write `trainable: ppo`"),
        ("trianable: ppo\n", "unknown key 'trianable' in exp.yaml:1; did you mean 'trainable'?"),
        ("trainable: ppo\nnum_sampels: 3\n", "unknown key 'num_sampels' in exp.yaml:2; did you mean 'num_samples'?"),
        ("trainable: ppo\n\nnum_samples: 0\n", "'num_samples' in exp.yaml:3: 0 (must be a whole number from 1"),
        ("trainable: ppo\nstop: {env_steps: soon}\n", "bad value for 'stop.env_steps' in exp.yaml:2: 'soon'"),
        ("trainable: ppo\nsearcher: {n_startup_trials: 5}\n", "{'n_startup_trials': 5} (it has no name"),
        ("trainable: ppo\nresources: {cpu: true}\n", "bad value for 'resources' in exp.yaml:2: {'cpu': True}"),
        ("trainable: ppo\nconfig: 3\n", "bad value for 'config' in exp.yaml:2: 3"),
        ("trainable: ppo\nseed: 1\nseed: 2\n", "exp.yaml:3: key 'seed' was already set in line 2"),
        ("trainable: !!python/object/apply:os.system [ls]\n", "exp.yaml:1: the tag 'tag:yaml.org,2002:python/object"),
        ("trainable: ppo\nconfig: &a {x: *a}\n", "nested deeper than 32 levels"),
        ("trainable: ppo\nconfig: " + "{a: " * 40 + "1" + "}" * 40, "exp.yaml:2: nested deeper than 32 levels"),
        ("trainable: [ppo\n", "exp.yaml:2: not valid YAML"),
        ("- trainable: ppo\n", "exp.yaml:1: a config file holds `key: value` lines"),
        ("trainable: __main__:train\n", "was defined in a Python program: go on there"),
        ("env: CartPole-v1\n", "is the config of one training run, not an experiment: rlplat train exp.yaml"),
        ("a: {run: PPO, env: X, config: {lr: 1}}\n", "of RLlib's files: put 'a' and its siblings below `runs:`"),
        ("trainable: ppo\nruns: {}\n", "'runs' in exp.yaml:2 holds experiments by name"),
        ("trainable: ppo\nruns: [a]\n", "'runs' in exp.yaml:2 holds experiments by name"),
        ("trainable: ppo\nruns:\n  a: 3\n", "run 'a': exp.yaml:3: a run holds the keys that it changes, not 3"),
        ("trainable: ppo\nruns:\n  a:\n    seeds: 1\n", "unknown key 'seeds' in exp.yaml:4; did you mean 'seed'?"),
        ("trainable: ppo\nruns:\n  a:\n    repeats: 0\n", "'repeats' in exp.yaml:4 is a whole number from 1"),
        ("trainable: ppo\nruns:\n  a:\n    repeats: x\n", "'repeats' in exp.yaml:4 is a whole number from 1"),
        ("trainable: ppo\nruns:\n  a:\n    name: b\n", "'name' in exp.yaml:4: a run is called by its key, 'a'"),
        ("trainable: ppo\nruns:\n  a: {runs: {b: {}}}\n", "exp.yaml:3: runs do not nest"),
        ("trainable: ppo\nruns:\n  a: {repeats: 2}\n  a-1: {}\n", "two experiments would be called"),
        ("trainable: ppo\nruns:\n  a: {config..b: 2}\n", "a key is empty"),
        ("trainable: ppo\nruns:\n  a: {stop.env_steps: x}\n  b: {sed: 1}\n", "'b': unknown key 'sed' in exp.yaml:4"),
        ("trainable: ppo\nruns:\n  a: {repeats: 1000}\n  b: {repeats: 1000}\n", "more than 1,000 experiments"),
    ],
)  # fmt: skip
def test_bad_files_are_one_message_that_names_the_place(text: str, said: str) -> None:
    assert said in complaint(text)


def test_all_complaints_of_a_file_come_at_once() -> None:
    said = complaint("trainable: ppo\nnum_samples: 0\nseed: -1\nstop: {a: b}\n")
    assert [line.partition(":")[0] for line in said.splitlines()] == [
        "bad value for 'num_samples' in exp.yaml",
        "bad value for 'seed' in exp.yaml",
        "bad value for 'stop.a' in exp.yaml",
    ]


def test_what_is_kept_of_an_experiment_is_the_experiment(here: Path) -> None:
    (spec,) = load(FULL + "storage: postgresql://me:secret@host/tuning\nmax_silence_s: 2.5\n")
    text = dump_experiment(spec)
    assert "secret" not in text and "me@host" in text and "out:" not in text
    Path("exp/kept").mkdir(parents=True)
    Path("exp/kept/experiment.yaml").write_text(text)
    (again,) = load_experiments("exp/kept/experiment.yaml", [Layer({"out": "runs/exp", "storage": spec.storage})])
    assert again == spec


def compute(config: dict[str, int]) -> int:
    return config["a"]


def test_python_domains_are_kept_as_yaml() -> None:
    tree = {
        "a": tune.uniform(0, 1),
        "b": {"c": tune.grid([1, {"d": tune.quniform(0, 1, 0.5)}])},
        "e": tune.sample_from(compute),
        "f": (1, 2),
    }
    spec = ExperimentSpec(trainable=compute, config=tree, metric="m", mode="min", name="x")
    kept = parse_yaml(dump_experiment(spec), "kept").values
    assert kept["config"] == {
        "a": {"uniform": [0, 1]},
        "b": {"c": {"grid": [1, {"d": {"quniform": [0, 1, 0.5]}}]}},
        "e": {"sample_from": f"{__name__}:compute"},
        "f": [1, 2],
    }
    assert kept["trainable"] == f"{__name__}:compute" and kept["metric"] == "m"
    assert experiment_of(Layer(kept)).config == kept["config"]


def test_numbers_of_numpy_are_kept_as_numbers() -> None:
    tree = {
        "a": tune.uniform(np.float32(0.5), np.float64(1)),
        "b": tune.grid(np.linspace(0, 1, 3)),
        "c": tune.randint(np.int64(1), np.int32(4)),
        "d": {"e": np.arange(2), "f": np.float32(2)},
    }
    spec = ExperimentSpec(trainable=compute, config=tree, metric="m", stop={"m": np.float64(3)}, name="x").checked()
    assert parse_yaml(dump_experiment(spec), "kept").values["config"] == {
        "a": {"uniform": [0.5, 1.0]},
        "b": {"grid": [0.0, 0.5, 1.0]},
        "c": {"randint": [1, 4]},
        "d": {"e": [0, 1], "f": 2.0},
    }


def test_a_resumed_experiment_is_the_one_that_was_begun() -> None:
    (spec,) = load(FULL)
    Path("experiment.yaml").write_text(dump_experiment(spec))
    (more,) = load(FULL.replace("num_samples: 20", "num_samples: 40").replace("max_concurrent: 2", ""))
    refuse_changes(more, load_yaml(Path("experiment.yaml")).values, "here")
    for old, new, said in (
        (
            "[1e-4, 1e-2]",
            "[1e-4, 1e-3]",
            "'config.learning_rate' was {'loguniform': [0.0001, 0.01]}, and is {'loguni",
        ),
        ("  env: CartPole-v1\n", "", "'config.env' was 'CartPole-v1', and is not set now"),
        ("seed: 1", "seed: 2", "'seed' was 1, and is 2 now in exp.yaml:14"),
        ("100_000", "100_001", "'stop.env_steps' was 100000.0, and is 100001.0 now"),
        ("mode: max", "mode: min", "'mode' was 'max', and is 'min' now in exp.yaml:7"),
        ("name: tpe", "name: gp", "'searcher.name' was 'tpe', and is 'gp' now"),
    ):
        with pytest.raises(ConfigError) as caught:
            refuse_changes(load(FULL.replace(old, new))[0], load_yaml(Path("experiment.yaml")).values, "here")
        assert said in str(caught.value) and "--out DIR" in str(caught.value)


def test_an_experiment_knows_its_files_in_another_folder_and_in_a_moved_project(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = here / "ours", here / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        (folder / "mine.py").write_text(f"# of {folder}\ndef train(config): return 1.0\nclass Env: ...\n")
    monkeypatch.chdir(ours)
    config = "{env: {choice: [./mine.py:Env, X-v0]}, note: ./mine.py:Env}"
    text = f"trainable: ./mine.py:train\nmetric: m\nout: runs/a\nconfig: {config}\n"
    (spec,) = load(text)
    saved = ours / "runs/a/experiment.yaml"
    saved.parent.mkdir(parents=True)
    saved.write_text(dump_experiment(spec) + code_of(spec))
    monkeypatch.chdir(theirs)
    (again,) = load_experiments(saved, [layer_from_flags([("out", str(saved.parent))])])
    assert again.trainable == f"{ours}/mine.py:train"
    assert again.config == {"env": {"choice": [f"{ours}/mine.py:Env", "X-v0"]}, "note": "./mine.py:Env"}
    refuse_changes(again, load_yaml(saved).values, "here")
    moved = ours.rename(here / "moved")
    (again,) = load_experiments(moved / "runs/a/experiment.yaml", [layer_from_flags([("out", f"{moved}/runs/a")])])
    assert again.trainable == f"{moved}/mine.py:train" and not caplog.records
    refuse_changes(again, load_yaml(moved / "runs/a/experiment.yaml").values, "here")
    begun = {"trainable": f"{ours}/mine.py:train", "config": spec.config, "metric": "m"}
    refuse_changes(again.model_copy(update={"config": spec.config}), settings_of(spec) | begun, "the study")
    (moved / "mine.py").write_text("def train(config): return 2.0\n")
    load_experiments(moved / "runs/a/experiment.yaml")
    assert [record.getMessage() for record in caplog.records] == [
        f"warning: {moved}/mine.py has changed since the run began"
    ]
