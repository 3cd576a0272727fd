"""Several parameter servers are as good as one: nothing lost in the cuts, the same numbers, the same state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import CheckpointError
from rlplat.rl.interfaces import Episode, UpdateReport, Weights
from rlplat.rl.learning.numpy_learning import Adam, RMSProp
from rlplat.rl.learning.parameter_server import (
    MIN_OBS,
    PART,
    Line,
    ObsMoments,
    ParameterServer,
    ShardedParameterServer,
)
from rlplat.rl.learning.weights import acting_weights
from rlplat.rl.normalization import OBS_MEAN

SHAPES: dict[str, tuple[int, ...]] = {"z.weight": (7, 30), "z.bias": (7,), "log_std": (), "a": (2, 3, 4)}
MOMENTS = ObsMoments(np.arange(3.0), np.ones(3), MIN_OBS)
REPORT = UpdateReport(8, [Episode(3.0, 3)], {"x": 1.0})


pytestmark = pytest.mark.usefixtures("runtime")


def arrays(seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    return {name: np.array(rng.normal(size=shape), np.float32) for name, shape in SHAPES.items()}


def make(num_servers: int, make_optimizer: Any = RMSProp, max_staleness: int = 10) -> ShardedParameterServer:
    server = rlplat.remote(ParameterServer)
    return ShardedParameterServer([server.remote(make_optimizer(), max_staleness) for _ in range(num_servers)], SHAPES)


def assert_same(one: Weights, other: Weights) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].shape == other[name].shape
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8])
def test_the_cuts_are_even_and_what_is_cut_can_be_joined(num_parts: int) -> None:
    line = Line(SHAPES, num_parts)
    parts = line.split(arrays(0))
    sizes = [part[PART].size for part in parts]
    assert sum(sizes) == 7 * 30 + 7 + 1 + 24 and max(sizes) - min(sizes) <= 1
    parts[0] |= {"extra": np.ones(2)}
    assert_same(line.join(parts), arrays(0) | {"extra": np.ones(2)})


@pytest.mark.parametrize("seed", range(20))
def test_parameters_of_every_size_come_back_from_every_number_of_parts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = {
        f"p{i}": tuple(int(n) for n in rng.choice([0, 1, 2, 3, 7, 16, 100], size=rng.integers(4)))
        for i in range(rng.integers(1, 6))
    }
    weights = {name: np.array(rng.normal(size=shape), np.float32) for name, shape in shapes.items()}
    for num_parts in range(1, 9):
        line = Line(shapes, num_parts)
        sizes = [part[PART].size for part in line.split(weights)]
        assert len(sizes) == num_parts and max(sizes) - min(sizes) <= 1
        assert_same(line.join(line.split(weights)), weights)


def test_statistics_are_kept_where_only_some_servers_have_them() -> None:
    server = make(3)
    server.set_weights(0, arrays(0))
    line = Line(SHAPES, 3)
    gradients = line.split(arrays(1))
    rlplat.get(server.servers[1].apply_gradients.remote(gradients[1], 0, learning_rate=0.1))
    own = rlplat.get(server.servers[1].get_state.remote())["optimizer"]["slots"]["squares"]
    squares = server.get_state()["optimizer_slots"]["squares"]
    assert_same(line.split(squares)[1], own)
    assert not any(array.any() for array in line.split(squares)[0].values())
    other = make(2)
    other.set_state(server.get_state())
    assert_same(other.get_state()["optimizer_slots"]["squares"], squares)


@pytest.mark.parametrize("count", [MIN_OBS - 1, MIN_OBS])
def test_who_acts_from_a_saved_state_has_what_the_servers_give_out(count: int) -> None:
    server = make(2)
    server.set_weights(0, arrays(0))
    moments = ObsMoments(np.arange(3.0), np.ones(3), count)
    _, given_out = server.apply_gradients(arrays(1), (0, 0), learning_rate=0.1, obs_moments=moments)
    assert (OBS_MEAN in given_out) is (count == MIN_OBS)
    assert_same(acting_weights(server.get_state()), given_out)


@pytest.mark.parametrize(
    "changed, said",
    [({"a": np.zeros((2, 3), np.float32)}, r"'a' have shape \(2, 3\)"), ({"a": None}, "'a' are not there")],
)
def test_weights_of_another_network_are_refused(changed: Weights, said: str) -> None:
    weights = {name: array for name, array in (arrays(0) | changed).items() if array is not None}
    with pytest.raises(CheckpointError, match=said + r", the network of the config has \(2, 3, 4\)"):
        Line(SHAPES, 2).split(weights)


def test_more_servers_than_elements() -> None:
    line = Line({"w": (2,)}, 3)
    parts = line.split({"w": np.ones(2, np.float32)})
    assert [part[PART].size for part in parts] == [0, 1, 1]
    assert_same(line.join(parts), {"w": np.ones(2, np.float32)})


@pytest.mark.parametrize("make_optimizer", [RMSProp, Adam])
def test_several_servers_give_the_numbers_of_one_bit_for_bit(make_optimizer: Any) -> None:
    results = []
    for num_servers in (1, 3):
        server = make(num_servers, make_optimizer)
        server.set_weights(0, arrays(0))
        versions, weights = server.latest()
        for step in range(5):
            versions, weights = server.apply_gradients(
                arrays(1 + step), versions, learning_rate=0.1, report=REPORT, obs_moments=MOMENTS
            )
        assert versions == (5,) * num_servers
        assert_same(server.latest()[1], weights)
        version, pinned = rlplat.get(server.weights())
        assert version == 5
        assert_same(pinned, weights)
        for other in server.servers[1:]:
            told = rlplat.get(other.take_report.remote())
            assert told.env_steps == 0 and told.metrics["learner/applied_gradients"] == 5
        results.append((weights, server.take_report(), server.get_state()["optimizer_slots"]))
    assert_same(results[0][0], results[1][0])
    assert results[0][1] == results[1][1] and results[0][1].env_steps == 40
    for slot, statistics in results[0][2].items():
        assert_same(statistics, results[1][2][slot])


def test_each_server_has_a_version_of_its_own() -> None:
    server = make(2, max_staleness=1)
    server.set_weights(0, arrays(0))
    # The second server alone has moved on by two: its part of a gradient of version (0, 0) is too old, the other not.
    only = Line(SHAPES, 2).split(arrays(1))[1]
    for version in (0, 1):
        rlplat.get(server.servers[1].apply_gradients.remote(only, version, learning_rate=0.1))
    versions, before = server.latest()
    assert versions == (0, 2)
    versions, after = server.apply_gradients(arrays(2), (0, 0), learning_rate=0.1)
    assert versions == (1, 2)
    changed = np.concatenate([(before[name] != after[name]).reshape(-1) for name in sorted(SHAPES)])
    assert changed.tolist() == [True] * (len(changed) // 2) + [False] * (len(changed) - len(changed) // 2)


@pytest.mark.parametrize("saved, resumed", [(1, 1), (2, 2), (1, 3), (3, 2)])
def test_state_goes_into_any_number_of_servers(saved: int, resumed: int) -> None:
    first, second = make(saved, Adam), make(resumed, Adam)
    first.set_weights(0, arrays(0))
    versions, _ = first.latest()
    for step in range(3):
        versions, _ = first.apply_gradients(
            arrays(1 + step), versions, learning_rate=0.1, report=REPORT, obs_moments=MOMENTS
        )
    state = first.get_state()
    acting = acting_weights(state)
    assert_same(acting, first.latest()[1])
    assert OBS_MEAN in acting
    second.set_state(state)
    after = [
        each.apply_gradients(arrays(9), each.latest()[0], learning_rate=0.1, report=REPORT) for each in (first, second)
    ]
    assert_same(after[0][1], after[1][1])
    assert after[1][0] == (4,) * resumed
    assert first.take_report() == second.take_report()


def test_a_state_without_any_gradient_is_a_state_as_well() -> None:
    first, second = make(2, Adam), make(3, Adam)
    first.set_weights(0, arrays(0))
    second.set_state(first.get_state())
    assert_same(second.latest()[1], arrays(0))


def test_no_gradient_for_several_servers() -> None:
    server = make(2)
    server.set_weights(0, arrays(0))
    versions, weights = server.apply_gradients(None, (0, 0), learning_rate=0.1, report=REPORT)
    assert versions == (0, 0) and server.take_report().env_steps == 8
    assert_same(weights, arrays(0))
