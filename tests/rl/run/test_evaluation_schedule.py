"""When evaluations begin, which weights they pin, what waits and is left out, what is kept as best, what fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.checkpoints import CheckpointInfo, load_best
from rlplat.errors import ActorDied, EnvError
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.interfaces import Episode, Result
from rlplat.rl.run import evaluation_schedule
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.run.evaluation import Evaluated
from rlplat.rl.run.evaluation_schedule import Evaluations
from rlplat.rl.run.run_directory import RunDirectory
from rlplat.rl.seeding import Purpose


class Runtime:
    """Refs that are ready when the test says so; stands in for `rlplat` and for `Evaluation`."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.started: list[tuple[str, str, bool]] = []
        """(ref of the outcome, ref of the weights, whether it is to film)"""
        self.purposes: list[Purpose] = []
        """Of these."""
        self.waited_for: dict[Purpose, list[float]] = {}
        """Means of evaluations that are through as soon as they are started."""
        self.closed = 0

    def wait(self, refs: list[str], timeout: float) -> tuple[list[str], list[str]]:
        assert timeout == 0
        return [ref for ref in refs if ref in self.values], []

    def get(self, ref: str) -> Any:
        value = self.values[ref]  # KeyError: it would have waited
        if isinstance(value, Exception):
            raise value
        return value

    def start(
        self,
        weights: str,
        episodes: int,
        with_video: bool = False,
        *,
        purpose: Purpose = "choice",
        tells: bool = False,
    ) -> str:
        assert episodes == 2
        outcome = f"outcome {len(self.started)}"
        self.started.append((outcome, weights, with_video))
        self.purposes.append(purpose)
        if means := self.waited_for.get(purpose):
            self.finish(len(self.started) - 1, means.pop(0))
        return outcome

    def close(self) -> None:
        self.closed += 1

    def finish(self, index: int, mean: float, no_video: str = "") -> None:
        outcome, weights, films = self.started[index]
        episodes = [Episode(mean - 1, 5), Episode(mean + 1, 5)]
        video = b"a film" if films and not no_video else b""
        self.values[outcome] = Evaluated(self.values[weights][0], episodes, no_video, video)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime()
    monkeypatch.setattr(evaluation_schedule, "rlplat", runtime)
    monkeypatch.setattr(Fake, "new_evaluation", lambda self: runtime)
    return runtime


