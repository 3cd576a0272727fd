"""`rlplat train`, `evaluate` and `runs` as commands, with an algorithm that only counts."""

from __future__ import annotations

import csv
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.checkpoints import latest_valid
from rlplat.cli import main
from rlplat.metrics import read_records
from rlplat.rl.run import registry, run_directory, training_loop
from rlplat.rl.run.training_plan import plan_from_file
from rlplat.rl.schedules import schedule_value
from tests.cli.counting_algorithm import CountingAlgorithm

ALGO = "tests.cli.counting_algorithm:CountingAlgorithm"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*arguments: str) -> int:
    return main(["train", "--algo", ALGO, "--env", "X", *arguments])


def saved_steps(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.name != "latest")


def test_a_run_leaves_all_that_belongs_to_a_run(here: Path, capsys: Any) -> None:
    assert train("--stop.env-steps", "300", "--checkpoint-period", "100", "--out", "runs/demo") == 0
    run = here / "runs" / "demo"
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoints", "config.yaml", "log.txt", "metrics.jsonl", "params.json", "progress.csv", "tensorboard",
    ]  # fmt: skip
    assert saved_steps(run) == ["step_100", "step_200", "step_300"]
    records = read_records(run / "metrics.jsonl")
    assert [record["iteration"] for record in records] == [
        *range(1, 31),
        30,
    ]  # the closing line has the evaluation
    assert set(records[0]) >= {
        "iteration", "env_steps", "wall_s", "env_steps_per_s", "episodes", "episode_return_mean", "episode_length_mean",
    }  # fmt: skip
    assert records[0]["learner/undefined"] is None
    assert records[-1]["eval/return_mean"] == 39.5 and records[-1]["eval/episodes"] == 20
    with open(run / "progress.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 31 and table[0]["eval/return_mean"] == "" and table[-1]["eval/return_mean"] == "39.5"
    out = capsys.readouterr()
    assert "300 env steps" in out.out and "rlplat evaluate runs/demo" in out.out
    assert "nan" not in out.out + out.err
    checkpoint, _ = latest_valid(run)
    assert checkpoint is not None
    assert checkpoint.manifest["not_saved"] == ["environment state"]
    assert checkpoint.manifest["spaces"] == "Box(1,) -> Discrete(2)"


def test_the_config_of_a_run_reproduces_it(here: Path) -> None:
    assert train("--stop.env-steps", "50", "--set", "discount=0.5", "policy.hidden_sizes=[8]", "--out", "a") == 0
    assert main(["train", "a/config.yaml", "--out", "b"]) == 0
    assert Path("a/config.yaml").read_text() == Path("b/config.yaml").read_text()
    assert "discount: 0.5\n" in Path("b/config.yaml").read_text()


def test_a_profile_of_the_start_says_where_the_time_goes(here: Path, capsys: Any) -> None:
    (here / "slow_callback.py").write_text(
        "sum(range(3_000_000))\nfrom rlplat.rl.callbacks import Callback\nclass Nothing(Callback): pass\n"
    )
    before = [*sys.meta_path], training_loop.prepare
    flags = ("--profile", "start", "--callback", "slow_callback:Nothing")
    assert train("--stop.env-steps", "300", "--out", "a", *flags) == 0
    assert ([*sys.meta_path], training_loop.prepare) == before
    lines = capsys.readouterr().err.splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith("until the first result"))) + 1 :]
    slowest = next(line for line in table if line.startswith("the slowest of"))
    rows = {line[:31].strip(): [float(each) for each in line[31:].split()] for line in table[: table.index(slowest)]}
    assert {"interpreter, command", "imports of the training", "config", "first round"} < {*rows}
    every = rows.pop("all")
    assert [sum(row[column] for row in rows.values()) for column in range(3)] == pytest.approx(every, abs=0.05)
    assert every[0] >= rows["interpreter, command"][0] > 0.0 and every[2] > 0.01
    assert "slow_callback" in slowest.partition(":")[2].split(",")[0]
    assert train("--stop.env-steps", "300", "--out", "b", "--profile", "all") == 2
    assert "--profile is one of start" in capsys.readouterr().err


