"""The parameter server on its own: versions, shared statistics, staleness, and the ledger of reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import CheckpointError
from rlplat.rl.interfaces import Episode, UpdateReport, Weights
from rlplat.rl.learning.numpy_learning import Adam, RMSProp
from rlplat.rl.learning.parameter_server import LINE, MIN_OBS, Line, ObsMoments, ParameterClient, ParameterServer
from rlplat.rl.learning.weights import acting_weights
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR


def test_gives_newer_weights_only() -> None:
    server = ParameterServer()
    assert server.latest() is None and server.version() == -1
    weights = {"actor_head.bias": np.zeros(2, np.float32)}
    assert server.set_weights(0, weights)
    assert server.latest() == (0, weights)
    assert server.latest(0) is None


def test_versions_only_go_up() -> None:
    server = ParameterServer()
    newer, late = {"w": np.ones(1, np.float32)}, {"w": np.zeros(1, np.float32)}
    assert server.set_weights(5, newer)
    assert not server.set_weights(4, late)
    assert not server.set_weights(5, late)
    assert server.latest(3) == (5, newer) and server.version() == 5


def make_server(max_staleness: int | None = None) -> ParameterServer:
    server = ParameterServer(RMSProp(decay=0.9, epsilon=0.01), max_staleness)
    server.set_weights(0, weights(1.0))
    return server


def weights(value: float) -> Weights:
    return {"a": np.full(2, value, np.float32), "b": np.full((1, 2), value, np.float32)}


def test_gradients_are_applied_under_statistics_that_all_senders_share() -> None:
    """Two workers' gradients go through one g: after the second, g holds both."""
    server = make_server()
    version, _ = server.apply_gradients(weights(2.0), 0, learning_rate=0.1)
    assert version == 1
    version, got = server.apply_gradients(weights(-4.0), 0, learning_rate=0.1)  # of another worker, one behind
    assert version == 2
    g1 = 0.1 * 4.0
    g2 = 0.9 * g1 + 0.1 * 16.0
    expected = 1.0 - 0.1 * 2.0 / np.sqrt(g1 + 0.01) + 0.1 * 4.0 / np.sqrt(g2 + 0.01)
    for array in got.values():
        np.testing.assert_allclose(array, expected, rtol=1e-6)


def test_staleness_is_how_many_versions_came_in_between() -> None:
    server = make_server()
    for version in (0, 0, 1, 3):  # applied at versions 0, 1, 2, 3: staleness 0, 1, 1, 0
        server.apply_gradients(weights(1.0), version, learning_rate=0.1)
    metrics = server.take_report().metrics
    assert (metrics["learner/staleness_mean"], metrics["learner/staleness_max"]) == (0.5, 1)
    assert metrics["learner/applied_gradients"] == 4 and metrics["learner/dropped_gradients"] == 0
    assert server.take_report().metrics["learner/staleness_max"] == 0


def test_a_gradient_that_is_too_old_is_dropped_and_its_sender_gets_fresh_weights() -> None:
    server = make_server(max_staleness=1)
    for version in (0, 1, 2):
        server.apply_gradients(weights(1.0), version, learning_rate=0.1)
    before = {name: array.copy() for name, array in server.latest()[1].items()}  # type: ignore[index]
    report = UpdateReport(10, [Episode(1.0, 10)], {})
    version, fresh = server.apply_gradients(weights(1.0), 1, learning_rate=0.1, report=report)  # 2 old
    assert version == 3
    for name in before:
        np.testing.assert_array_equal(fresh[name], before[name])
    version, _ = server.apply_gradients(weights(1.0), 2, learning_rate=0.1)  # 1 old: within the bound
    assert version == 4
    told = server.take_report()
    assert told.metrics["learner/dropped_gradients"] == 1 and told.metrics["learner/applied_gradients"] == 4
    # Its steps were taken in the environments, whatever became of the gradient.
    assert told.env_steps == 10 and told.episodes == [Episode(1.0, 10)]


def test_no_gradient_is_counted_and_answered() -> None:
    server = make_server()
    version, _ = server.apply_gradients(None, 0, learning_rate=0.1, report=UpdateReport(7, [], {}))
    told = server.take_report()
    assert version == 0 and told.env_steps == 7 and told.metrics["learner/skipped_gradients"] == 1


def test_what_does_not_fit_is_refused_and_named() -> None:
    server = make_server()
    with pytest.raises(ValueError, match=r"only one of them has \['b'\]"):
        server.apply_gradients({"a": np.ones(2, np.float32)}, 0, learning_rate=0.1)
    with pytest.raises(ValueError, match="of version 3 came to a parameter server that has only 0"):
        server.apply_gradients(weights(1.0), 3, learning_rate=0.1)
    assert server.version() == 0


def test_reports_add_up_and_metrics_are_means_over_those_that_have_them() -> None:
    server = make_server()
    server.apply_gradients(
        weights(1.0), 0, learning_rate=0.1, report=UpdateReport(10, [Episode(1.0, 5)], {"x": 1.0, "y": 4.0})
    )
    server.apply_gradients(weights(1.0), 0, learning_rate=0.1, report=UpdateReport(6, [], {"x": 3.0}))
    told = server.take_report()
    assert (told.env_steps, told.episodes) == (16, [Episode(1.0, 5)])
    assert (told.metrics["x"], told.metrics["y"]) == (2.0, 4.0)
    assert server.take_report()[:2] == (0, [])


