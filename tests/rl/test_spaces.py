"""Space specs: what policies and manifests read."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from rlplat.errors import UsageError
from rlplat.rl.spaces import SpaceSpec, action_converter, space_spec

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
        ((84, 84), np.uint8, "vector", ""),
        ((4, 84, 84), np.float32, "vector", ""),
        ((17,), np.float64, "vector", ""),
    ],
)
def test_kinds_of_observations(shape: tuple[int, ...], dtype: type, kind: str, layout: str) -> None:
    obs = space_spec(spaces.Box(0, 255, shape, dtype), spaces.Discrete(2)).obs
    assert (obs.kind, obs.layout, obs.flat_size) == (kind, layout, int(np.prod(shape)))


def test_a_description_survives_json() -> None:
    spec = space_spec(
        VECTOR, spaces.Box(np.array([-1.0, -np.inf], np.float32), np.array([1.0, np.inf], np.float32))
    )
    text = json.dumps(spec.describe(), allow_nan=False)
    assert SpaceSpec.from_description(json.loads(text)) == spec


def test_differences_name_both_sides() -> None:
    one = space_spec(VECTOR, spaces.Discrete(2))
    one.require_same(one, "the checkpoint", "CartPole-v1")
    wider = space_spec(spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
    with pytest.raises(UsageError, match=r"the checkpoint has observations Box\(3\).*but X has Box\(4\)"):
        one.require_same(wider, "the checkpoint", "X")
    more = space_spec(VECTOR, spaces.Discrete(3))
    with pytest.raises(
        UsageError, match=r"the checkpoint has actions Discrete\(2\), but X has Discrete\(3\)"
    ):
        one.require_same(more, "the checkpoint", "X")


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (spaces.Discrete(4), spaces.Discrete(2), "observation space Discrete.*FlattenObservation"),
        (spaces.Box(0, 1, ()), spaces.Discrete(2), "bare number; give it shape"),
        (None, spaces.Discrete(2), "observation_space is None"),
        (VECTOR, spaces.MultiBinary(3), "action space MultiBinary.*actions: Discrete, Box"),
        (VECTOR, spaces.Box(0, 3, (1,), np.int64), "float dtype"),
        (VECTOR, spaces.Box(0, 0, (1,)), "low >= high"),
        (VECTOR, 4, "action_space is 4"),
    ],
)
def test_unsupported_spaces_say_what_to_do(observation: object, action: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        space_spec(observation, action)
