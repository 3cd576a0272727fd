"""One cluster for the tests of the verbs, one after another: each leaves it as it found it, or it ends with it.

Starting a cluster takes three interpreters, and half of these tests take less than that. A test that kills or fills its
cluster needs do nothing: what is not as new after it is shut down, and the next test has another one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import rlplat
from rlplat import state
from tests.patience import soon

_SETTLE_S = 1.0


def _shares(item: pytest.Item | None) -> bool:
    """Whether the test uses the fixture `cluster`, or `backend` on zmq, of this file."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    by_name = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    wanted = "backend" if params.get("backend") == "zmq" else "cluster"
    return wanted in by_name and by_name[wanted][-1].func.__module__ == __name__


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Any:
    """Before any fixture, the leak meter's too: what is shared is nobody's leak."""
    if _shares(item) and not rlplat.is_initialized():
        rlplat.init(num_cpus=2, num_gpus=0)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Any:
    try:
        return (yield)
    finally:
        if _shares(item) and not (_shares(nextitem) and soon(_is_as_new, _SETTLE_S)):
            rlplat.shutdown()


def _is_as_new() -> bool:
    gc.collect()
    return (
        rlplat.is_initialized()
        and rlplat.available_resources() == rlplat.cluster_resources()
        and not any(row["state"] == "leased" for row in state.list_workers())  # also by a task without CPUs
        and all(row["state"] == "dead" for row in state.list_actors())
        and not any(row["state"] != "removed" for row in state.list_placement_groups())
    )


@pytest.fixture
def cluster() -> None:
    """A cluster of worker processes with 2 CPUs."""


@pytest.fixture(params=["inproc", "zmq"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every backend in turn, with 2 CPUs: for what must be the same on all."""
    if request.param == "zmq":
        yield request.param
        return
    rlplat.init(num_cpus=2, num_gpus=0, backend=request.param)
    yield request.param
    rlplat.shutdown()
