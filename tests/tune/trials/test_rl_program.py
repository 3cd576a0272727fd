"""Algorithms as trials: a run directory each, exact continuation, other trials' checkpoints, where the actors run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat import checkpoints, cli, state
from rlplat.config import load_yaml
from rlplat.errors import CheckpointError
from rlplat.metrics import read_records
from rlplat.tune.trials import TrialContext
from rlplat.tune.trials.programs import open_program
from rlplat.tune.trials.trainables import check_trainable
from tests.patience import soon

ROOT = Path(__file__).resolve().parents[3]
SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "deterministic": True,
    "policy": {"hidden_sizes": [16]},
    "num_envs_per_worker": 4,
    "rollout_length": 32,
    "minibatch_size": 64,
    "num_epochs": 2,
    "num_rollout_workers": 0,
    "stop": {"env_steps": 2048},
}

CONTINUE = """
import json, sys
from pathlib import Path
from rlplat.tune.trials import TrialContext
from rlplat.tune.trials.programs import open_program

directory, checkpoint, config, seed = sys.argv[1:]
program = open_program("ppo", json.loads(config), TrialContext(3, int(seed), Path(directory)))
program.load_from(Path(checkpoint))
for _ in range(4):
    print(json.dumps(program.step()))
program.close()
"""


def begin(directory: Path, config: dict[str, Any] = SMALL, seed: int = 7, algo: str = "ppo", **more: Any) -> Any:
    return open_program(algo, config, TrialContext(3, seed, directory, **more))


def steps(program: Any, number: int) -> list[dict[str, Any]]:
    return [program.step() for _ in range(number)]


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in record.items()
        if not (name.startswith("time/") or name.endswith(("_s", "_s_std")))
    }


def run_command(*arguments: str) -> str:
    """A command's standard output, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "rlplat.cli", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------- a run like any other


