"""`check_env` and the pre-flight: each lie is found, and told with what was expected, what came and the fix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from rlplat.errors import EnvNotFound, UsageError
from rlplat.rl.env_check import check_env, observation_problems, preflight

FIXTURES = "tests.rl.fixture_envs"
FAULTY = f"{FIXTURES}:FaultyEnv"


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Pendulum-v1", f"{FIXTURES}:ScriptedEnv", f"{FIXTURES}:SeededEnv"]
)
def test_sound_environments_pass(name: str) -> None:
    report = check_env(name, steps=30)
    assert report.is_sound and report.spaces is not None
    assert report.steps == 30
    report.require_sound()


def test_a_report_reads_well() -> None:
    assert str(check_env("CartPole-v1", steps=10)).splitlines() == [
        "CartPole-v1: Box(4) float32 -> Discrete(2); 10 random steps, 0 episodes",
        "  no problems found",
    ]


def test_atari_is_checked_as_the_preprocessed_game() -> None:
    pytest.importorskip("ale_py")
    report = check_env("Pong", steps=4)
    assert report.is_sound and str(report.spaces) == "Box(4, 84, 84) uint8 CHW -> Discrete(6)"
    assert report.facts["frameskip"] == 4


@pytest.mark.parametrize(
    ("fault", "at", "expected"),
    [
        ("raise", 3, "step() raised ValueError: the pole fell off"),
        ("raise", 0, "reset() raised ValueError: reset went wrong"),
        ("init", 3, "raised RuntimeError: no display"),
        ("obs only", 0, "expected (obs, info)"),
        ("info", 0, "expected a dict"),
        ("bounds", 0, "observation[1] is 7.5, outside its space's [-1, 1]; widen the bounds"),
        ("nan obs", 0, "observation[0] is nan"),
        ("nan obs", 3, "observation[1] is nan"),
        ("shape", 3, "shape (3,), but observation_space says shape (2,)"),
        ("dtype", 3, "return obs.astype(np.float32)"),
        ("old api", 3, "the old gym API"),
        ("reward None", 3, "return float(reward)"),
        ("nan reward", 3, "the reward is nan"),
        ("done int", 3, "return bool(terminated)"),
    ],
)
def test_faults_are_errors_with_the_fix(fault: str, at: int, expected: str) -> None:
    kwargs = {"fault": fault, "at": at}
    report = check_env(FAULTY, kwargs, steps=10)
    assert expected in "\n".join(report.lines)
    assert not report.is_sound
    with pytest.raises(UsageError, match="FaultyEnv cannot be trained on:"):
        preflight(FAULTY, kwargs)


def test_an_error_says_the_step_and_the_action() -> None:
    [line] = check_env(FAULTY, {"fault": "shape", "at": 3}, steps=10).lines
    assert "step 3 (3 of its episode), action " in line


def test_values_outside_the_bounds_after_reset_are_a_warning_made_once() -> None:
    report = check_env(FAULTY, {"fault": "bounds", "at": 2}, steps=10)
    assert report.is_sound
    [line] = [line for line in report.lines if "outside" in line]
    assert line.startswith("warning: step() [step 2") and "observation[1] is -3.25, outside" in line


def test_unsupported_spaces_are_both_named_with_what_is_supported() -> None:
    report = check_env(f"{FIXTURES}:UnsupportedEnv", steps=5)
    text = "\n".join(report.lines)
    assert report.spaces is None
    assert "observation space Dict" in text and "action space MultiDiscrete([2 2]) is not supported" in text
    assert "observations: Box; actions: Discrete, Box" in text
    assert "observation['camera'] has shape (4, 5), but its space says (4, 4)" in text
    assert "observation lacks the key 'speed'" in text and "has the key 'velocity'" in text


def test_a_seed_that_does_nothing_is_a_warning() -> None:
    report = check_env(f"{FIXTURES}:UnseededEnv", steps=5)
    assert report.is_sound
    assert any("two resets with the same seed" in line for line in report.lines)
    assert any("differ from step 1" in line for line in report.lines)
    assert not check_env(f"{FIXTURES}:SeededEnv", steps=5).findings


def test_an_environment_that_never_ends_is_a_warning() -> None:
    [line] = check_env(f"{FIXTURES}:EndlessEnv", steps=1000).lines
    assert line.startswith("warning: no episode ended in 1000 random steps") and "TimeLimit" in line


def test_a_hang_ends_the_check() -> None:
    [line] = check_env(FAULTY, {"fault": "hang"}, steps=5, step_timeout_s=0.2).lines
    assert "step() took longer than step_timeout_s=0.2" in line and "fixture_envs.py" in line


def test_a_module_that_raises_is_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "broken_env.py").write_text("1 / 0\n")
    [line] = check_env(f"{tmp_path}/broken_env.py:Env").lines
    assert "importing it raised ZeroDivisionError" in line


def test_something_else_than_an_environment() -> None:
    [line] = check_env(f"{FIXTURES}:NotAnEnv").lines
    assert "made a NotAnEnv, which has no reset" in line


def test_an_unknown_name_is_not_a_report() -> None:
    with pytest.raises(EnvNotFound):
        check_env("CartPole-v8")


def test_wrong_env_kwargs_are_told_with_their_names() -> None:
    [line] = check_env("CartPole-v1", {"gravity": 3}).lines
    assert "env_kwargs={'gravity': 3}" in line and "TypeError" in line


def test_the_kinds_of_observation_problems() -> None:
    box = spaces.Box(0.0, 1.0, (2,), np.float32)
    assert observation_problems(np.array([0.5, 1.0], np.float32), box) == []
    assert observation_problems(np.float32(0.5), box)[0][0] == "shape"
    assert observation_problems([0.5, 0.5], box)[0][0] == "type"
    assert observation_problems(np.array([0, 1]), box)[0][0] == "dtype"
    assert observation_problems(np.array([0, 1], np.uint8), box) == []  # casts without loss
    nested = spaces.Tuple((box, spaces.Discrete(2)))
    [(kind, text)] = observation_problems((np.array([0.5, 2.0], np.float32), 1), nested)
    assert kind == "bounds" and text.startswith("observation[0][1] is 2, outside its space's [0, 1]")
    assert observation_problems((np.zeros(2, np.float32), 5), nested)[0][0] == "type"
