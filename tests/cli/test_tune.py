"""`rlplat tune` as a command: files, flags, resuming, exit codes; and bad input, which leaves everything as it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlplat.cli import main
from rlplat.config import load_yaml
from rlplat.errors import MissingExtra
from tests.patience import soon
from tests.tune.postgres import postgres_server

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
TRIAL = """\
import os, pathlib, time

def train(config, report):
    for step in range(1, 11):
        report(accuracy=config["alpha"] * step / (config["beta"] + step))

def waiting(config, report):
    for step in range(1, 4):
        report(accuracy=config["alpha"] * step)
        while step == 2 and not pathlib.Path("go").exists():
            time.sleep(0.01)

def without_number(config, report):
    report(accuracy="high")

def nothing(config, report):
    pass

def nan(config, report):
    report(accuracy=float("nan"))

def raises(config, report):
    raise ValueError("no such alpha")

def last_raises(config, report):
    report(accuracy=config["alpha"])
    if config["alpha"] > 0.5:
        raise ValueError("too large")

def always_raises(config, report):
    report(accuracy=config["alpha"])
    raise ValueError("never")

def sometimes_nan(config, report):
    report(accuracy=config["alpha"] if config["alpha"] < 0.5 else float("nan"))

def returning(config):
    return {"accuracy": config["alpha"]}
"""
SEED_EXAMPLE = """\
trainable: ./my_trial.py:train
config:
  alpha: {grid: [0.2, 0.4, 0.6]}
  beta: {grid: [1, 2]}
metric: accuracy
mode: max
stop: {accuracy: 0.5}
resources: {cpu: 1}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_trial.py").write_text(TRIAL)
    (tmp_path / "seed.yaml").write_text(SEED_EXAMPLE)
    return tmp_path


