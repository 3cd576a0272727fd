"""Space specs: what policies and manifests read."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from rlplat.errors import UsageError
from rlplat.rl.envs.gym_spaces import action_converter, action_row, policy_actions, space_spec
from rlplat.rl.spaces import ObsSpec, SpaceSpec, empty_actions, obs_leaves
from tests.rl.fixture_envs import TreeEnv

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)


def test_discrete_counts_from_its_start() -> None:
    spec = space_spec(VECTOR, spaces.Discrete(3, start=-1))
    assert (spec.action.kind, spec.action.n, spec.action.start, spec.action.flat_size) == (
        "discrete",
        3,
        -1,
        1,
    )
    assert str(spec) == "Box(3) float32 -> Discrete(3, start=-1)"
    convert = action_converter(spaces.Discrete(3, start=-1))
    assert convert(np.array([0, 2])).tolist() == [-1, 1]


def test_box_actions() -> None:
    space = spaces.Box(np.array([[-1.0, -2.0]]), np.array([[1.0, np.inf]]), dtype=np.float64)
    spec = space_spec(VECTOR, space).action
    assert (spec.shape, spec.flat_size, spec.low, spec.high) == ((1, 2), 2, (-1.0, -2.0), (1.0, np.inf))
    actions = action_converter(space)(np.array([[-9.0, -9.0], [0.5, 9.0]], np.float32))
    assert actions.shape == (2, 1, 2) and actions.dtype == np.float64
    assert actions.ravel().tolist() == [-1.0, -2.0, 0.5, 9.0]


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "layout"),
    [
        ((4, 84, 84), np.uint8, "image", "CHW"),
        ((210, 160, 3), np.uint8, "image", "HWC"),
        ((84, 84, 1), np.uint8, "image", "HWC"),
        ((17,), np.float64, "vector", ""),
    ],
)
def test_kinds_of_observations(shape: tuple[int, ...], dtype: type, kind: str, layout: str) -> None:
    obs = space_spec(spaces.Box(0, 255, shape, dtype), spaces.Discrete(2)).obs
    assert (obs.kind, obs.layout, obs.flat_size) == (kind, layout, int(np.prod(shape)))


def test_a_description_survives_json() -> None:
    spec = space_spec(VECTOR, spaces.Box(np.array([-1.0, -np.inf], np.float32), np.array([1.0, np.inf], np.float32)))
    text = json.dumps(spec.describe(), allow_nan=False)
    assert SpaceSpec.from_description(json.loads(text)) == spec


def test_differences_name_both_sides() -> None:
    one = space_spec(VECTOR, spaces.Discrete(2))
    one.require_same(one, "the checkpoint", "CartPole-v1")
    wider = space_spec(spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
    with pytest.raises(UsageError, match=r"the checkpoint has observations Box\(3\).*but X has Box\(4\)"):
        one.require_same(wider, "the checkpoint", "X")
    more = space_spec(VECTOR, spaces.Discrete(3))
    with pytest.raises(UsageError, match=r"the checkpoint has actions Discrete\(2\), but X has Discrete\(3\)"):
        one.require_same(more, "the checkpoint", "X")


TREE, ACTIONS = TreeEnv.observation_space, TreeEnv.action_space
"""gymnasium sorts the keys of a dict."""


def test_a_tree_becomes_one_dict_by_path() -> None:
    spec = space_spec(TREE, ACTIONS)
    assert spec.obs == {
        "camera": ObsSpec("image", (6, 5, 3), "uint8", "HWC"),
        "clock": ObsSpec("vector", (1,), "float64"),
        "level": ObsSpec("discrete", (), "int64", nvec=(5,)),
        "robot/0/joints": ObsSpec("vector", (2, 2), "float32"),
        "robot/1": ObsSpec("multi_discrete", (2,), "int64", nvec=(3, 4)),
        "switches": ObsSpec("multi_binary", (4,), "int8"),
    }
    leaves = obs_leaves(spec.obs)
    assert [leaf.flat_size for leaf in leaves.values()] == [90, 1, 1, 4, 2, 4]
    assert [leaf.num_features for leaf in leaves.values()] == [90, 1, 5, 4, 7, 4]
    assert [(path, part.kind) for path, part in spec.action.parts] == [
        ("arm/0", "box"),
        ("arm/1", "multi_discrete"),
        ("gear", "discrete"),
        ("lamps", "multi_binary"),
    ]
    assert (spec.action.flat_size, spec.action.mask_size, spec.action.mask_groups) == (7, 8, (2, 3, 3))
    assert str(spec) == (
        "Dict(camera: Box(6, 5, 3) uint8 HWC, clock: Box(1) float64, level: Discrete(5), "
        "robot/0/joints: Box(2, 2) float32, robot/1: MultiDiscrete([3, 4]), switches: MultiBinary(4)) -> "
        "Dict(arm/0: Box(1, 2) float32 in [-1, 1], arm/1: MultiDiscrete([2, 3]), gear: Discrete(3, start=-1), "
        "lamps: MultiBinary(2))"
    )


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Discrete(4), ObsSpec("discrete", (), "int64", nvec=(4,))),
        (spaces.MultiDiscrete([[2, 3]]), ObsSpec("multi_discrete", (2,), "int64", nvec=(2, 3))),
        (spaces.MultiBinary(3), ObsSpec("multi_binary", (3,), "int8")),
        (spaces.Box(0.0, 1.0, ()), ObsSpec("vector", (1,), "float32")),
    ],
)
def test_one_leaf_stays_an_array(space: spaces.Space, spec: ObsSpec) -> None:
    assert space_spec(space, spaces.Discrete(2)).obs == spec


def test_a_mask_is_the_last_leaf_wherever_it_comes_from() -> None:
    mask = ObsSpec("mask", (4,), "bool")
    spec = space_spec(VECTOR, spaces.Discrete(4), adds_mask=True)
    assert spec.obs == {"obs": ObsSpec("vector", (3,), "float32"), "action_mask": mask}
    own = spaces.Dict({"action_mask": spaces.Box(0, 1, (4,), np.int8), "x": VECTOR})
    spec = space_spec(own, spaces.Discrete(4))
    assert isinstance(spec.obs, dict) and list(spec.obs) == ["x", "action_mask"]
    assert spec.obs["action_mask"] == mask and mask.num_features == 0
    assert space_spec(own, spaces.Discrete(4), adds_mask=True) == spec
    with pytest.raises(UsageError, match=r"its actions are Box.*none can be masked"):
        space_spec(VECTOR, spaces.Box(-1, 1, (2,)), adds_mask=True)


def test_composite_actions_reach_their_parts() -> None:
    """Columns: arm/0 (2), arm/1 (2), gear, lamps (2)."""
    columns = np.array([[0.5, -7.0, 1, 2, 0, 1, 0], [0, 0, 0, 0, 2, 0, 1]], np.float32)
    actions = action_converter(ACTIONS)(columns)
    first = action_row(actions, 0)
    assert ACTIONS.contains(first) and ACTIONS.contains(action_row(actions, 1))
    assert first["arm"][0].tolist() == [[0.5, -1.0]] and first["arm"][1].tolist() == [1, 2]
    assert first["gear"] == -1 and first["lamps"].tolist() == [1, 0]
    assert action_row(actions, 1)["gear"] == 1


def test_flat_actions_of_several_choices() -> None:
    space = spaces.MultiDiscrete([[3, 2]], start=[[1, 0]])
    assert space.contains(action_converter(space)(np.array([[2, 1], [0, 0]]))[0])
    assert action_converter(space)(np.array([[2, 1]])).tolist() == [[[3, 1]]]
    bits = spaces.MultiBinary((2, 2))
    assert bits.contains(action_converter(bits)(np.array([[1, 0, 1, 1]]))[0])


def test_what_an_environment_took_is_said_as_a_policy_says_it() -> None:
    """One row and several, of every kind: the way there and back is the same."""
    kinds = [
        (spaces.Discrete(3, start=-1), [[0], [2], [1]]),
        (spaces.MultiDiscrete([[3, 2]], start=[[1, 0]]), [[2, 1], [0, 0], [1, 1]]),
        (spaces.MultiBinary((2, 2)), [[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]]),
        (spaces.Box(-2.0, 2.0, (1, 2), np.float64), [[0.5, -2.0], [2.0, 0.25], [0.0, -1.5]]),
        (ACTIONS, [[0.5, -1.0, 1, 2, 0, 1, 0], [0, 0, 0, 0, 2, 0, 1], [-1, 1, 1, 1, 1, 1, 1]]),
    ]
    for space, rows in kinds:
        like = empty_actions(space_spec(VECTOR, space).action, 0)
        for said in (np.array(rows, like.dtype), np.array(rows[:1], like.dtype)):
            said = said[:, 0] if like.ndim == 1 else said
            again = policy_actions(space, action_converter(space)(said))
            assert again.dtype == said.dtype and again.tolist() == said.tolist()
    with pytest.raises(ValueError, match="actions at 'gear' are not whole numbers"):
        policy_actions(spaces.Dict({"gear": spaces.Discrete(3)}), {"gear": np.array([0.5])})


def test_a_tree_survives_json_whatever_sorts_its_keys() -> None:
    spec = space_spec(spaces.Dict([("z", VECTOR), ("a", spaces.Discrete(2))]), ACTIONS)
    text = json.dumps(spec.describe(), allow_nan=False, sort_keys=True)
    again = SpaceSpec.from_description(json.loads(text))
    assert again == spec and list(obs_leaves(again.obs)) == ["z", "a"]


def test_descriptions_of_older_checkpoints_are_read() -> None:
    spec = space_spec(VECTOR, spaces.Discrete(2))
    description = spec.describe()
    del description["obs"]["nvec"], description["action"]["nvec"], description["action"]["parts"]
    assert SpaceSpec.from_description(description) == spec


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (spaces.Dict(b=VECTOR), "ours has an observation 'a', which theirs lacks"),
        (
            spaces.Dict(a=spaces.Discrete(2), b=VECTOR, x=VECTOR),
            "ours lacks the observation 'x' that theirs has",
        ),
        (VECTOR, r"ours has observations Dict\(a, b\), but theirs has Box\(3\) float32"),
        (
            spaces.Dict(a=spaces.Discrete(3), b=VECTOR),
            r"ours has the observation 'a': Discrete\(2\), but theirs has Discrete\(3\)",
        ),
        (
            spaces.Dict([("b", VECTOR), ("a", spaces.Discrete(2))]),
            "ours has the observations a, b, but theirs has them in the order b, a",
        ),
    ],
)
def test_differences_of_trees_name_the_key(other: spaces.Space, message: str) -> None:
    ours = space_spec(spaces.Dict(a=spaces.Discrete(2), b=VECTOR), spaces.Discrete(2))
    with pytest.raises(UsageError, match=message):
        ours.require_same(space_spec(other, spaces.Discrete(2)), "ours", "theirs")


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (
            spaces.Text(4),
            spaces.Discrete(2),
            "observation space Text.*supported: Box, Discrete.*ObservationWrapper",
        ),
        (
            spaces.Dict(a=spaces.Tuple((VECTOR, spaces.Text(3)))),
            spaces.Discrete(2),
            "observation space at 'a/1' Text",
        ),
        (spaces.Dict({}), spaces.Discrete(2), "is empty; leave it out"),
        (
            spaces.Dict({"a/b": VECTOR, "a": spaces.Dict(b=VECTOR)}),
            spaces.Discrete(2),
            "have the path 'a/b'; rename",
        ),
        (None, spaces.Discrete(2), "observation_space is None"),
        (VECTOR, spaces.Dict(a=spaces.Text(3)), "action space at 'a' Text.*supported: Box"),
        (VECTOR, spaces.Box(0, 3, (1,), np.int64), "float dtype"),
        (VECTOR, spaces.Box(0, 0, (1,)), "low >= high"),
        (VECTOR, 4, "action_space is 4"),
    ],
)
def test_unsupported_spaces_say_what_to_do(observation: object, action: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        space_spec(observation, action)
