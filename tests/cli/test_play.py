"""`rlplat play` and `rlplat evaluate --checkpoint`, with an algorithm whose skill is known."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.cli import main
from rlplat.metrics import read_records

ACTING = "tests.cli.acting_algorithm:ActingAlgorithm"
COUNTING = "tests.cli.counting_algorithm:CountingAlgorithm"
ENV = "tests.rl.skilled_env:SkilledEnv"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*arguments: str, algo: str = ACTING, env: str = ENV) -> int:
    flags = ("--stop.env-steps", "80", "--evaluation.period", "20", "--best-at", "5", "--out", "demo")
    flags = flags if algo == ACTING else ("--stop.env-steps", "80", "--out", "demo")
    return main(["train", "--algo", algo, "--env", env, *flags, *arguments])


def frames(path: Path) -> int:
    import av

    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def said(capsys: Any, *arguments: str) -> str:
    capsys.readouterr()
    assert main([*arguments]) == 0
    return str(capsys.readouterr().out)


def test_evaluations_pin_their_weights_and_the_best_ones_stay(here: Path, capsys: Any) -> None:
    assert train() == 0
    evaluated = [
        (record["env_steps"], record["eval/env_steps"], record["eval/weights_version"])
        for record in read_records(here / "demo/metrics.jsonl")
        if "eval/return_mean" in record
    ]
    # Each comes a line after the one in which it began; the one at the end is that of the last line's weights.
    assert evaluated == [(30, 20, 2), (50, 40, 4), (70, 60, 6), (80, 80, 8)]
    evaluate = ["evaluate", "demo", "--checkpoint", "best", "--episodes", "2", "--json"]
    report = json.loads(said(capsys, *evaluate))
    # Skill is 1 at iteration 5; 4 and 6 are equally good, and the newer ones are kept.
    assert (report["checkpoint"], report["env_steps"]) == ("best", 60)
    assert report["returns"] == [5 * (1 - 1 / 64)] * 2
    report = json.loads(said(capsys, "evaluate", "demo", "--episodes", "2", "--json"))
    assert (report["checkpoint"], report["returns"]) == ("step_80", [5 * (1 - 3 / 64)] * 2)
    assert "best so far: evaluation" in (here / "demo/log.txt").read_text()


def test_deterministic_lines_hold_their_own_evaluation(here: Path) -> None:
    assert train("--deterministic") == 0
    evaluated = [
        (record["env_steps"], record["eval/env_steps"])
        for record in read_records(here / "demo/metrics.jsonl")
        if "eval/return_mean" in record
    ]
    assert evaluated == [(20, 20), (40, 40), (60, 60), (80, 80), (80, 80)]


def test_acting_needs_no_actors_and_no_training_state(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train() == 0
    monkeypatch.setattr(rlplat, "init", lambda *arguments, **options: pytest.fail("the runtime was started"))
    assert main(["evaluate", "demo", "--episodes", "1"]) == 0
    assert main(["play", "demo"]) == 0


def test_play_writes_a_video_and_prints_the_returns(here: Path, capsys: Any) -> None:
    assert train() == 0
    out = said(capsys, "play", "demo")
    assert "episode 1: return 4.77, length 5" in out
    assert "6 frames at 12/s: demo/videos/play_step_80.mp4" in out
    assert frames(here / "demo/videos/play_step_80.mp4") == 6
    out = said(capsys, "play", "demo", "--checkpoint", "best", "--episodes", "3", "--out", "best.mp4")
    assert "episode 3: return 4.9" in out and "± 0" in out
    assert frames(here / "best.mp4") == 18
    said(capsys, "play", "demo/checkpoints/best")
    assert frames(here / "demo/videos/play_best.mp4") == 6


def test_a_disk_that_cannot_be_written_is_not_the_environments_fault(here: Path, capsys: Any) -> None:
    assert train() == 0
    (here / "demo/videos").touch()
    assert main(["play", "demo"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("demo/videos/play_step_80.mp4 cannot be written: File exists")


def test_every_second_evaluation_is_filmed(here: Path) -> None:
    assert train("--evaluation.video-period", "2") == 0
    videos = sorted(path.name for path in (here / "demo/videos").iterdir())
    assert videos == ["eval_40.mp4", "eval_80.mp4"]
    assert frames(here / "demo/videos/eval_40.mp4") == 6


def test_an_environment_that_cannot_render_is_trained_on_and_that_is_said_once(here: Path, capsys: Any) -> None:
    flags = ("--evaluation.video-period", "1")
    assert train(*flags, env="tests.rl.fixture_envs:SeededEnv") == 0
    error = capsys.readouterr().err
    assert error.count("no videos: ") == 1 and "SeededEnv cannot be recorded" in error
    assert not (here / "demo/videos").exists()
    assert main(["play", "demo"]) == 2
    assert "SeededEnv cannot be recorded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no run in nowhere"),
        (["demo", "--episodes", "0"], "--episodes is a positive number"),
        (["demo", "--out", "film.avi"], "--out takes an .mp4 file, not 'film.avi'"),
        (["demo", "--show", "--out", "a.mp4"], "omit one of them"),
        (["demo", "--checkpoint", "step_7"], "no checkpoint 'step_7'; there are: latest, best, step_80"),
        (["demo/checkpoints/step_80", "--checkpoint", "best"], "is a checkpoint already"),
        (["demo", "--show"], "there is no display for a window"),
    ],
)
def test_bad_usage(here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert train() == 0
    before = sorted(os.listdir(here))
    assert main(["play", *arguments]) == 2
    assert said in capsys.readouterr().err and sorted(os.listdir(here)) == before


def test_without_an_evaluation_there_is_no_best_and_an_old_algorithm_cannot_be_filmed(here: Path, capsys: Any) -> None:
    assert train(algo=COUNTING) == 0
    assert main(["evaluate", "demo", "--checkpoint", "best"]) == 2
    assert "demo has no best checkpoint yet" in capsys.readouterr().err
    assert main(["play", "demo"]) == 2
    assert "CountingAlgorithm has no make_policy() and policy_weights()" in capsys.readouterr().err


def test_the_best_weights_are_not_to_be_trained_on(here: Path, capsys: Any) -> None:
    assert train() == 0
    assert main(["train", "--resume", "demo/checkpoints/best"]) == 2
    error = capsys.readouterr().err
    assert "holds weights only" in error and "--resume demo" in error


def test_another_environment_than_the_saved_one_is_refused(here: Path, capsys: Any) -> None:
    assert train() == 0
    config = here / "demo/config.yaml"
    config.write_text(config.read_text().replace(ENV, "CartPole-v1"))
    assert main(["evaluate", "demo"]) == 2
    error = capsys.readouterr().err
    assert "cannot be loaded: its spaces are" in error and "those of CartPole-v1 are now" in error
