"""What a run's agent and its exported file make of an observation that is not in the space's dtype: the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlplat.acting import box_values
from rlplat.errors import BadObservation
from rlplat.export.contract import Contract
from rlplat.export.exported_policy import ExportedPolicy
from rlplat.export.policy_export import contract_of
from rlplat.rl.run.agent_spaces import AgentSpaces

Read = Callable[[gym.Space[Any], Any], np.ndarray]


def by_the_agent(space: gym.Space[Any], obs: Any) -> np.ndarray:
    rows, _ = AgentSpaces(space, spaces.Discrete(2)).read(obs)
    assert isinstance(rows, np.ndarray)
    return rows[0]


def by_the_file(space: gym.Space[Any], obs: Any) -> np.ndarray:
    """Without a file: reading is before the network."""
    policy = ExportedPolicy.__new__(ExportedPolicy)
    contract = contract_of(AgentSpaces(space, spaces.Discrete(2)), 0, (), 0)
    policy.contract = Contract.from_json(json.dumps(json.loads(contract.to_json())), "policy.onnx")
    return policy.read(obs)[0]["obs"][0]


READERS = pytest.mark.parametrize("read", [by_the_agent, by_the_file])


def box(dtype: Any, shape: tuple[int, ...] = (2,)) -> spaces.Box:
    limits = {"f": (-1.0, 1.0), "b": (0, 1)}.get(np.dtype(dtype).kind)
    low, high = limits or (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(low, high, shape, dtype)


@READERS
@pytest.mark.parametrize(
    ("dtype", "obs", "said"),
    [
        (np.int8, [300, 1], "holds 300, which is not between -128 and 127"),
        (np.int8, np.array([1, -129]), "holds -129, which is not between -128 and 127"),
        (np.int8, np.array([200, 1], np.uint8), "holds 200, which is not between -128 and 127"),
        (np.uint8, [0, 256], "holds 256, which is not between 0 and 255"),
        (np.uint8, np.array([-1, 1], np.int8), "holds -1, which is not between 0 and 255"),
        (
            np.int64,
            np.array([2**63, 1], np.uint64),
            f"holds {2**63}, which is not between {-(2**63)} and {2**63 - 1}",
        ),
        (np.uint64, [-1, 1], f"holds -1, which is not between 0 and {2**64 - 1}"),
        (np.bool_, [1, 2], "holds 2, which is not between 0 and 1"),
        (np.float32, [1e300, 0.0], r"holds 1e\+300, which is not between -3.4028234663852886e\+38 and 3.40"),
        (np.float16, [70_000, 0], "holds 70000, which is not between -65504.0 and 65504.0"),
        (np.uint8, [0.5, 1.0], r"has dtype float64; expected uint8\[2\] for one"),
        (np.float32, [2**70, 1], "has dtype object"),
        (np.float32, [np.inf, 0.0], "NaN or infinity in observation"),
    ],
)
def test_a_number_that_does_not_fit_is_named_with_the_range(dtype: Any, obs: Any, said: str, read: Read) -> None:
    with pytest.raises(BadObservation, match=said):
        read(box(dtype), obs)


@READERS
@pytest.mark.parametrize(
    ("dtype", "obs"),
    [
        (np.int8, [-128, 127]),
        (np.uint8, [0, 255]),
        (np.uint64, np.array([0, 127], np.int8)),
        (np.int64, np.array([0, 2**63 - 1], np.uint64)),
        (np.bool_, [1, 0]),
        (np.float32, [1, 2]),
        (np.float32, [True, False]),
        (np.float32, np.array([1.5, -3e38])),
    ],
)
def test_whole_numbers_of_any_dtype_and_floats_of_any_width_will_do(dtype: Any, obs: Any, read: Read) -> None:
    found = read(box(dtype), obs)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.asarray(obs, dtype))


@READERS
@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (spaces.Discrete(3, start=-1), np.uint64(2**64 - 1)),
        (spaces.MultiDiscrete([3, 3]), np.array([0, 2**63], np.uint64)),
        (spaces.MultiBinary(2), [256, 1]),
    ],
)
def test_a_choice_does_not_wrap_into_its_space(space: gym.Space[Any], obs: Any, read: Read) -> None:
    with pytest.raises(BadObservation, match="which is not in its space"):
        read(space, obs)


def test_one_number_and_none_are_arrays_too() -> None:
    assert box_values(np.array(3), np.int8) == 3
    assert box_values(np.zeros((0, 2), np.int64), np.int8).shape == (0, 2)
    with pytest.raises(ValueError, match="holds 300"):
        box_values(np.array(300), np.int8)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float32])
def test_a_torch_module_normalises_observations_of_any_dtype(dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    from rlplat.rl.normalization import OBS_MEAN, OBS_VAR
    from rlplat.rl.policies.make import make_policy
    from rlplat.rl.torch.agent_module import agent_module
    from rlplat.rl.torch.networks import ActorCritic
    from rlplat.rl.torch.weights import weights_of
    from tests.rl.specimens import make_spec

    agent = AgentSpaces(box(dtype, (4,)), spaces.Discrete(3))
    spec = make_spec(agent.spec.obs)
    policy = make_policy(spec, np.random.SeedSequence(0))
    statistics = {OBS_MEAN: np.full(4, 0.5, np.float32), OBS_VAR: np.full(4, 0.25, np.float32)}
    weights = weights_of(ActorCritic(spec)) | statistics
    policy.set_weights(weights)
    rows, _ = agent.read(np.array([[0, 1, 1, 0], [1, 1, 1, 1]]))
    with torch.no_grad():
        outputs = agent_module(policy, weights, "torch")(torch.from_numpy(rows))
    np.testing.assert_array_equal(outputs.argmax(dim=1), policy.act(rows, deterministic=True).actions)
