from __future__ import annotations

import numpy as np

from rlplat.rl.parameter_server import ParameterServer


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
