"""Vector environments with nested observations, composite actions and masks: every loop, every autoreset mode."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlplat.errors import EnvError, NonFiniteError, UsageError
from rlplat.rl.envs.check import check_env
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.vector_env import VectorEnv
from rlplat.rl.envs.watchdog import NO_LIMITS
from rlplat.rl.interfaces import Obs, Step
from tests.rl.fixture_envs import MaskEnv, TreeEnv

FIXTURES = "tests.rl.fixture_envs"
TREE, MASKED = f"{FIXTURES}:TreeEnv", f"{FIXTURES}:MaskEnv"
PATHS = ["camera", "clock", "level", "robot/0/joints", "robot/1", "switches"]
SHAPES = [(6, 5, 3), (1,), (), (2, 2), (2,), (4,)]
DTYPES = ["uint8", "float64", "int64", "float32", "int64", "int8"]
ACTION = np.array([0.5, -7.0, 1, 2, 2, 1, 0], np.float32)


def gymnasium_loop(mode: str, make: Any, num_envs: int = 2) -> VectorEnv:
    raw = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode[mode])
    return VectorEnv(raw, "Raw", limits=NO_LIMITS)


def check_tree(obs: Obs, ages: list[int]) -> None:
    """ages: steps of each environment's episode."""
    assert isinstance(obs, dict) and list(obs) == PATHS
    for path, shape, dtype in zip(PATHS, SHAPES, DTYPES, strict=True):
        assert obs[path].shape == (len(ages), *shape) and obs[path].dtype == dtype, path
    for b, t in enumerate(ages):
        assert (obs["camera"][b] == t).all() and obs["clock"][b] == t / 2 and obs["level"][b] == t % 5
        assert obs["robot/1"][b].tolist() == [t % 3, t % 4]
        assert obs["switches"][b].tolist() == [t % 2, 0, 1, 1]


@pytest.mark.process
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_tree_through_our_loops(vectorization: Any) -> None:
    with make_vector_env(TREE, 2, vectorization=vectorization) as env:
        check_tree(env.reset(), [0, 0])
        for t in (1, 2):
            step = env.step(np.stack([ACTION, ACTION]))
            check_tree(step.obs, [t, t])
            assert step.rewards.tolist() == [1.0, 1.0]  # gear: column 2 of Discrete(3, start=-1)
        joints = step.obs["robot/0/joints"]  # type: ignore[call-overload]
        step = env.step(np.stack([ACTION, ACTION]))
        assert step.terminated.all() and step.final_obs is not None
        check_tree(step.obs, [0, 0])
        check_tree(step.final_obs, [3, 3])
        assert not np.array_equal(joints[0], joints[1])  # their own seeds


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_a_tree_in_every_autoreset_mode(mode: str) -> None:
    env = gymnasium_loop(mode, lambda: TreeEnv(length=2))
    env.reset()
    env.step(np.stack([ACTION, ACTION]))
    step = env.step(np.stack([ACTION, ACTION]))
    assert step.final_obs is not None
    check_tree(step.final_obs, [2, 2])
    if mode == "NEXT_STEP":
        check_tree(step.obs, [2, 2])
        step = env.step(np.stack([ACTION, ACTION]))
        assert not step.valid.any()
    check_tree(step.obs, [0, 0])
    env.close()


@pytest.mark.process
def test_the_same_numbers_from_every_loop() -> None:
    def play(env: VectorEnv) -> list[Any]:
        seen = [env.reset(3)]
        steps = [env.step(np.stack([ACTION, ACTION])) for _ in range(7)]
        env.close()
        return [*seen, *(step.obs for step in steps), *(step.final_obs for step in steps)]

    ours = play(make_vector_env(TREE, 2, vectorization="sync"))
    processes = play(make_vector_env(TREE, 2, vectorization="async"))
    for one, other in zip(ours, processes, strict=True):
        assert (one is None) == (other is None)
        for path in one or ():
            rows = slice(None) if one is not None else slice(0)
            assert np.array_equal(one[path][rows], other[path][rows]), path


def test_environments_get_actions_as_their_space_says() -> None:
    made: list[TreeEnv] = []

    def make() -> TreeEnv:
        made.append(TreeEnv())
        return made[-1]

    env = gymnasium_loop("SAME_STEP", make)
    env.reset()
    env.step(np.stack([ACTION, ACTION]))
    action = made[-1].last_action
    assert action["arm"][0].tolist() == [[0.5, -1.0]] and action["arm"][1].tolist() == [1, 2]
    assert action["gear"] == 1 and action["lamps"].tolist() == [1, 0]
    assert env.facts()["actions_clipped"]
    with pytest.raises(NonFiniteError, match=r"environment 1.*nan"):
        env.step(np.stack([ACTION, ACTION * np.nan]))
    env.close()