@pytest.mark.process
def test_a_trial_is_a_run_directory_and_its_reports_are_lines_of_metrics(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = begin(tmp_path / "00003")
    reports = []
    while (report := program.step()) is not None:
        reports.append(report)
    program.close()
    assert not rlplat.is_initialized()
    assert capfd.readouterr() == ("", "")
    assert reports == read_records(tmp_path / "00003" / "metrics.jsonl")
    assert reports[-1]["env_steps"] >= 2048 > reports[-2]["env_steps"]  # its config's own stop
    assert {type(value) for report in reports for value in report.values()} <= {int, float, type(None)}

    trial = str(tmp_path / "00003")
    evaluated = json.loads(run_command("evaluate", trial, "--episodes", "2", "--json"))
    assert evaluated["env_steps"] == reports[-1]["env_steps"]
    run_command("train", "--resume", trial, "--stop.env-steps", "2300")
    assert read_records(tmp_path / "00003" / "metrics.jsonl")[-1]["env_steps"] >= 2300


@pytest.mark.process
def test_a_saved_trial_goes_on_in_a_new_process_bit_for_bit(tmp_path: Path) -> None:
    whole = begin(tmp_path / "whole")
    expected = steps(whole, 8)
    whole.close()

    first = begin(tmp_path / "00003")
    assert [*map(without_times, steps(first, 4))] == [*map(without_times, expected[:4])]
    name = first.save_to(tmp_path / "00003" / "checkpoints")
    steps(first, 1)  # beyond the checkpoint: forgotten
    first.close()
    arguments = [
        str(tmp_path / "00003"),
        str(tmp_path / "00003" / "checkpoints" / name),
        json.dumps(SMALL),
        "7",
    ]
    done = subprocess.run(
        [sys.executable, "-c", CONTINUE, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [*map(without_times, reports)] == [*map(without_times, expected[4:])]
    lines = read_records(tmp_path / "00003" / "metrics.jsonl")
    assert [*map(without_times, lines)] == [*map(without_times, expected)]


def test_an_attempt_that_died_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    died = begin(tmp_path / "00003")
    expected = steps(died, 2)
    died.save_to(tmp_path / "00003" / "checkpoints")  # never recorded
    died.close()
    again = begin(tmp_path / "00003", attempt=1)
    assert [*map(without_times, steps(again, 2))] == [*map(without_times, expected)]
    again.close()
    assert len(read_records(tmp_path / "00003" / "metrics.jsonl")) == 2


# ---------------------------------------------------------------- checkpoints


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_dir()}


def test_the_newest_two_checkpoints_stay(tmp_path: Path) -> None:
    program = begin(tmp_path / "00003")
    kept = tmp_path / "00003" / "checkpoints"
    with pytest.raises(CheckpointError, match="has not begun"):
        program.save_to(kept)
    saved = []
    for _ in range(3):
        steps(program, 1)
        saved.append(program.save_to(kept))
    assert program.save_to(kept) == saved[-1]  # the same state is written once
    assert names(kept) == set(saved[-2:])
    program.close()


def test_the_last_state_is_saved_beside_what_the_tuner_may_still_need(tmp_path: Path) -> None:
    kept = tmp_path / "00003" / "checkpoints"
    program = begin(tmp_path / "00003", SMALL | {"stop": {"env_steps": 512}})
    ordered = []
    while (report := program.step()) is not None:
        if report["env_steps"] < 512:
            ordered.append(program.save_to(kept))
    assert names(kept) == {
        *ordered[-2:],
        f"step_{checkpoints.latest_valid(tmp_path / '00003')[0].info.env_steps}",
    }
    assert len(names(kept)) == 3
    program.close()
    assert len(names(kept)) == 3


@pytest.mark.slow
def test_going_on_from_another_trials_checkpoint_with_another_config(tmp_path: Path) -> None:
    source = begin(tmp_path / "00001", SMALL | {"learning_rate": 1e-3}, seed=1)
    steps(source, 4)
    saved = tmp_path / "00001" / "checkpoints" / source.save_to(tmp_path / "00001" / "checkpoints")
    reached = steps(source, 1)[0]
    source.close()

    mine = tmp_path / "00003"
    target = begin(mine, SMALL | {"learning_rate": 1e-5}, seed=2)
    steps(target, 6)
    target.save_to(mine / "checkpoints")
    target.close()
    (mine / "checkpoints" / "exploit_1").mkdir()
    for file in saved.iterdir():  # as the tuner copies it
        os.link(file, mine / "checkpoints" / "exploit_1" / file.name)

    exploiting = begin(mine, SMALL | {"learning_rate": 1e-2}, seed=2)
    exploiting.load_from(mine / "checkpoints" / "exploit_1")
    report = exploiting.step()
    # The source's random numbers and weights; the new learning rate.
    assert report["env_steps"] == reached["env_steps"] and report["episodes"] == reached["episodes"]
    assert report["learner/learning_rate"] == 1e-2
    assert load_yaml(mine / "config.yaml").values["learning_rate"] == 1e-2
    env_steps = [record["env_steps"] for record in read_records(mine / "metrics.jsonl")]
    assert env_steps == sorted(set(env_steps)), "what was measured beyond the checkpoint is forgotten"
    assert names(mine / "checkpoints") == {"exploit_1"}
    kept = [exploiting.save_to(mine / "checkpoints")]
    assert names(mine / "checkpoints") == {"exploit_1", *kept}
    steps(exploiting, 1)
    kept.append(exploiting.save_to(mine / "checkpoints"))
    assert names(mine / "checkpoints") == set(kept)
    exploiting.close()


def test_a_checkpoint_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    ppo = begin(tmp_path / "00001")
    steps(ppo, 1)
    saved = tmp_path / "00001" / "checkpoints" / ppo.save_to(tmp_path / "00001" / "checkpoints")
    ppo.close()
    small = {"env": "CartPole-v1", "policy": {"hidden_sizes": [16]}, "stop": {"env_steps": 1000}}
    dqn = begin(tmp_path / "00003", small, algo="dqn")
    with pytest.raises(CheckpointError, match="its algorithm is 'ppo', and now it is 'dqn'"):
        dqn.load_from(saved)
    dqn.close()
    assert not rlplat.is_initialized()


@pytest.mark.slow
def test_several_seeds_share_the_process(tmp_path: Path) -> None:
    program = begin(tmp_path / "00003", num_seeds=2)
    first, second = steps(program, 2)
    assert second["env_steps"] > first["env_steps"] and "episodes_std" in second
    name = program.save_to(tmp_path / "00003" / "checkpoints")
    third = program.step()
    program.close()
    assert not rlplat.is_initialized()
    again = begin(tmp_path / "00003", num_seeds=2)
    again.load_from(tmp_path / "00003" / "checkpoints" / name)
    assert without_times(again.step()) == without_times(third)
    again.close()
    assert checkpoints.latest_valid(tmp_path / "00003" / "seed_1")[0] is not None


# ---------------------------------------------------------------- where it runs


@rlplat.remote(num_cpus=0)
class Host:
    def begin(self, directory: str, config: dict[str, Any], algo: str = "ppo") -> Any:
        self.program = begin(Path(directory), config, algo=algo)
        return self.program.step()

    def step(self) -> Any:
        return self.program.step()

    def end(self) -> tuple[str, bool]:
        self.program.close()
        return rlplat.get_runtime_context().client_id, rlplat.is_initialized()


def booked(cpus: float) -> Any:
    """A host in a group that captures what it submits, as the tuner makes it."""
    group = rlplat.placement_group([{"CPU": cpus}])
    strategy = rlplat.PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
    )
    return group, Host.options(scheduling_strategy=strategy).remote()


def living() -> list[Any]:
    return [actor for actor in state.list_actors() if actor["state"] == "alive"]


def test_without_rollout_workers_nothing_runs_outside_the_host(torch_cluster: None, tmp_path: Path) -> None:
    _, host = booked(1)
    report = rlplat.get(host.begin.remote(str(tmp_path / "00003"), SMALL), timeout=60)
    assert report["env_steps"] > 0
    assert len(living()) == 1
    client, is_connected = rlplat.get(host.end.remote(), timeout=60)
    assert client != "inproc" and is_connected


def test_rollout_workers_live_in_the_trials_booking_and_end_with_the_trial(torch_cluster: None, tmp_path: Path) -> None:
    group, host = booked(2)
    for number in range(2):
        config = SMALL | {"num_rollout_workers": 2, "num_envs_per_worker": 2}
        rlplat.get(host.begin.remote(str(tmp_path / f"0000{number}"), config), timeout=60)
        assert len(living()) == 5  # host, learner, parameter server, two rollout workers
        if number == 0:
            rlplat.get(host.end.remote(), timeout=60)
            assert soon(lambda: len(living()) == 1)
    rlplat.remove_placement_group(group)
    assert soon(lambda: not living()), "all of them were in the group"
    first, second = ([without_times(r) for r in read_records(tmp_path / f"0000{n}" / "metrics.jsonl")] for n in (0, 1))
    assert first == second  # and the same numbers each time


# ---------------------------------------------------------------- the whole way


@pytest.mark.process
def test_tune_ppo_and_train_with_the_best(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from rlplat import tune

    rlplat.init(num_cpus=2, num_gpus=0, preload=["torch"])
    space = SMALL | {"learning_rate": tune.grid([1e-2, 1e-3, 1e-9]), "stop": {}}
    analysis = tune.run("ppo", space, stop={"env_steps": 1024}, max_concurrent=2, out=tmp_path / "exp", seed=4)
    assert soon(lambda: not living())
    rlplat.shutdown()
    trials = analysis.trials
    assert [trial.state.value for trial in trials] == ["complete"] * 3
    assert all(trial.progress >= 1024 for trial in trials)
    best = max(trials, key=lambda trial: trial.values[0])
    printed = capfd.readouterr()
    assert "env steps" not in printed.err + printed.out, "trials do not print their progress"

    document = load_yaml(tmp_path / "exp" / "best.yaml").values
    assert document["algo"] == "ppo" and document["learning_rate"] == best.config["learning_rate"]
    assert document["seed"] == best.seed and document["stop"]["env_steps"] == 1024
    # Trained again with it: the same curve.
    arguments = [
        "train",
        str(tmp_path / "exp" / "best.yaml"),
        "--out",
        str(tmp_path / "again"),
        "--evaluation.episodes",
        "1",
    ]
    assert cli.main(arguments) == 0
    again = read_records(tmp_path / "again" / "metrics.jsonl")
    mine = read_records(tmp_path / "exp" / "trials" / best.directory_name / "metrics.jsonl")
    assert [without_times(record) for record in again[: len(mine)]] == [without_times(record) for record in mine]


def test_kind_of_an_algorithm() -> None:
    kind = check_trainable("ppo")
    assert (kind.is_algorithm, kind.unit, kind.can_save) == (True, "env_steps", True)
    assert kind.host_gpus({"CPU": 1.0, "GPU": 1.0}) == 0
    from rlplat.algorithms.ppo import PPO

    assert check_trainable(PPO).name == "ppo"


OTHERS: dict[str, dict[str, Any]] = {
    "dqn": {"learning_starts": 64, "rollout_length": 32},
    "es": {"population_size": 2, "num_envs_per_worker": 4},
    "a3c": {"rollout_length": 16, "num_envs_per_worker": 2},
}


def test_every_algorithm_lives_in_its_host_and_leaves_nothing_there(torch_cluster: None, tmp_path: Path) -> None:
    host = Host.remote()
    for number, (algo, settings) in enumerate(OTHERS.items()):
        config = settings | {"env": "CartPole-v1", "policy": {"hidden_sizes": [16]}, "num_rollout_workers": 0}
        report = rlplat.get(host.begin.remote(str(tmp_path / str(number)), config, algo), timeout=80)
        assert report["env_steps"] > 0, algo
        assert len(living()) == 1, algo
        client, is_connected = rlplat.get(host.end.remote(), timeout=60)
        assert client != "inproc" and is_connected, algo
        checkpoint, _ = checkpoints.latest_valid(tmp_path / str(number))
        assert checkpoint is not None and checkpoint.info.algorithm == algo


def test_a_trial_does_not_see_the_cluster_that_the_one_before_forgot_to_close(
    torch_cluster: None, tmp_path: Path
) -> None:
    from rlplat import tune

    def forgetful(config: dict[str, Any], report: Any) -> None:
        rlplat.init(backend="inproc")  # refused where one is open
        report(value=float(config["n"]), pid=os.getpid())

    analysis = tune.run(
        forgetful,
        {"n": tune.grid([1, 2, 3])},
        metric="value",
        max_concurrent=1,
        out=tmp_path / "exp",
        progress=False,
    )
    assert [trial.state.value for trial in analysis.trials] == ["complete"] * 3
    assert len({trial.last["pid"] for trial in analysis.trials}) == 1


@pytest.mark.process
def test_gpus_are_the_learners_in_an_algorithm_and_the_hosts_in_a_function(tmp_path: Path) -> None:
    """GPUs by number only: nothing computes on them here."""
    from rlplat import tune

    def gpus(config: dict[str, Any]) -> dict[str, Any]:
        return {"value": config["n"], "gpus": len(rlplat.get_runtime_context().gpu_ids)}

    rlplat.init(num_cpus=2, num_gpus=2, preload=["torch"])
    try:
        space: dict[str, Any] = {"n": tune.grid([1, 2])}
        resources = {"cpu": 1, "gpu": 1}
        functions = tune.run(
            gpus, space, metric="value", resources=resources, out=tmp_path / "functions", progress=False
        )
        assert [trial.last["gpus"] for trial in functions.trials] == [1, 1]

        # One bundle with one GPU: it is there for the learner only because the host does not hold it.
        learner = {"num_gpus": 1, "device": "cpu"}
        space = SMALL | {"learner": learner, "stop": {"env_steps": 256}}
        algorithm = tune.run("ppo", space, out=tmp_path / "algorithm", progress=False)
        assert [trial.state.value for trial in algorithm.trials] == ["complete"], algorithm.trials[0].error
        # "auto" of an algorithm that has booked none is none, whatever the machine has.
        space = SMALL | {"learner": {"num_gpus": "auto"}, "stop": {"env_steps": 256}}
        tune.run("ppo", space, out=tmp_path / "auto", progress=False)
        settled = load_yaml(tmp_path / "auto" / "trials" / "00000" / "config.yaml").values
        assert settled["learner"]["num_gpus"] == 0
    finally:
        rlplat.shutdown()
