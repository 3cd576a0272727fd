"""The cluster that tests share: taken again when a test has left it clean, and by nobody else."""

from __future__ import annotations

import pytest

import rlplat
from rlplat.runtime.refs import backend
from tests.shared_cluster import SharedCluster

pytestmark = pytest.mark.process


@rlplat.remote
class Actor:
    def pid(self) -> int:
        return 1


def test_it_is_taken_again_only_as_it_was() -> None:
    cluster, used, left_behind = SharedCluster(), [], []
    for leave in (lambda: None, Actor.remote, lambda: rlplat.put(1), lambda: None):
        with cluster.opened(num_cpus=1, num_gpus=0):
            used.append(backend().session)  # type: ignore[attr-defined]
            assert rlplat.get(Actor.remote().pid.remote()) == 1
            left_behind.append(leave())
        assert not rlplat.is_initialized()
    assert used[0] == used[1] != used[2] != used[3]
    cluster.end()