def tune(*arguments: str) -> int:
    return main(["tune", *arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment that has ended."""
    place = tmp_path_factory.mktemp("finished")
    (place / "my_trial.py").write_text(TRIAL)
    (place / "seed.yaml").write_text(SEED_EXAMPLE)
    command = [sys.executable, "-m", "rlplat.cli", "tune", "seed.yaml", "--out", "kept", "--set", "alpha=0.2"]
    subprocess.run(command, cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    return place / "kept"


def files_of(directory: Path) -> dict[str, bytes]:
    """Every file with what is in it, but for what Python has compiled."""
    files = [path for path in sorted(directory.glob("**/*")) if path.is_file() and path.suffix != ".pyc"]
    return {str(path): path.read_bytes() for path in files}


def results(directory: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(directory) / "results.jsonl").read_text().splitlines()]


def test_the_seed_example_ends_with_the_best_config_and_where_everything_is(here: Path, capsys: Any) -> None:
    assert tune("seed.yaml") == 0
    said = capsys.readouterr().out
    assert "seed: 6 trials (6 complete)\nbest: trial 4, accuracy 0.5\n  alpha: 0.6\n  beta: 1\n" in said
    assert "the best config is in runs/seed/best.yaml" in said and "rlplat tune show runs/seed" in said
    assert load_yaml("runs/seed/best.yaml").values == {"alpha": 0.6, "beta": 1}
    assert load_yaml("runs/seed/experiment.yaml").values["config"]["alpha"] == {"grid": [0.2, 0.4, 0.6]}
    reports = [line for line in results("runs/seed") if "metrics" in line]
    assert max(line["metrics"]["accuracy"] for line in reports if line["trial"] == 4) == 0.5
    assert len([line for line in reports if line["trial"] == 4]) == 5  # 0.5 is reached, and the trial ended there


def test_flags_change_the_experiment_and_json_is_one_object(capsys: Any) -> None:
    flags = (
        "--set",
        "beta=1",
        "alpha={uniform: [0, 1]}",
        "seed=3",
        "--num-samples",
        "4",
        "--max-concurrent",
        "1",
    )
    assert tune("seed.yaml", *flags, "--out", "there", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["directory"] == "there" and summary["trials"] == {"complete": 4}
    (best,) = summary["best"]
    assert set(best["params"]) == {"alpha"} and best["config"]["beta"] == 1
    assert best["values"]["accuracy"] == max(
        line["metrics"]["accuracy"] for line in results("there") if "metrics" in line
    )


def test_a_finished_experiment_takes_more_samples_on_resume(capsys: Any) -> None:
    flags = ("seed.yaml", "--set", "beta=1", "alpha={uniform: [0, 1]}")
    assert tune(*flags, "--num-samples", "2", "--resume", "auto") == 0  # begins it
    before = [line for line in results("runs/seed") if "metrics" in line]
    assert tune(*flags, "--num-samples", "5", "--resume") == 0
    assert "seed: 5 trials (5 complete)" in capsys.readouterr().out
    after = [line for line in results("runs/seed") if "metrics" in line]
    assert after[: len(before)] == before and {line["trial"] for line in after} == {0, 1, 2, 3, 4}
    assert tune(*flags, "--num-samples", "5", "--resume=auto") == 0  # and here there is nothing left to do
    assert "seed: 5 trials (5 complete)" in capsys.readouterr().out
    assert tune("--resume", "runs/seed") == 0  # its directory says all that there is to say
    assert "seed: 5 trials (5 complete)" in capsys.readouterr().out


def test_runs_are_experiments_of_their_own_one_after_another(here: Path, capsys: Any) -> None:
    runs = "runs:\n  low: {config.alpha: 0.1}\n  high: {config: {alpha: {grid: [0.7, 0.9]}}, repeats: 2}\n"
    (here / "three.yaml").write_text(SEED_EXAMPLE + runs)
    assert tune("three.yaml", "--out", "all", "--only", "low") == 0
    assert sorted(path.name for path in (here / "all").iterdir()) == ["low"]
    # the one that is there already is refused before anything starts; --resume begins those that are not
    before = files_of(here)
    assert tune("three.yaml", "--out", "all") == 2
    assert "all/low" in capsys.readouterr().err and files_of(here) == before
    assert tune("three.yaml", "--out", "all", "--resume") == 0
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if line.startswith("experiment ")] == [
        "experiment 1 of 3: low", "experiment 2 of 3: high-1", "experiment 3 of 3: high-2",
    ]  # fmt: skip
    assert "low: 2 trials" in said.out and "high-1: 4 trials" in said.out and "high-2: 4 trials" in said.out
    assert [load_yaml(f"all/high-{n}/experiment.yaml").values["seed"] for n in (1, 2)] == [0, 1]


def test_one_of_several_experiments_that_ends_with_an_error_leaves_the_others_their_turn(
    here: Path, capsys: Any
) -> None:
    runs = "runs:\n  bad: {trainable: './my_trial.py:raises', max_failures: 0}\n  good: {config.alpha: 0.1}\n"
    (here / "two.yaml").write_text(SEED_EXAMPLE + runs)
    assert tune("two.yaml") == 2
    said = capsys.readouterr()
    assert "rlplat: bad: no trial has come to its first report" in said.err and "good: 2 trials" in said.out


def test_two_objectives_have_a_front(here: Path, capsys: Any) -> None:
    (here / "my_trial.py").write_text("def train(config, report):\n    report(a=config['x'], b=-config['x'])\n")
    (here / "two.yaml").write_text(
        "trainable: ./my_trial.py:train\nconfig: {x: {grid: [1, 2]}}\nmetric: [a, b]\nmode: [max, max]\n"
    )
    assert tune("two.yaml") == 0
    said = capsys.readouterr().out
    assert "2 trials that no other one beats in everything:" in said
    assert "trial 1, a 2, b -2\n  x: 2\n" in said and "trial 0, a 1, b -1\n  x: 1\n" in said
    assert "the first config is in runs/two/best.yaml" in said
    assert load_yaml("runs/two/best.yaml").values == {"x": 2}


def test_trials_that_fail_leave_the_others_and_no_result_at_all_is_exit_code_1(capsys: Any) -> None:
    assert (
        tune(
            "seed.yaml",
            "--set",
            "trainable=./my_trial.py:last_raises",
            "stop.accuracy=9",
            "max_failures=0",
            "--out",
            "some",
        )
        == 0
    )
    said = capsys.readouterr()
    assert "seed: 6 trials (4 complete, 2 failed)" in said.out and "ValueError: too large" in said.err
    settings = ("trainable=./my_trial.py:always_raises", "stop.accuracy=9", "max_failures=0")
    assert tune("seed.yaml", "--set", *settings, "--out", "none", "--max-concurrent", "1") == 1
    said = capsys.readouterr()
    assert "no trial of seed has a result; trial 5: ValueError: never" in said.err
    assert "Traceback" not in said.err and said.out == ""


def test_nan_fails_its_trial_and_from_the_first_trials_on_the_experiment(here: Path, capsys: Any) -> None:
    assert tune("seed.yaml", "--set", "trainable=./my_trial.py:sometimes_nan", "--out", "some") == 0
    said = capsys.readouterr()
    assert "seed: 6 trials (4 complete, 2 failed)" in said.out
    assert "trial 5 failed: it reported accuracy = nan in its report 1" in said.err
    assert tune("seed.yaml", "--set", "trainable=./my_trial.py:nan", "--out", "nan", "--max-concurrent", "1") == 2
    error = capsys.readouterr().err
    assert "rlplat: no trial has a value to report; trial 2: it reported accuracy = nan in its report 1" in error
    assert len(results("nan")) >= 3  # what was reported is kept


def test_without_optuna_the_extra_is_named(here: Path) -> None:
    program = "import sys; sys.modules['optuna'] = None; from rlplat.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "tune", "seed.yaml"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (2, f"rlplat: {MissingExtra('optuna', 'tune', 'tuning')}\n")
    assert not Path("runs").exists()


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_ends_it_in_order_and_says_how_to_go_on(here: Path, number: int, exit_code: int) -> None:
    command = [sys.executable, "-m", "rlplat.cli", "tune", "seed.yaml"]
    settings = ["--set", "trainable=./my_trial.py:waiting", "stop.accuracy=9", "--out", "my exp"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command + settings, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert soon(lambda: Path("my exp/results.jsonl").exists() and len(results("my exp")) >= 2)
        process.send_signal(number)
        Path("go").touch()
        _, error = process.communicate(timeout=60)
    assert process.returncode == exit_code, error
    (line,) = (line for line in error.splitlines() if "to resume: " in line)
    assert line == (
        "the experiment is in my exp; to resume: rlplat tune seed.yaml --set trainable=./my_trial.py:waiting "
        "stop.accuracy=9 --out 'my exp' --resume"
    )
    assert "Traceback" not in error
    assert tune("seed.yaml", *settings, "--resume", "--json") == 0
    reports = [(line["trial"], line["step"]) for line in results("my exp") if "metrics" in line]
    assert sorted(reports) == [(trial, step) for trial in range(6) for step in (1, 2, 3)]  # nothing twice, nothing lost


def test_an_algorithm_is_tuned_without_a_file_and_its_best_config_trains(here: Path, capsys: Any) -> None:
    algorithm = "tests.cli.counting_algorithm:CountingAlgorithm"
    flags = (
        "--set",
        "discount={uniform: [0.5, 0.9]}",
        "stop.env_steps=60",
        "--num-samples",
        "3",
        "--out",
        "counted",
    )
    assert tune("--algo", algorithm, "--env", "CartPole-v1", *flags) == 0
    said = capsys.readouterr().out
    assert "countingalgorithm: 3 trials (3 complete)" in said
    assert "train with the best config: rlplat train counted/best.yaml" in said
    best = load_yaml("counted/best.yaml").values
    assert best["algo"] == algorithm and best["env"] == "CartPole-v1" and 0.5 <= best["discount"] < 0.9
    assert best["stop"]["env_steps"] == 60
    assert main(["train", "counted/best.yaml", "--out", "again"]) == 0
    assert "60 env steps" in capsys.readouterr().out
    assert load_yaml("again/config.yaml").values["discount"] == best["discount"]


def test_a_study_in_postgresql(here: Path, capsys: Any) -> None:
    with postgres_server() as server:
        flags = ("seed.yaml", "--storage", server.url, "--json", "--set", "beta=1", "alpha={uniform: [0, 1]}")
        assert tune(*flags, "num_samples=2") == 0
        before = files_of(here)
        assert tune(*flags, "num_samples=2", "--out", "other") == 2
        error = capsys.readouterr().err
        assert "there is an experiment 'seed' in postgresql://" in error and "--set name=..." in error
        assert files_of(here) == before
        assert tune(*flags, "num_samples=4", "--resume") == 0
        assert json.loads(capsys.readouterr().out)["trials"] == {"complete": 4}
        assert tune(*flags, "num_samples=2", "name=second") == 0
        assert json.loads(capsys.readouterr().out)["directory"] == "runs/second"


def test_train_and_tune_send_each_others_files_to_the_right_place(here: Path, capsys: Any) -> None:
    (here / "run.yaml").write_text("algo: ppo\nenv: CartPole-v1\n")
    assert tune("run.yaml") == 2
    assert (
        "run.yaml is the config of one training run, not an experiment: rlplat train run.yaml"
        in capsys.readouterr().err
    )
    assert main(["train", "seed.yaml"]) == 2
    assert "seed.yaml is an experiment, which is many runs: rlplat tune seed.yaml" in capsys.readouterr().err
    (here / "runs.yaml").write_text("runs: {a: {trainable: ppo}}\n")
    assert main(["train", "runs.yaml"]) == 2
    assert "rlplat tune runs.yaml" in capsys.readouterr().err


def test_help_names_the_command_and_its_flags(capsys: Any) -> None:
    assert main(["--help"]) == 0 and tune("--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "tune search for the best config" in said and "--only NAME" in said and "rlplat tune show" in said


BAD = [
    ([], "what is to be tuned? Give an experiment file"),
    (["nothing.yaml"], "no config file 'nothing.yaml'"),
    (["."], "there is no experiment in .: it has no experiment.yaml"),
    (["kept"], "kept is an experiment's directory: --resume continues it, rlplat tune show kept"),
    (["kept", "--resume", "--out", "x"], "omit --out"),
    (["seed.yaml", "--out", "kept"], "an experiment is already in kept; continue it: --resume"),
    (["seed.yaml", "--out", "my_trial.py"], "my_trial.py already exists; choose another place: --out"),
    (["seed.yaml", "--out", "new", "--resume"], "--resume: there is no experiment in new; omit --resume"),
    (["seed.yaml", "--out", "kept", "--resume", "--set", "alpha=0.2", "beta=7"],
     "this is not the experiment in kept: 'config.beta' was {'grid': [1, 2]}, and is 7 now (from --set beta)"),
    (["--algo", "ppo", "--env", "CartPole-v1", "--resume", "auto"], "--resume auto needs --out DIR"),
    (["seed.yaml", "--resume", "other.yaml"], "--resume takes nothing or `auto`, not 'other.yaml'"),
    (["runs/nowhere", "--resume"], "--resume: there is no experiment in runs/nowhere"),
    (["seed.yaml", "--algo", "ppo"], "omit --algo and --env"),
    (["seed.yaml", "--only", "a"], "--only a: seed.yaml has no `runs`, it is one experiment"),
    (["--algo", "ppo", "--only", "a"], "--only chooses among the `runs` of an experiment file"),
    (["--algo", "ppo", "--set", "learning_rate=1"], "'env' is not set"),
    (["seed.yaml", "--num-samples", "0"], "'num_samples' (from --num-samples): 0 (must be a whole number from 1"),
    (["seed.yaml", "--set", "resources.cpu=7000"], "one trial needs cpu 7000 (from --set resources.cpu), and the who"),
    (["seed.yaml", "--set", "alpha={uniform: [1, 0]}"], "'alpha' in --set alpha: uniform: the range is empty"),
    (["seed.yaml", "--max-concurrent", "1", "--set", "metric=acuracy"],
     "no metric 'acuracy' in the first report of trial 0; did you mean 'accuracy'?\nreported: accuracy"),
    (["seed.yaml", "--max-concurrent", "1", "--set", "stop.training_iteration=3"],
     "stop (from --set stop.training_iteration): no metric 'training_iteration' in the first report of trial 0"),
    (["seed.yaml", "--storage", "sqlite:///x.db"], "storage (from --storage): SQLite locks up while several processe"),
    (["seed.yaml", "--storage", "postgresql://nobody@127.0.0.1:1/none"], "127.0.0.1"),
    (["seed.yaml", "--set", "trainable=./my_trial.py:trian"], "my_trial.py has no 'trian'; did you mean 'train'?"),
    (["seed.yaml", "--set", "trainable=./my_trial.py:without_number"], "is 'high', not a number"),
    (["seed.yaml", "--set", "trainable=./my_trial.py:nothing", "--max-concurrent", "1"],
     "trial 2: it returned nothing, and reported nothing: return a dict of metrics, or report them"),
    (["seed.yaml", "--set", "trainable=./my_trial.py:raises", "max_failures=0"], "ValueError: no such alpha\n  in "),
    (["evil.yaml"], "evil.yaml:1: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[" ".join(arguments)[:60] for arguments, _ in BAD])
def test_bad_input_is_one_message_and_exit_code_2_and_everything_is_as_before(
    here: Path, finished: Path, capsys: Any, arguments: list[str], said: str
) -> None:
    shutil.copytree(finished, here / "kept")
    (here / "evil.yaml").write_text("trainable: !!python/object/apply:os.system ['touch evil']\n")
    before = files_of(here)
    assert tune(*arguments) == 2
    error = capsys.readouterr().err
    messages = [line for line in error.splitlines() if line.startswith("rlplat: ")]
    assert len(messages) == 1 and "Traceback" not in error
    assert said in error
    assert files_of(here) == before


@pytest.mark.parametrize(
    "given",
    [
        ["--storage", "postgresql://me:S3CRET@db/x"],
        ["--storage=postgresql://me:S3CRET@db/x"],
        ["--set", "storage=postgresql://me@db/x?password=S3CRET"],
    ],
)
def test_the_command_to_resume_keeps_no_password(given: list[str]) -> None:
    from rlplat.cli.tune import _resuming, run

    spec: Any = SimpleNamespace(origins={"runs": ""}, out="runs/x")
    for resume in ((), ("--resume", "auto")):
        words = ["e.yaml", *given, *resume]
        said = _resuming(words, spec, run.parser().parse_args(words))
        assert "S3CRET" not in said and "postgresql://me@db/x" in said and "--resume" in said
