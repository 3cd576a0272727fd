"""`check_env` and the pre-flight: each lie is found, and told with what was expected, what came and the fix."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlplat.errors import EnvError, EnvNotFound, UsageError
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.envs.check import check_env, preflight
from rlplat.rl.envs.gym_spaces import mask_problem
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.obs_reader import observation_problems
from tests.rl.fixture_envs import SeededEnv

FIXTURES = "tests.rl.fixture_envs"
FAULTY = f"{FIXTURES}:FaultyEnv"


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", f"{FIXTURES}:ScriptedEnv", f"{FIXTURES}:SeededEnv"])
def test_sound_environments_pass(name: str) -> None:
    report = check_env(name, steps=30)
    assert report.is_sound and report.spaces is not None
    assert report.steps == 30
    assert report.require_sound() == preflight(AlgorithmConfig(env=name)) == report.spaces


def test_a_report_reads_well() -> None:
    assert str(check_env("CartPole-v1", steps=10)).splitlines() == [
        "CartPole-v1: Box(4) float32 -> Discrete(2); 10 random steps, 0 episodes",
        "  obs: vector 4 -> mlp",
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
        ("shape", 3, "has shape (3,), but its space says (2,)"),
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
        preflight(AlgorithmConfig(env=FAULTY, env_kwargs=kwargs))


def test_an_error_says_the_step_and_the_action() -> None:
    [line] = check_env(FAULTY, {"fault": "shape", "at": 3}, steps=10).lines
    assert "step 3 (step 3 of its episode), action " in line


def test_values_outside_the_bounds_after_reset_are_a_warning_made_once() -> None:
    report = check_env(FAULTY, {"fault": "bounds", "at": 2}, steps=10)
    assert report.is_sound
    [line] = [line for line in report.lines if "outside" in line]
    assert line.startswith("warning: step() [step 2") and "observation[1] is -3.25, outside" in line


def test_unsupported_spaces_are_both_named_with_what_is_supported() -> None:
    report = check_env(f"{FIXTURES}:UnsupportedEnv", steps=5)
    assert report.spaces is None
    observation, action = report.lines
    assert "observation space at 'log' Text" in observation
    assert "is not supported (supported: Box, Discrete, MultiDiscrete, MultiBinary, and Dict" in observation
    assert "action space at '1' Box(0, 3, (1,), int64) is not supported; a Box of actions needs a float" in action


TREE = f"{FIXTURES}:TreeEnv"


def test_a_tree_is_sound() -> None:
    report = check_env(TREE, steps=30)
    assert report.lines == ["note: obs 'camera': image 6x5x3 -> grid_cnn"] and report.episodes == 10


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (
            ("camera",),
            np.zeros((6, 5), np.uint8),
            "observation['camera'] has shape (6, 5), but its space says (6, 5, 3); ",
        ),
        (
            ("camera",),
            np.zeros((6, 5, 3)),
            "observation['camera'] has dtype float64, but its space says uint8",
        ),
        (("camera",), None, "observation lacks the key 'camera' that its space has"),
        (
            ("lidar",),
            1,
            "observation has the key 'lidar', which its space lacks; add it there, or leave it out",
        ),
        (("level",), 7, "observation['level'] is 7 (int), which is not in its space Discrete(5, start=2)"),
        (("level",), 7, "return an int from 2 to 6"),
        (("level",), 2.5, "observation['level'] is 2.5 (float)"),
        (("switches",), np.zeros((2, 3), np.int8), "return np.int8 zeros and ones of shape (2, 2)"),
        (("robot",), {"joints": 1}, "observation['robot'] is a dict, but its space is a Tuple of 2"),
        (
            ("robot", 0, "joints"),
            np.full((2, 2), np.nan, np.float32),
            "observation['robot'][0]['joints'][0, 0] is nan; find where",
        ),
        (("clock",), np.array(-0.5), "observation['clock'] is -0.5, outside its space's [0, inf]; widen"),
    ],
)
def test_lies_in_a_tree_are_named_by_their_keys(path: tuple[str, ...], value: object, expected: str) -> None:
    report = check_env(TREE, {"lies": {path: value}, "at": 2}, steps=10)
    [line] = [line for line in report.lines if not line.startswith("note")]
    assert expected in line and "step 2" in line
    assert report.is_sound == ("outside" in line)


def test_random_actions_arrive_as_those_of_a_policy() -> None:
    """Policies say float32, in a space of float64 too."""

    class Exact(SeededEnv):
        action_space = spaces.Box(-1.0, 1.0, (2,), np.float64)

        def step(self, action):  # type: ignore[no-untyped-def]
            assert action.dtype == np.float64 and (action == action.astype(np.float32)).all()
            return super().step(action)

    globals()["Exact"] = Exact
    assert check_env(f"{__name__}:Exact", steps=20).is_sound


@pytest.mark.parametrize("source", ["dict", "info", "method"])
def test_masks_are_obeyed_and_shown(source: str) -> None:
    """The environment raises on an illegal action."""
    report = check_env(f"{FIXTURES}:MaskEnv", {"source": source}, steps=40)
    assert report.findings == [] and "action_mask: mask(5)" in str(report)


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"lies": {3: np.zeros(5)}}, "step 3 (step 3 of its episode), action "),
        ({"lies": {3: np.zeros(5)}}, "has no legal action: [0 0 0 0 0]; leave at least one True, or end"),
        (
            {"source": "method", "lies": {2: np.ones(4)}},
            "the action mask has 4 entries ([1. 1. 1. 1.]), but actions ",
        ),
        (
            {"source": "method", "lies": {2: None}},
            "the action mask is None (NoneType), but expected is an array of 5",
        ),
        (
            {"source": "forgetful info"},
            "step() returned an info without 'action_mask', which its first reset() had",
        ),
        (
            {"source": "dict", "mask_space": spaces.MultiBinary(6)},
            "the observation 'action_mask' has 6 entries, but actions Discrete(5, start=1) need 5, one per choice; "
            "make its space MultiBinary(5)",
        ),
        (
            {"source": "dict", "mask_space": spaces.Tuple((spaces.MultiBinary(5),))},
            "the observation 'action_mask' is itself a Dict or Tuple",
        ),
    ],
)
def test_lies_of_masks(kwargs: dict[str, object], expected: str) -> None:
    [line] = check_env(f"{FIXTURES}:MaskEnv", kwargs, steps=20).lines
    assert line.startswith("error: ") and expected in line


def test_a_mask_for_actions_that_cannot_be_masked() -> None:
    box = spaces.Box(-1.0, 1.0, (2,))
    observation = spaces.Dict({"action_mask": spaces.MultiBinary(2), "x": box})
    assert "Box(2) float32 in [-1, 1], of which none can be masked; rename the key" in mask_problem(observation, box)


def test_very_wide_choices_are_a_warning() -> None:
    class Wide(gymnasium.Env):
        observation_space, action_space = spaces.Discrete(6000), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
            return 5999, {}

        def step(self, action):  # type: ignore[no-untyped-def]
            return 0, 0.0, True, False, {}

    globals()["Wide"] = Wide
    [line] = check_env(f"{__name__}:Wide", steps=3).lines
    assert line.startswith("warning: obs: 6,000 numbers go into an MLP; one for each value of a choice")


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
    assert "step() took longer than the limit of 0.2 s, at" in line and "fixture_envs.py" in line


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
    huge = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert observation_problems(np.array([0.0, 1e300]), huge)[0][0] == "finite", "networks compute in float32"
    [(kind, text)] = observation_problems(np.array([0.5, 1.0], np.float32), spaces.Box(0, 255, (2,), np.uint8))
    assert kind == "dtype" and "has fractions" in text and "astype" not in text, "all of them would be 0"
    nested = spaces.Tuple((box, spaces.Discrete(2)))
    [(kind, text)] = observation_problems((np.array([0.5, 2.0], np.float32), 1), nested)
    assert kind == "bounds" and text.startswith("observation[0][1] is 2, outside its space's [0, 1]")
    assert observation_problems((np.zeros(2, np.float32), 5), nested)[0][0] == "type"
    [(_, text)] = observation_problems((np.zeros(2, np.float32),), nested)
    assert text.startswith("observation is a tuple of 1, but its space is a Tuple of 2")


def test_a_wider_float_is_cast_with_a_warning() -> None:
    report = check_env(FAULTY, {"fault": "wide", "at": 3}, steps=10)
    assert report.is_sound
    assert "warning: observation has dtype float64, and its space says float32: every step casts it" in str(report)
    with make_vector_env(FAULTY, 2, env_kwargs={"fault": "wide", "at": 1}) as env:
        env.reset()
        obs = env.step(np.ones(2, np.int64)).obs
    assert obs.dtype == np.float32 and obs.tolist() == [[0.25, 0.25], [0.25, 0.25]]


class Changing(SeededEnv):
    """`when`: in which call the actions become three numbers."""

    def __init__(self, when: str = "reset") -> None:
        super().__init__()
        self.when = when

    def widen(self, call: str) -> None:
        if call == self.when:
            self.action_space = spaces.Box(-1.0, 1.0, (3,))

    def reset(self, **arguments: object) -> object:  # type: ignore[override]
        self.widen("reset")
        return super().reset(**arguments)  # type: ignore[arg-type]

    def step(self, action: object) -> object:  # type: ignore[override]
        self.widen("step")
        return super().step(action)  # type: ignore[arg-type]


@pytest.mark.parametrize("when", ["reset", "step"])
def test_spaces_that_change_later_are_refused(when: str) -> None:
    """Policies never took the actions that were new; nothing said so."""
    expected = r"Box\(2\) .* when it was made and are .*Box\(3\) .* now; set them in __init__"
    with pytest.raises(UsageError, match=expected):
        check_env(lambda: Changing(when), steps=5).require_sound()
    for vectorization in ("sync", "async"):
        with (
            pytest.raises(EnvError, match=expected),
            make_vector_env(lambda: Changing(when), 1, vectorization=vectorization) as env,  # type: ignore[arg-type]
        ):
            env.reset()
            env.step(np.zeros((1, 2), np.float32))
            env.reset()


class Alike(SeededEnv):
    """Its spaces are new objects each time they are asked for."""

    action_space = property(lambda self: spaces.Box(0.0, 1.0, (2,)))  # type: ignore[assignment]


def test_equal_spaces_are_the_same() -> None:
    assert check_env(Alike, steps=5).is_sound


def test_a_mask_that_a_wrapper_takes_away_is_told() -> None:
    masked = "rlplat.rl.envs.diagnostic:MaskedChoice"
    flat = {"wrappers": ["gymnasium.wrappers:FlattenObservation"]}
    assert "take away" not in str(check_env(masked, steps=5))
    report = check_env(masked, flat, steps=5)
    assert [finding.is_told for finding in report.findings if "its wrappers take away" in finding.text] == [True]


class Clock(SeededEnv):
    """Seconds since 1970, and since the episode began; `origin`: what the first ones are counted from."""

    def __init__(self, space: str = "float64", origin: float = 0.0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.dtype(space).type)  # type: ignore[arg-type]
        self.origin = origin

    def _obs(self) -> np.ndarray:
        return np.array([self._step, 1.7e9 + self._step - self.origin])


def test_numbers_that_float32_cannot_tell_apart_are_told() -> None:
    """The policy saw a constant."""
    for space in ("float64", "float32"):
        report = check_env(lambda space=space: Clock(space), steps=5)
        told = [finding for finding in report.findings if "one number in the float32" in finding.text]
        assert [each.is_told for each in told] == [True]
        assert "[1] went from 1700000000.0 to 1700000001.0" in told[0].text
    assert "float32 of networks" not in str(check_env(lambda: Clock(origin=1.7e9), steps=5))