class Particular(TreeEnv):
    """Takes actions in the dtype of its space only, as gymnasium's own spaces say what is in them."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.action_space: Any = space

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), (action, type(action))
        self._time += 1
        return self._obs(), 0.0, False, False, {}


SMALL = spaces.Discrete(100, start=-100, dtype=np.int8)
PARTICULAR = [
    (spaces.Discrete(3, dtype=np.int32), [0, 2]),
    (spaces.Discrete(3, start=1, dtype=np.uint8), [0, 2]),
    (SMALL, [0, 99]),
    (spaces.Dict({"a": SMALL, "b": spaces.Tuple((spaces.Discrete(2, dtype=np.uint16),))}), [[0, 1], [99, 0]]),
    (spaces.MultiDiscrete([100, 2], start=[-100, 0], dtype=np.int8), [[0, 1], [99, 0]]),
]


@pytest.mark.process
@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(("space", "actions"), PARTICULAR, ids=lambda part: str(part)[:30])
def test_whole_numbers_arrive_in_the_dtype_of_their_space(space: Any, actions: Any, vectorization: Any) -> None:
    kwargs = {"space": space}
    with make_vector_env(f"{__name__}:Particular", 2, env_kwargs=kwargs, vectorization=vectorization) as env:
        env.reset()
        env.step(np.array(actions, np.float32 if env.spec.action.kind == "composite" else np.int64))
    assert check_env(f"{__name__}:Particular", kwargs, steps=20).is_sound


class Plain(TreeEnv):
    """One leaf of the tree alone."""

    action_space: Any = spaces.MultiDiscrete([2, 3])

    def __init__(self, key: str) -> None:
        super().__init__(length=2)
        self._key = key
        self.observation_space: Any = TreeEnv.observation_space[key]

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self._time += 1
        return self._obs(), 1.0, self._time == 2, False, {}

    def _obs(self) -> Any:
        return super()._obs()[self._key]


@pytest.mark.process
@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(("key", "expected"), [("level", 2), ("switches", [0, 0, 1, 1]), ("clock", [1.0])])
def test_one_leaf_alone_is_an_array(key: str, expected: Any, vectorization: Any) -> None:
    with make_vector_env(f"{__name__}:Plain", 2, env_kwargs={"key": key}, vectorization=vectorization) as env:
        env.reset()
        env.step(np.array([[1, 2], [0, 0]]))
        step = env.step(np.array([[1, 2], [0, 0]]))
        assert isinstance(step.final_obs, np.ndarray) and step.final_obs[1].tolist() == expected
    native = gymnasium_loop("SAME_STEP", lambda: Plain(key))
    native.reset()
    native.step(np.array([[1, 2], [0, 0]]))
    final_obs = native.step(np.array([[1, 2], [0, 0]])).final_obs
    assert isinstance(final_obs, np.ndarray) and final_obs.tolist() == [expected, expected]
    native.close()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("camera",),
            np.zeros((6, 5), np.uint8),
            "observation['camera'] has shape (6, 5), but its space says",
        ),
        (("level",), 7, "observation['level'] is 7 (int), which is not in its space Discrete(5, start=2)"),
        (("robot", 0, "joints"), None, "observation['robot'][0] lacks the key 'joints'"),
        (
            ("robot", 0, "joints"),
            np.array([[0, np.inf], [0, 0]], np.float32),
            "NaN or infinity in the observation 'robot/0/joints' at index (0, 1)",
        ),
    ],
)
def test_lies_in_a_tree(path: tuple[Any, ...], value: Any, message: str) -> None:
    with make_vector_env(TREE, 2, env_kwargs={"lies": {path: value}, "at": 2}) as env:
        env.reset()
        env.step(np.stack([ACTION, ACTION]))
        with pytest.raises(EnvError) as caught:
            env.step(np.stack([ACTION, ACTION]))
    text = str(caught.value)
    assert f"{TREE} (environment 0 of 0..1), step 2 (step 2 of its episode), action {{" in text
    assert message in text


def test_lies_of_a_native_tree() -> None:
    env = gymnasium_loop("SAME_STEP", TreeEnv)
    env.reset()
    raw_step = env._raw.step

    def lie(level: Any) -> Any:
        def step(actions: Any) -> Any:
            obs, *rest = raw_step(actions)
            return {**obs, "level": level}, *rest

        return step

    for level, message in [
        (np.array([2, 9]), "observation['level'] is [2 9], which is not in its space Discrete(5, start=2)"),
        (np.array([2]), "observation['level']: batch of shape (1,) int64, but its spaces say (2,) int64"),
    ]:
        env._raw.step = lie(level)
        with pytest.raises(EnvError, match=re.escape(message)):
            env.step(np.stack([ACTION, ACTION]))
    env.close()


@pytest.mark.process
@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("source", ["dict", "info", "method"])
def test_masks_from_everywhere_arrive_alike(source: str, vectorization: Any) -> None:
    with make_vector_env(MASKED, 2, env_kwargs={"source": source}, vectorization=vectorization) as env:
        assert isinstance(env.spec.obs, dict)
        assert list(env.spec.obs) == ["numbers" if source == "dict" else "obs", "action_mask"]
        obs = env.reset()
        finals = 0
        for t in range(9):
            assert isinstance(obs, dict)
            mask = obs["action_mask"]
            expected = np.isin(np.arange(5), [t % 4, t % 4 + 1])
            assert mask.dtype == np.bool_ and (mask == expected).all()
            step = env.step(np.full(2, t % 4 + t % 2))  # the environment raises where that is illegal
            finals += step.final_obs is not None
            obs = step.obs
        assert finals == 2 and len(env.pop_episodes()) == 4


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_a_mask_after_the_last_step_may_be_empty(mode: str) -> None:
    def play(lies: dict[int, Any]) -> Step:
        env = gymnasium_loop(mode, lambda: MaskEnv("dict", lies=lies))
        try:
            env.reset()
            for t in range(4):
                step = env.step(np.full(2, t))
            return step
        finally:
            env.close()

    final_obs = play({}).final_obs
    assert isinstance(final_obs, dict) and not final_obs["action_mask"].any()
    with pytest.raises(
        EnvError, match=r"\(environment 0 of 0\.\.1\), step 3 \(step 3 .*no legal action: \[0 0 0 0 0\]"
    ):
        play({3: np.zeros(5, np.int8)})


@pytest.mark.process
@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"lies": {0: np.zeros(5)}}, "before its first step: the action mask has no legal action"),
        (
            {"lies": {2: np.zeros(5)}},
            "step 2 (step 2 of its episode), action 2: the action mask has no legal action",
        ),
        (
            {"lies": {2: np.ones(4)}},
            "the action mask has 4 entries ([1. 1. 1. 1.]), but actions Discrete(5, start=1)",
        ),
        ({"lies": {2: "all"}}, "the action mask is 'all' (str), but expected is an array of 5 booleans"),
        (
            {"source": "forgetful info"},
            "step() returned an info without 'action_mask', which its first reset() had",
        ),
    ],
)
def test_lies_of_masks(kwargs: dict[str, Any], message: str, vectorization: Any) -> None:
    with make_vector_env(MASKED, 2, env_kwargs=kwargs, vectorization=vectorization) as env:
        with pytest.raises(EnvError) as caught:
            env.reset()
            env.step(np.zeros(2, np.int64))
            env.step(np.ones(2, np.int64))
    assert message in str(caught.value)


class TwoChoices(MaskEnv):
    """A composite action with two choices to be masked, given as a list of masks."""

    action_space = spaces.Tuple((spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,)), spaces.MultiDiscrete([3])))

    def __init__(self, second: tuple[int, ...] = (0, 1, 0)) -> None:
        super().__init__()
        self._second = second

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return self._obs(), 0.0, False, False, self._info()

    def _mask(self) -> Any:
        return [np.array([True, False]), np.array(self._second)]


def test_the_mask_of_a_composite_action_is_that_of_its_choices_in_order() -> None:
    with make_vector_env(f"{__name__}:TwoChoices", 1) as env:
        obs = env.reset()
        assert obs["action_mask"].tolist() == [[True, False, False, True, False]]  # type: ignore[call-overload]
        env.step(np.array([[0, 0.5, 1]], np.float32))
    with make_vector_env(f"{__name__}:TwoChoices", 1, env_kwargs={"second": (0, 0, 0)}) as env:
        with pytest.raises(EnvError, match=r"no legal action for choice 1 \(entries 2 to 4\): \[1 0 0 0 0\]"):
            env.reset()


def test_a_mask_of_the_wrong_length_is_refused_before_anything_is_stepped() -> None:
    with pytest.raises(UsageError, match=r"'action_mask' has 6 entries, but actions .* need 5"):
        make_vector_env(MASKED, 1, env_kwargs={"source": "dict", "mask_space": spaces.MultiBinary(6)})
