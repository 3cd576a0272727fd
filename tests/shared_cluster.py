"""One cluster for tests that run one after the other: its start takes as long as most of what they test.

    one_cluster = SharedCluster()
    with one_cluster.opened(num_cpus=2, num_gpus=0):
        ...a test...
    one_cluster.end()

The next test gets it only if this one left it as it was: connected, everything free, no actor, task, object or
placement group. Else it ends, and the next test starts another one. What a shared cluster itself leaves behind is found
when it ends.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

import rlplat
from rlplat import state
from rlplat.errors import RlplatError
from rlplat.runtime import refs as connection
from rlplat.runtime.look.observer import Observer, find_session
from tests.leak_meter import LeakMeter

OpenCluster = Callable[..., AbstractContextManager[None]]
_SETTLE_S = 1.0
"""Calls that a test cancelled and actors that it dropped take a moment to end; most take milliseconds."""


@contextlib.contextmanager
def own_cluster(**options: Any) -> Iterator[None]:
    """A cluster that no other test has used or will use."""
    rlplat.init(**options)
    yield
    rlplat.shutdown()


class SharedCluster:
    def __init__(self) -> None:
        self._options: dict[str, Any] | None = None
        """Of the running cluster; None: there is none."""
        self._meter: LeakMeter | None = None

    @contextlib.contextmanager
    def opened(self, **options: Any) -> Iterator[None]:
        """This process is the driver of a cluster that was started with these options of `rlplat.init`."""
        if self._options == options:
            connection.set_backend(self._backend)
        else:
            self.end()
            rlplat.init(**options)
            self._options, self._backend = options, connection.backend()
        yield
        if self._is_as_it_was():
            connection.set_backend(None)
        else:
            rlplat.shutdown()  # it, or what the test opened when it had ended it
            self._options = None

    def end(self) -> None:
        """End the cluster, if there is one."""
        if self._options is not None:
            connection.set_backend(self._backend)
            rlplat.shutdown()
            self._options = None

    def watch(self) -> None:
        """Before a test and its fixtures: from here to the cluster's end a meter looks for leaks."""
        if self._meter is None:
            self._meter = LeakMeter.start()

    def check(self) -> None:
        """After a test and its fixtures: if the cluster has ended, the test fails when anything is left."""
        if self._options is None and self._meter is not None:
            leaks, self._meter = self._meter.finish(), None
            if leaks:
                pytest.fail("tests on a shared cluster left behind:\n  " + "\n  ".join(leaks), pytrace=False)

    def _is_as_it_was(self) -> bool:
        if connection.connection() is not self._backend:
            return False
        began, has_collected = time.monotonic(), False
        while not self._is_idle():
            waited_s = time.monotonic() - began
            if waited_s > _SETTLE_S:
                return False
            if not has_collected and waited_s > _SETTLE_S / 4:
                # Refs and handles in cycles; no sooner, as it takes longer than many a test.
                has_collected = True
                gc.collect()
            time.sleep(0.01)
        return True

    def _is_idle(self) -> bool:
        """Asks the node first: a worker that hangs or is dying would let the other questions wait for its answer."""
        try:
            with Observer(find_session()) as observer:
                view = observer.ask_node()
            return (
                rlplat.available_resources() == rlplat.cluster_resources()
                and all(worker["state"] == "idle" for worker in view["workers"])
                and all(actor["state"] == "dead" for actor in view["actors"])
                and not view["placement_groups"]
                and not state.list_objects()
                and not state.list_tasks()
            )
        except RlplatError:  # the node or the driver's connection is gone
            return False
