"""The loop as a generator: stop rules, periods, and `train` as a function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlplat.errors import ConfigError
from rlplat.rl.interfaces import Result
from rlplat.rl.run import run_directory
from rlplat.rl.run.training_loop import one_blas_thread, stop_reason, train, training_loop
from tests.cli.counting_algorithm import CountingAlgorithm, CountingConfig

ALGO = "tests.cli.counting_algorithm:CountingAlgorithm"


def counting(**settings: Any) -> CountingAlgorithm:
    return CountingAlgorithm(CountingConfig(env="X", **settings))


def test_the_stop_of_the_config_is_the_default() -> None:
    results = list(training_loop(counting(stop={"env_steps": 35})))
    assert [result.env_steps for result in results] == [10, 20, 30, 40]


def test_given_rules_replace_the_config_key_by_key_and_none_takes_one_away() -> None:
    algorithm = counting(stop={"env_steps": 35, "episode_return_mean": 1})
    assert len(list(training_loop(algorithm, stop={"env_steps": 50, "episode_return_mean": None}))) == 5
    algorithm = counting(stop={"env_steps": 35})
    results = list(training_loop(algorithm, stop={"env_steps": None, "episode_return": 60}))
    assert results[-1].episode_return_mean == 100  # reached at 60 episodes, but the mean is over 100


def test_a_stop_on_the_return_waits_for_100_episodes() -> None:
    rules = {"episode_return_mean": 475.0}
    assert stop_reason(rules, Result(1, 1000, 99, 500.0, 500.0), 1.0) == ""
    assert stop_reason(rules, Result(1, 1000, 100, 500.0, 500.0), 1.0) == "return 475 reached"
    assert stop_reason(rules, Result(1, 1000, 100, 474.9, 500.0), 1.0) == ""
    assert stop_reason({"wall_s": 60}, Result(1, 1000, 0, None, None), 60.5) == "60 s reached"
    assert stop_reason({"env_steps": 1000}, Result(1, 1024, 0, None, None), 1.0) == "1,000 env steps reached"


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ({"env_step": 5}, "unknown stop rule 'env_step'; did you mean 'env_steps'"),
        ({"wall_s": "long"}, "stop rule 'wall_s' is a number"),
        ({"env_steps": True}, "stop rule 'env_steps' is a number"),
        ({"episode_return": float("nan")}, "stop rule 'episode_return' is a number"),
    ],
)
def test_bad_stop_rules_are_refused(stop: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        next(training_loop(counting(), stop=stop))


def test_evaluations_come_with_their_period() -> None:
    algorithm = counting(stop={"env_steps": 100}, evaluation={"period": 25, "episodes": 2})
    evaluated = [result.env_steps for result in training_loop(algorithm) if "eval/return_mean" in result.metrics]
    assert evaluated == [30, 50, 80, 100]


def test_train_is_the_command_as_a_function(tmp_path: Path) -> None:
    run = train(ALGO, env="X", out=tmp_path / "demo", stop={"env_steps": 30}, batch=15, seed=2)
    assert run.result is not None and (run.result.env_steps, run.num_iterations) == (30, 2)
    assert run.evaluation["eval/return_mean"] == 11.5
    assert run.directory == tmp_path / "demo" and run.config.seed == 2
    with pytest.raises(ConfigError, match=r"unknown key 'sed' \(from argument sed\); did you mean 'seed'"):
        train(ALGO, env="X", out=tmp_path / "other", sed=3)


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    save, attempts = run_directory.save, []

    def full_at_first(*arguments: Any, **options: Any) -> Any:
        attempts.append(arguments)
        if len(attempts) < 3:
            raise OSError(28, "No space left on device")
        return save(*arguments, **options)

    monkeypatch.setattr(run_directory, "save", full_at_first)
    run = train(ALGO, env="X", out=tmp_path / "demo", stop={"env_steps": 90}, checkpoint_period=30)
    assert run.num_iterations == 9 and len(attempts) == 3
    assert capsys.readouterr().err.count("warning: no checkpoint at") == 2
    assert [path.name for path in (tmp_path / "demo/checkpoints").glob("step_*")] == ["step_90"]


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.process)])
def test_all_environments_of_a_run_and_of_its_resume_are_closed(tmp_path: Path, num_workers: int) -> None:
    (tmp_path / "open").mkdir()
    train(
        "ppo", env="tests.rl.fixture_envs:Counted", env_kwargs={"folder": str(tmp_path / "open")},
        num_rollout_workers=num_workers, rollout_length=64, num_envs_per_worker=2, minibatch_size=64, num_epochs=1,
        stop={"env_steps": 256}, evaluation={"episodes": 1}, out=tmp_path / "run",
    )  # fmt: skip
    assert list((tmp_path / "open").iterdir()) == []
    train(resume=tmp_path / "run", stop={"env_steps": 512})
    assert list((tmp_path / "open").iterdir()) == []


def test_the_algorithm_is_closed_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(CountingAlgorithm, "close", lambda algorithm: closed.append(algorithm))
    train(ALGO, env="X", out=tmp_path / "a", stop={"env_steps": 10})
    with pytest.raises(ConfigError):
        train(ALGO, env="X", out=tmp_path / "a" / "config.yaml" / "b")
    assert len(closed) == 2


def test_numpy_takes_one_thread_while_a_run_is_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from threadpoolctl import threadpool_info, threadpool_limits

    def threads() -> set[int]:
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # torch's, and as in workers not numpy's
    with threadpool_limits(2, user_api="blas"):
        with one_blas_thread():
            assert threads() == {1}
        assert threads() == {2}
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
        with one_blas_thread():
            assert threads() == {2}