class Fake(Algorithm[AlgorithmConfig]):
    """Its weights' version is its env steps."""

    name = "fake"
    spaces = "spaces"
    not_saved = ("something",)

    def __init__(self, runtime: Runtime, **settings: Any) -> None:
        evaluation = {"period": 100, "episodes": 2} | settings.pop("evaluation", {})
        self.config = AlgorithmConfig(env="X", evaluation=evaluation, **settings)
        self.runtime = runtime
        self.env_steps = 0

    def step(self) -> Result:
        self.env_steps += 50
        return Result(self.env_steps // 50, self.env_steps, 0, None, None)

    def acting_weights(self) -> str:  # type: ignore[override]
        ref = f"weights {self.env_steps}"
        self.runtime.values[ref] = (self.env_steps, {"w": np.array([self.env_steps], np.float32)})
        return ref

    make_policy = policy_weights = staticmethod(lambda *_: None)  # type: ignore[assignment]


def turn(algorithm: Fake, evaluations: Evaluations, num_steps: int = 1) -> dict[str, float]:
    """The figures that came with the last of the steps."""
    figures: dict[str, float] = {}
    for _ in range(num_steps):
        before = algorithm.env_steps
        figures = evaluations.after_step(before, algorithm.step())
    return figures


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def show(self, result: Result, env_steps_per_s: float) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    run = open_run(tmp_path / "run")
    yield run
    run.close()


def open_run(path: Path, **options: Any) -> RunDirectory:
    return RunDirectory(
        path,
        config_yaml="",
        info=lambda algorithm, env_steps: CheckpointInfo("fake", "X", env_steps, "spaces", ["something"]),
        progress=Said(),
        **options,
    )


def said(run: RunDirectory) -> list[str]:
    assert isinstance(run.progress, Said)
    return run.progress.lines


def test_the_training_goes_on_and_the_figures_come_with_a_later_line(runtime: Runtime) -> None:
    algorithm = Fake(runtime)
    evaluations = Evaluations(algorithm)
    assert turn(algorithm, evaluations, 3) == {}  # 150 env steps; one began at 100, with the weights of then
    assert runtime.started == [("outcome 0", "weights 100", False)]
    runtime.finish(0, 7.0)
    figures = turn(algorithm, evaluations)
    assert figures["eval/return_mean"] == 7.0 and figures["eval/return_std"] == 1.0
    assert (figures["eval/env_steps"], figures["eval/weights_version"]) == (100, 100)
    assert "eval/skipped" not in figures
    assert runtime.started[1:] == [("outcome 1", "weights 200", False)]
    assert turn(algorithm, evaluations) == {}


def test_one_that_is_due_meanwhile_waits_and_a_second_is_counted(runtime: Runtime) -> None:
    algorithm = Fake(runtime)
    evaluations = Evaluations(algorithm)
    turn(algorithm, evaluations, 9)  # due at 100 (runs), 200 (waits), 300 and 400 (left out)
    assert len(runtime.started) == 1
    runtime.finish(0, 1.0)
    assert turn(algorithm, evaluations)["eval/skipped"] == 2
    # 500 fell due in the step in which the waiting one could begin: another one left out, with the newest weights
    assert [weights for _, weights, _ in runtime.started] == ["weights 100", "weights 500"]
    runtime.finish(1, 1.0)
    assert turn(algorithm, evaluations)["eval/skipped"] == 3


def test_deterministic_training_waits(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    start = runtime.start

    def start_and_finish(*arguments: Any, tells: bool, **options: Any) -> str:
        assert tells  # the training waits
        outcome = start(*arguments, **options)
        runtime.finish(len(runtime.started) - 1, 4.0)
        return outcome

    monkeypatch.setattr(runtime, "start", start_and_finish)
    algorithm = Fake(runtime, deterministic=True)
    evaluations = Evaluations(algorithm)
    assert [bool(turn(algorithm, evaluations)) for _ in range(4)] == [False, True, False, True]
    assert evaluations.get_state() == {"is_waiting": False, "started": 2, "skipped": 0, "failures": 0}


def test_the_best_weights_are_kept_and_of_equal_ones_the_newer(runtime: Runtime, run: RunDirectory) -> None:
    algorithm = Fake(runtime)
    evaluations = Evaluations(algorithm, run=run)
    kept = []
    for index, mean in enumerate((5.0, 4.0, 5.0, 9.0, 8.0)):
        turn(algorithm, evaluations, 2)
        runtime.finish(index, mean)
        evaluations.after_step(algorithm.env_steps, Result(0, algorithm.env_steps, 0, None, None))
        best = load_best(run.path)
        assert best is not None
        kept.append((best.info.env_steps, best.state["weights"]["w"].item()))
    assert kept == [(100, 100), (100, 100), (300, 300), (400, 400), (400, 400)]
    assert best.info.evaluation["eval/return_mean"] == 9.0 and best.info.evaluation["eval/env_steps"] == 400
    assert (best.info.algorithm, best.info.spaces, best.info.not_saved) == ("fake", "spaces", [])


def test_a_resumed_run_knows_its_best(runtime: Runtime, tmp_path: Path) -> None:
    first = open_run(tmp_path / "run")
    algorithm = Fake(runtime)
    evaluations = Evaluations(algorithm, run=first)
    turn(algorithm, evaluations, 2)
    runtime.finish(0, 5.0)
    turn(algorithm, evaluations)
    state = evaluations.get_state()
    first.close()
    again = open_run(tmp_path / "run", resumed_wall_s=1.0)
    evaluations = Evaluations(algorithm, run=again)
    evaluations.set_state(state)
    turn(algorithm, evaluations)
    runtime.finish(1, 4.0)
    turn(algorithm, evaluations)
    best = load_best(again.path)
    assert best is not None and best.info.env_steps == 100
    again.close()


def test_what_a_checkpoint_cut_off_begins_again(runtime: Runtime) -> None:
    algorithm = Fake(runtime)
    evaluations = Evaluations(algorithm)
    turn(algorithm, evaluations, 3)
    state = evaluations.get_state()
    assert state["is_waiting"] and state["started"] == 1
    resumed = Evaluations(algorithm)
    resumed.set_state(state)
    resumed.begin_again(150)
    assert runtime.started[1:] == [("outcome 1", "weights 150", False)]


def test_the_final_one_is_not_played_twice_and_an_older_one_is_given_up(runtime: Runtime, run: RunDirectory) -> None:
    """It plays episodes of its own; before, the newest weights play those by which the best are chosen."""
    algorithm = Fake(runtime)
    evaluations = Evaluations(algorithm, run=run)
    turn(algorithm, evaluations, 2)
    runtime.finish(0, 3.0)  # it is of the newest weights: waited for
    runtime.waited_for = {"final": [2.0]}
    last = Result(2, 100, 0, None, None)
    assert evaluations.final(last)["eval/return_mean"] == 2.0
    assert evaluations.final(last)["eval/return_mean"] == 2.0
    assert runtime.purposes == ["choice", "final"] and runtime.closed == 0
    best = load_best(run.path)
    assert best is not None and best.info.evaluation["eval/return_mean"] == 3.0

    turn(algorithm, evaluations, 3)  # at 250 that of 200 still runs
    runtime.waited_for = {"choice": [6.0], "final": [9.0]}
    assert evaluations.final(Result(5, 250, 0, None, None))["eval/return_mean"] == 9.0
    assert runtime.purposes[2:] == ["choice", "choice", "final"]
    assert runtime.closed == 1 and runtime.started[-1][1] == "weights 250"
    assert said(run) == ["the evaluation of 200 env steps was still running at the end: given up"]
    best = load_best(run.path)
    assert best is not None and best.info.evaluation["eval/return_mean"] == 6.0


def test_without_evaluations_during_the_training_the_final_weights_are_the_best(
    runtime: Runtime, run: RunDirectory
) -> None:
    algorithm = Fake(runtime, evaluation={"period": 0})
    evaluations = Evaluations(algorithm, run=run)
    turn(algorithm, evaluations, 3)
    runtime.waited_for = {"final": [4.0]}
    evaluations.final(Result(3, 150, 0, None, None))
    assert runtime.purposes == ["final"]
    best = load_best(run.path)
    assert best is not None and best.info.evaluation["eval/return_mean"] == 4.0


def test_a_failed_one_begins_again_with_its_weights_then_is_given_up(runtime: Runtime, run: RunDirectory) -> None:
    algorithm = Fake(runtime, evaluation={"video_period": 1})
    evaluations = Evaluations(algorithm, run=run)
    turn(algorithm, evaluations, 2)
    assert runtime.started == [("outcome 0", "weights 100", True)]
    runtime.values["outcome 0"] = ActorDied("actor Evaluator died (SIGKILL)")
    assert turn(algorithm, evaluations) == {} and runtime.closed == 1
    assert runtime.started[1] == ("outcome 1", "weights 100", False)
    runtime.values["outcome 1"] = EnvError("no such action")
    assert turn(algorithm, evaluations) == {}
    assert said(run) == [
        "warning: the evaluation of 100 env steps failed: actor Evaluator died (SIGKILL); it begins once more",
        "no videos: the evaluation failed while it recorded a video; training continues without",
        "warning: the evaluation of 100 env steps failed: no such action; given up, training continues",
    ]
    assert runtime.started[2] == ("outcome 2", "weights 200", False)
    runtime.finish(2, 1.0)
    assert turn(algorithm, evaluations)["eval/failures"] == 2


def test_the_one_at_the_end_raises_when_it_fails_twice(runtime: Runtime, run: RunDirectory) -> None:
    algorithm = Fake(runtime)
    evaluations = Evaluations(algorithm, run=run)
    runtime.waited_for = {"choice": [1.0]}
    runtime.values |= {"outcome 1": EnvError("broken"), "outcome 2": EnvError("broken still")}
    with pytest.raises(EnvError, match="broken still"):
        evaluations.final(Result(1, 50, 0, None, None))


def test_every_kth_is_filmed_the_last_always_and_what_cannot_be_is_said_once(
    runtime: Runtime, run: RunDirectory
) -> None:
    algorithm = Fake(runtime, evaluation={"video_period": 2})
    evaluations = Evaluations(algorithm, run=run)
    for index in range(3):
        turn(algorithm, evaluations, 2)
        runtime.finish(index, 1.0)
    turn(algorithm, evaluations)
    runtime.waited_for = {"choice": [1.0]}
    runtime.values["outcome 4"] = Evaluated(350, [Episode(1.0, 1)], "X cannot be recorded")
    evaluations.final(Result(7, 350, 0, None, None))
    assert [films for _, _, films in runtime.started] == [False, True, False, False, True]
    films = run.path / "videos"
    assert {path.name: path.read_bytes() for path in films.iterdir()} == {"eval_200.mp4": b"a film"}
    turn(algorithm, evaluations)
    runtime.finish(5, 1.0)
    turn(algorithm, evaluations, 2)
    assert [films for _, _, films in runtime.started[5:]] == [False, False]
    assert said(run) == ["no videos: X cannot be recorded; training continues without"]