def test_observation_statistics_of_all_workers_are_merged_and_travel_with_the_weights() -> None:
    rng = np.random.default_rng(0)
    seen = [rng.normal(size=(n, 3)) for n in (4, 900, 500)]
    server = make_server()
    assert OBS_MEAN not in server.latest()[1]  # type: ignore[index]
    for obs in seen:
        moments = ObsMoments(obs.mean(axis=0), obs.var(axis=0), len(obs))
        _, got = server.apply_gradients(weights(0.0), 0, learning_rate=0.1, obs_moments=moments)
        # Those of a few neighbours in time would make a feature that is constant there explode when it changes.
        assert (OBS_MEAN in got) is (obs is seen[-1])
    np.testing.assert_allclose(got[OBS_MEAN], np.concatenate(seen).mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(got[OBS_VAR], np.concatenate(seen).var(axis=0), rtol=1e-5)


def test_a_restored_server_goes_on_alike() -> None:
    server, restored = make_server(), ParameterServer(RMSProp(decay=0.9, epsilon=0.01))
    moments = ObsMoments(np.ones(3), np.ones(3), 600)
    report = UpdateReport(10, [Episode(1.0, 5)], {"x": 1.0})
    server.apply_gradients(weights(1.0), 0, learning_rate=0.1, report=report, obs_moments=moments)
    restored.set_state(server.get_state())
    results = [
        each.apply_gradients(weights(2.0), 1, learning_rate=0.1, report=report, obs_moments=moments)
        for each in (server, restored)
    ]
    assert results[0][0] == results[1][0] == 2
    for name, array in results[0][1].items():
        np.testing.assert_array_equal(array, results[1][1][name])
    assert server.take_report() == restored.take_report()


def test_weights_that_came_read_only_are_changed_all_the_same() -> None:
    server = ParameterServer(RMSProp())
    given = weights(1.0)
    for array in given.values():
        array.flags.writeable = False
    server.set_weights(0, given)
    _, got = server.apply_gradients(weights(1.0), 0, learning_rate=0.1)
    assert (got["a"] < 1.0).all() and (given["a"] == 1.0).all()


# ---------------------------------------------------------------- its clients

SHAPES: dict[str, tuple[int, ...]] = {
    "z.weight": (7, 30),
    "z.bias": (7,),
    "log_std": (),
    "none": (0, 3),
    "a": (2, 3, 4),
}


def arrays(seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    return {name: np.array(rng.normal(size=shape), np.float32) for name, shape in SHAPES.items()}


def assert_same(one: Weights, other: Weights) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].shape == other[name].shape
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_what_travels_as_one_array_comes_back() -> None:
    packed = Line(SHAPES).pack(arrays(0))
    assert packed.keys() == {LINE} and packed[LINE].shape == (7 * 30 + 7 + 1 + 24,)
    assert_same(Line(SHAPES).unpack(packed | {"extra": np.ones(2)}), arrays(0) | {"extra": np.ones(2)})


@pytest.mark.parametrize(
    "changed, said",
    [({"a": np.zeros((2, 3), np.float32)}, r"'a' have shape \(2, 3\)"), ({"a": None}, "'a' are not there")],
)
def test_weights_of_another_network_are_refused(changed: Weights, said: str) -> None:
    weights = {name: array for name, array in (arrays(0) | changed).items() if array is not None}
    with pytest.raises(CheckpointError, match=said + r", the network of the config has \(2, 3, 4\)"):
        Line(SHAPES).pack(weights)


def client(make_optimizer: Any = RMSProp) -> ParameterClient:
    return ParameterClient(rlplat.remote(ParameterServer).remote(make_optimizer(), 10), SHAPES)


@pytest.mark.parametrize("make_optimizer", [RMSProp, Adam])
def test_a_client_gets_the_numbers_of_the_server(runtime: None, make_optimizer: Any) -> None:
    parameters, alone = client(make_optimizer), ParameterServer(make_optimizer())
    for each in (parameters, alone):
        each.set_weights(0, arrays(0))
    version, weights = parameters.latest()
    for step in range(3):
        version, weights = parameters.apply_gradients(arrays(1 + step), version, learning_rate=0.1)
        expected = alone.apply_gradients(arrays(1 + step), step, learning_rate=0.1)
        assert version == expected[0]
        assert_same(weights, expected[1])
    assert rlplat.get(parameters.weights())[0] == version
    assert_same(rlplat.get(parameters.weights())[1], weights)
    assert parameters.apply_gradients(None, version, learning_rate=0.1)[0] == version
    assert parameters.take_report().metrics["learner/skipped_gradients"] == 1


@pytest.mark.parametrize("num_steps", [0, 3])
def test_a_client_saves_and_restores_the_server(runtime: None, num_steps: int) -> None:
    first, second = client(Adam), client(Adam)
    first.set_weights(0, arrays(0))
    report, moments = UpdateReport(8, [Episode(3.0, 3)], {"x": 1.0}), ObsMoments(np.ones(3), np.ones(3), MIN_OBS)
    for step in range(num_steps):
        first.apply_gradients(arrays(1 + step), step, learning_rate=0.1, report=report, obs_moments=moments)
    state = first.get_state()
    assert_same(acting_weights(state), first.latest()[1])
    assert (OBS_MEAN in acting_weights(state)) is bool(num_steps)
    # As an earlier version saved two servers, of which one was behind.
    second.set_state(state | {"versions": [0, num_steps], "optimizer_steps": [0, num_steps]})
    after = [each.apply_gradients(arrays(9), num_steps, learning_rate=0.1) for each in (first, second)]
    assert after[0][0] == after[1][0] == num_steps + 1
    assert_same(after[0][1], after[1][1])
    assert first.take_report() == second.take_report()