def test_policy_names_a_network_of_ones_own(here: Path, capsys: Any) -> None:
    flags = ("--stop.env-steps", "20", "--policy", "./my_policy.py:Mine", "--policy.core", "lstm")
    (here / "my_policy.py").write_text("class Mine: ...\n")
    assert train(*flags, "--out", "a") == 0
    config = Path("a/config.yaml").read_text()
    assert f"custom: {here}/my_policy.py:Mine\n" in config and "core: lstm\n" in config
    assert main(["train", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "ppo, dqn, pqn" in said and "torch, tf" in said and "--policy CLASS" in said


POLICY = """
from rlplat.rl.torch.networks import ActorCritic

class Mine(ActorCritic):
    def forward(self, obs, state=None, starts=None):
        distribution, values, state = super().forward(obs, state, starts)
        return distribution, 2.0 * values, state

class Broken(ActorCritic):
    def __init__(self, spec, compute_dtype):
        raise ValueError("no such size")

class Column(ActorCritic):
    def forward(self, obs, state=None, starts=None):
        distribution, values, state = super().forward(obs, state, starts)
        return distribution, values.unsqueeze(-1), state
"""
CARTPOLE = (
    "--algo", "ppo", "--env", "CartPole-v1", "--num-rollout-workers", "0", "--num-envs-per-worker", "4",
    "--rollout-length", "16", "--stop.env-steps", "64", "--evaluation.episodes", "1",
)  # fmt: skip


@pytest.fixture
def policy_files(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same classes in ./my_policy.py and in the package my_specimen_pkg."""
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "path", list(sys.path))
    (here / "my_policy.py").write_text(POLICY)
    (here / "my_specimen_pkg").mkdir()
    (here / "my_specimen_pkg" / "__init__.py").write_text("")
    (here / "my_specimen_pkg" / "mod.py").write_text(POLICY)
    yield
    for name in [name for name in sys.modules if "my_specimen_pkg" in name or "my_policy" in name]:
        del sys.modules[name]


@pytest.mark.parametrize("place", ["./my_policy.py", "my_specimen_pkg.mod"])
def test_a_network_of_ones_own_is_trained_evaluated_and_resumed(policy_files: None, capsys: Any, place: str) -> None:
    assert main(["train", *CARTPOLE, "--policy", f"{place}:Mine", "--out", "demo"]) == 0
    assert main(["evaluate", "demo", "--episodes", "1"]) == 0
    assert main(["train", "--resume", "demo", "--stop.env-steps", "128"]) == 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("./my_policy.py:Min", "has no 'Min'; did you mean 'Mine'?"),
        ("./other.py:Mine", "there is no file other.py"),
        ("my_specimen_pkg.mode:Mine", "there is no module 'my_specimen_pkg.mode'"),
        ("./my_policy.py:Broken", "making the network raised ValueError: no such size"),
        ("./my_policy.py:Column", "values for 1 step of 3 environments: shape (3, 1), expected (3,)"),
    ],
)
def test_a_network_that_is_not_there_or_not_right_is_one_message(
    policy_files: None, capsys: Any, policy: str, said: str
) -> None:
    assert main(["train", *CARTPOLE, "--policy", policy]) == 2
    error = capsys.readouterr().err
    messages = [line for line in error.splitlines() if line.startswith("rlplat: ")]
    assert len(messages) == 1 and said in messages[0] and "Traceback" not in error


def test_an_existing_run_is_never_overwritten(here: Path, capsys: Any) -> None:
    assert train("--stop.env-steps", "20", "--out", "runs/demo") == 0
    before = (here / "runs/demo/metrics.jsonl").read_text()
    assert train("--stop.env-steps", "20", "--out", "runs/demo") == 2
    error = capsys.readouterr().err
    assert "--resume runs/demo" in error and "--out" in error and "Traceback" not in error
    assert (here / "runs/demo/metrics.jsonl").read_text() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_told_before_the_first_step(here: Path, capsys: Any) -> None:
    here.chmod(0o500)
    assert train("--out", "demo") == 2
    assert "cannot write to the run directory demo" in capsys.readouterr().err


def test_an_out_below_a_file_is_told_before_the_first_step(here: Path, capsys: Any) -> None:
    (here / "file").write_text("")
    assert train("--out", "file/demo", "--set", "fail_at=1") == 2
    assert "cannot write to the run directory file/demo: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--algo", "pp", "--env", "X"], "unknown algorithm 'pp'; did you mean 'ppo'?\nalgorithms: "),
        (
            ["--algo", "./mine.py", "--env", "X"],
            "'./mine.py' is a file: write the class as well, ./mine.py:MyAlgorithm",
        ),
        (["--algo", "no.such.module:X", "--env", "X"], "there is no module 'no.such.module'"),
        (["--algo", "os:nothing", "--env", "X"], "'os' has no 'nothing'"),
        (["--algo", "os:getcwd", "--env", "X"], "os:getcwd is not a subclass of"),
        ([], "which algorithm? give --algo ppo"),
        (["--algo", ALGO], "'env' is not set and has no default: give --env VALUE"),
        (["nothing.yaml"], "no config file 'nothing.yaml'"),
        (
            ["--algo", ALGO, "--env", "X", "--sed", "3"],
            "unknown key 'sed' (from --sed); did you mean 'seed'?",
        ),
        (["--algo", ALGO, "--env", "X", "--stop.env-step", "3"], "did you mean 'stop.env_steps'?"),
        (["--algo", ALGO, "--env", "X", "--seed", "-1"], "bad value for 'seed' (from --seed): -1"),
        (
            ["--algo", ALGO, "--env", "X", "--set", "c.yaml"],
            "--set takes KEY=VALUE, not 'c.yaml'; a config file goes",
        ),
        (
            ["--algo", ALGO, "--env", "X", "--policy", "MyPolicy"],
            "bad value for 'policy.custom' (from --policy): ",
        ),
        (["--resume", "nowhere"], "no run in nowhere"),
        (["--resume", "a", "--out", "b"], "omit --out"),
        (
            ["--algo", ALGO, "--env", "X", "--address", "h:1"],
            "h:1: there is no join file (rlplat start --head writes one); for a Ray cluster add --backend ray",
        ),
    ],
)
def test_bad_usage_is_one_message_and_exit_code_2(here: Path, capsys: Any, arguments: list[str], said: str) -> None:
    assert main(["train", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
    assert list(here.iterdir()) == []


def test_a_failing_environment_is_named_with_exit_code_1_and_what_was_learnt_is_saved(here: Path, capsys: Any) -> None:
    flags = ("--fail-at", "8", "--checkpoint-period", "50", "--out", "demo")
    assert train(*flags) == 1
    error = capsys.readouterr().err
    assert "environment 3 of 'X' raised ValueError: no such action" in error
    assert "checkpoint saved at 70 env steps; to resume: rlplat train --resume demo" in error
    assert "Traceback" not in error and "Traceback" in (here / "demo/log.txt").read_text()
    assert saved_steps(here / "demo") == ["step_50", "step_70"]
    checkpoint, _ = latest_valid(here / "demo")
    assert checkpoint is not None and any("the step that failed" in text for text in checkpoint.info.not_saved)


def test_commands_in_messages_can_be_pasted_where_the_directory_has_a_blank(here: Path, capsys: Any) -> None:
    assert train("--fail-at", "8", "--checkpoint-period", "50", "--out", "my demo") == 1
    assert "to resume: rlplat train --resume 'my demo'" in capsys.readouterr().err
    assert train("--stop.env-steps", "20", "--out", "my demo") == 2
    assert "to resume it: --resume 'my demo'" in capsys.readouterr().err
    assert train("--stop.env-steps", "20", "--out", "other demo") == 0
    assert "evaluate it: rlplat evaluate 'other demo'" in capsys.readouterr().out


def test_a_directory_that_cannot_be_made_is_one_message(here: Path, capsys: Any) -> None:
    assert train("--stop.env-steps", "20", "--out", "x" * 300) == 2
    assert "File name too long" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_a_disk_that_is_full_at_the_start_leaves_no_directory(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_whole(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_directory, "_write_whole", write_whole)
    assert train("--stop.env-steps", "20", "--out", "demo") == 2
    assert "cannot write to the run directory demo: No space left on device" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_weights_that_hold_nan_are_not_saved_after_a_failure(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = staticmethod(lambda state: {"actor.weight": np.array([1.0, np.nan])})
    monkeypatch.setattr(CountingAlgorithm, "policy_weights", weights)
    monkeypatch.setattr(CountingAlgorithm, "make_policy", staticmethod(lambda *_: None))
    assert train("--fail-at", "8", "--checkpoint-period", "50", "--out", "demo") == 1
    error = capsys.readouterr().err
    assert "no checkpoint of the failed run: the weights hold NaN or infinity (actor.weight)" in error
    assert "20 env steps since the checkpoint at 50 are lost; to resume: rlplat train --resume demo" in error
    assert saved_steps(here / "demo") == ["step_50"]


def test_the_last_checkpoint_is_tried_again(here: Path, capsys: Any) -> None:
    assert train("--stop.env-steps", "50", "--lost-states", "2", "--out", "demo") == 0
    error = capsys.readouterr().err
    assert error.count("warning: the last checkpoint failed: segment s-w1-1 is gone; trying again") == 2
    assert saved_steps(here / "demo") == ["step_50"]
    assert train("--stop.env-steps", "50", "--lost-states", "9", "--out", "other") == 1
    assert "no checkpoint was saved: 50 env steps are lost" in capsys.readouterr().err


def test_checkpoints_come_by_the_clock(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 0.0
    step = CountingAlgorithm.step

    def slow_step(algorithm: CountingAlgorithm) -> Any:
        nonlocal seconds
        seconds += 250.0
        return step(algorithm)

    monkeypatch.setattr(CountingAlgorithm, "step", slow_step)
    monkeypatch.setattr(run_directory, "monotonic", lambda: seconds)
    assert train("--stop.env-steps", "70", "--out", "demo") == 0
    assert saved_steps(here / "demo") == ["step_30", "step_60", "step_70"]
    assert train("--stop.env-steps", "70", "--checkpoint-period-s", "0", "--out", "other") == 0
    assert saved_steps(here / "other") == ["step_70"]


def test_debug_shows_the_traceback(capsys: Any) -> None:
    assert train("--fail-at", "1", "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_saves_and_says_how_to_go_on(here: Path, capsys: Any, number: int, exit_code: int) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert train("--signal-at", "7", "--signal-number", str(int(number)), "--out", "demo") == exit_code
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert saved_steps(here / "demo") == ["step_70"]
    assert "to resume: rlplat train --resume demo" in capsys.readouterr().err


def test_two_signals_leave_at_once_and_say_what_is_lost(here: Path, capsys: Any) -> None:
    assert train("--signal-at", "7", "--num-signals", "2", "--out", "demo") == 130
    assert saved_steps(here / "demo") == []
    assert len(read_records(here / "demo/metrics.jsonl")) == 6
    assert "no checkpoint was saved: 60 env steps are lost" in capsys.readouterr().err
    flags = ("--checkpoint-period", "40", "--signal-at", "7", "--num-signals", "2")
    assert train(*flags, "--out", "other") == 130
    assert (
        "20 env steps since the checkpoint at 40 are lost; to resume: rlplat train --resume other"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("flags", [("--signal-at=-1",), ("--signal-at=1", "--num-signals", "2")])
def test_a_signal_before_the_first_result_leaves_nothing_and_says_so(
    here: Path, capsys: Any, flags: tuple[str, ...]
) -> None:
    assert train(*flags, "--out", "demo") == 130
    assert "interrupted before the first step was finished; nothing was saved" in capsys.readouterr().err
    assert not (here / "demo").exists()


def test_ctrl_c_before_the_run_begins_says_so(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(training_loop, "plan_training", plan)
    assert train("--out", "demo") == 130
    assert capsys.readouterr().err == "rlplat: interrupted before the run began; nothing was saved\n"


def test_a_signal_while_a_resumed_run_starts_leaves_it_as_it_was(here: Path, capsys: Any) -> None:
    assert train("--stop.env-steps", "50", "--out", "demo") == 0
    assert main(["train", "--resume", "demo", "--stop.env-steps", "90", "--set", "signal_at=-1"]) == 130
    assert "interrupted before the first step; the run in demo is as it was" in capsys.readouterr().err
    assert saved_steps(here / "demo") == ["step_50"]


def test_a_resumed_run_ends_bit_identical_to_one_that_never_stopped(here: Path) -> None:
    assert train("--stop.env-steps", "200", "--out", "whole") == 0
    # killed at iteration 13 with a checkpoint at 10: what was measured in between is measured again, not twice
    flags = ("--checkpoint-period", "100", "--signal-at", "13", "--num-signals", "2", "--out", "parts")
    assert train("--stop.env-steps", "200", *flags) == 130
    assert main(["train", "--resume", "parts", "--set", "signal_at=0"]) == 0
    states = [latest_valid(here / name)[0] for name in ("whole", "parts")]
    assert states[0] is not None and states[1] is not None
    one, other = states[0].state["algorithm"], states[1].state["algorithm"]
    assert one["sums"].tobytes() == other["sums"].tobytes() and one["rng"] == other["rng"]
    figures = [
        [(record["iteration"], record["learner/sum"]) for record in read_records(here / name / "metrics.jsonl")]
        for name in ("whole", "parts")
    ]
    assert figures[0] == figures[1]


def test_a_run_that_has_reached_its_stop_has_nothing_to_do_until_the_stop_moves(here: Path, capsys: Any) -> None:
    assert train("--stop.env-steps", "50", "--out", "demo") == 0
    assert main(["train", "--resume", "demo", "--stop.env-steps", "80"]) == 0
    assert "80 env steps" in capsys.readouterr().out
    # The closing line of the first part is gone: the lines are those of a run that never stopped.
    iterations = [record["iteration"] for record in read_records(here / "demo/metrics.jsonl")]
    assert iterations == [1, 2, 3, 4, 5, 6, 7, 8, 8]
    assert len((here / "demo/progress.csv").read_text().splitlines()) == 10
    assert "env_steps: 80" in (here / "demo/config.yaml").read_text()
    files = {path: path.read_bytes() for path in (here / "demo").rglob("*") if path.is_file()}
    assert main(["train", "--resume", "demo"]) == 0
    assert "has already reached its stop, env_steps 80; to train on: --stop.env-steps N" in capsys.readouterr().out
    assert files == {path: path.read_bytes() for path in (here / "demo").rglob("*") if path.is_file()}
    assert saved_steps(here / "demo")[-1] == "step_80"


def test_a_learning_rate_that_has_come_down_does_not_go_up_when_the_stop_moves(here: Path, capsys: Any) -> None:
    falling = "learning_rate={schedule: linear, start: 1, end: 0}"
    assert train("--stop.env-steps", "50", "--set", falling, "--out", "demo") == 0
    assert main(["train", "--resume", "demo", "--stop.env-steps", "80"]) == 0
    assert "schedules keep their horizon of 50 env steps" in capsys.readouterr().err
    for stop in (80, 200):  # and in whatever follows from this run
        config = plan_from_file(here / "demo/config.yaml", []).config
        assert config.stop.env_steps == stop and config.learning_rate.horizon == 50
        assert [schedule_value(config.learning_rate, n, stop) for n in (25, 50, 80)] == [0.5, 0.0, 0.0]
        assert main(["train", "--resume", "demo", "--stop.env-steps", "200"]) == 0
    assert "schedules keep" not in capsys.readouterr().err


def test_what_weights_depend_on_cannot_change_on_resume(here: Path, capsys: Any) -> None:
    assert train("--stop.env-steps", "50", "--out", "demo") == 0
    assert main(["train", "--resume", "demo", "--env", "Y"]) == 2
    assert "'env' cannot change when a run is resumed" in capsys.readouterr().err


def test_a_damaged_newest_checkpoint_is_named_and_the_older_one_taken(here: Path, capsys: Any) -> None:
    assert train("--stop.env-steps", "50", "--checkpoint-period", "20", "--out", "demo") == 0
    os.truncate(here / "demo/checkpoints/step_50/state.json", 5)
    assert main(["train", "--resume", "demo", "--stop.env-steps", "60"]) == 0
    error = capsys.readouterr().err
    assert "step_50 passed over: file state.json has 5 bytes" in error
    assert "resuming demo at 40 env steps" in error


@pytest.fixture
def training(here: Path) -> Iterator[tuple[Path, subprocess.Popen[str], Any]]:
    """A run in another process, in the middle of a step."""
    fifo = here / "fifo"
    os.mkfifo(fifo)
    command = [sys.executable, "-m", "rlplat.cli", "train", "--algo", ALGO, "--env", "X", "--out", "demo"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*command, "--wait-at", str(fifo)], env=environment, stderr=subprocess.PIPE, text=True
    ) as run:
        with open(fifo, "w") as door:  # opens when the first step reads
            yield here / "demo", run, door
            if run.poll() is None:
                run.kill()


@pytest.mark.process
def test_a_run_that_is_going_is_shown_and_cannot_be_resumed(training: Any, capsys: Any) -> None:
    directory, _, _ = training
    assert main(["runs", ".", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["is_running"] and row["run"] == "demo" and row["env_steps"] is None
    assert main(["train", "--resume", str(directory)]) == 2


@pytest.mark.process
def test_ctrl_c_in_another_process(training: Any) -> None:
    directory, run, door = training
    run.send_signal(signal.SIGINT)
    assert run.stderr.readline().startswith("SIGINT: finishing this step, then saving a checkpoint")
    door.close()
    assert run.wait() == 130
    assert saved_steps(directory) == ["step_10"]


def test_evaluate_and_runs(here: Path, capsys: Any) -> None:
    assert train("--stop.env-steps", "50", "--checkpoint-period", "20", "--out", "runs/demo", "--seed", "4") == 0
    capsys.readouterr()
    assert main(["evaluate", "runs/demo", "--episodes", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["env_steps"], report["return_mean"], report["returns"]) == (50, 6.0, [5.0, 6.0, 7.0])
    assert main(["evaluate", "runs/demo/checkpoints/step_20", "--episodes", "1"]) == 0
    assert "X: return 2 ± 0" in capsys.readouterr().out
    assert main(["runs", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["env"], row["seed"], row["env_steps"], row["eval_return_mean"]) == ("X", 4, 50, 14.5)
    assert row["is_running"] is False
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["run", "algo", "env"] and "runs/demo" in lines[1] and "ended" in lines[1]


def test_evaluate_and_runs_where_there_is_nothing(here: Path, capsys: Any) -> None:
    assert main(["evaluate", "runs/none"]) == 2
    assert "no run in runs/none" in capsys.readouterr().err
    assert main(["evaluate", "runs/none", "--episodes", "0"]) == 2
    assert main(["runs"]) == 0
    assert "no runs in runs; start one" in capsys.readouterr().out


def test_the_tuned_config_is_found_whatever_the_spelling(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (here / "configs" / "counting").mkdir(parents=True)
    (here / "configs/counting/Pong.yaml").write_text("env: Pong\nbatch: 25\nstop: {env_steps: 50}\n")
    monkeypatch.setattr(registry, "configs_directory", lambda: here / "configs")
    monkeypatch.setattr("rlplat.rl.run.training_plan.configs_directory", lambda: here / "configs")
    monkeypatch.setattr(registry, "algorithm_homes", lambda: {"counting": ALGO})
    for number, env in enumerate(("Pong", "pong", "ALE/Pong-v5", "PongNoFrameskip-v4")):
        assert main(["train", "--algo", "counting", "--env", env, "--out", f"r{number}"]) == 0
        out = capsys.readouterr()
        assert "using the tuned config configs/counting/Pong.yaml" in out.err
        assert "50 env steps" in out.out and "env: Pong\n" in Path(f"r{number}/config.yaml").read_text()
    assert main(["train", "configs/counting/Pong.yaml", "--batch", "50", "--out", "by-file"]) == 0
    assert main(["train", "--algo", "counting", "--env", "Breakout", "--stop.env-steps", "9", "--out", "other"]) == 0
    assert "no tuned config for Breakout, and the Atari family has none for counting" in capsys.readouterr().err
    assert main(["train", "configs/counting/Pong.yaml", "--set", "batsh=3"]) == 2
    assert "unknown key 'batsh' (from --set batsh); did you mean 'batch'?" in capsys.readouterr().err


def test_help_teaches(capsys: Any) -> None:
    assert main(["--help"]) == 0
    assert "rlplat train --algo ppo --env CartPole-v1" in capsys.readouterr().out
    for command in ("train", "evaluate", "check-env", "runs"):
        assert main([command, "--help"]) == 0
        assert "examples:" in capsys.readouterr().out
    assert main([]) == 2
    assert main(["trian"]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err
