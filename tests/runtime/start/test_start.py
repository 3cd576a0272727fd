"""The start of a cluster: what becomes of a node, or a driver, that does not do its part."""

from __future__ import annotations

import os
from typing import Any

import pytest

import rlplat
from rlplat.errors import NodeLost
from rlplat.runtime.node import node
from rlplat.runtime.start import start


@pytest.mark.process
def test_a_node_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_START_S", 0.2)
    monkeypatch.setattr(start, "main_of", lambda module: "import time; time.sleep(600)")
    with pytest.raises(NodeLost, match=r"did not start within 0\.2 s"):
        rlplat.init(num_cpus=1, num_gpus=0)


def test_a_node_whose_driver_was_killed_during_the_start_ends_quietly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(descriptor: int, data: bytes) -> int:
        raise BrokenPipeError

    made: Any = node.Node.__new__(node.Node)
    made._event, made._total, made._num_spares = lambda event: None, {"CPU": 1.0}, 1
    monkeypatch.setattr(os, "write", write)
    made.run()
