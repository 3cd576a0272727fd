"""Chains of calls that wait for each other: whatever ends the first one is heard by the last, however long they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied, RuntimeFault, TaskCancelled
from rlplat.runtime import refs
from tests.patience import soon

LONG = 5000
"""Links: Python's stack has room for 1,000 calls."""


@rlplat.remote
def fail_late() -> None:
    time.sleep(1.0)
    raise ValueError("the root")


@rlplat.remote
def sleep() -> None:
    time.sleep(60)


@rlplat.remote
def increase(x: int) -> int:
    return x + 1


@rlplat.remote(num_cpus=0)
class Adder:
    def increase(self, x: int) -> int:
        return x + 1


@rlplat.remote(num_cpus=0)
class AsyncAdder:
    async def fail_late(self) -> None:
        import asyncio

        await asyncio.sleep(0.5)
        raise ValueError("the root")

    async def increase(self, x: int) -> int:
        return x + 1


def end_of_chain(ref: Any, call: Callable[[Any], Any], length: int = LONG) -> Any:
    for _ in range(length):
        ref = call(ref)
    return ref


def test_an_error_reaches_the_end_of_a_chain_of_tasks(backend: str) -> None:
    with pytest.raises(ValueError, match="the root"):
        rlplat.get(end_of_chain(fail_late.remote(), increase.remote, 20 * LONG if backend == "zmq" else LONG))


def test_an_error_reaches_the_end_of_a_chain_of_actor_calls(backend: str) -> None:
    adder = Adder.remote()
    with pytest.raises(ValueError, match="the root"):
        rlplat.get(end_of_chain(fail_late.remote(), adder.increase.remote))


def test_an_error_reaches_the_end_of_a_chain_of_coroutines(backend: str) -> None:
    adder = AsyncAdder.remote()
    with pytest.raises(ValueError, match="the root"):
        rlplat.get(end_of_chain(adder.fail_late.remote(), adder.increase.remote, 2000))


@pytest.mark.usefixtures("cluster")
def test_a_cancelled_root_and_a_dead_one_reach_the_end() -> None:
    for force in (False, True):
        root = sleep.remote()
        end = end_of_chain(root, increase.remote)
        rlplat.cancel(root, force=force)
        with pytest.raises(TaskCancelled):
            rlplat.get(end, timeout=30)
    adder = Adder.remote()
    root = adder.increase.remote(sleep.remote())
    end = end_of_chain(root, increase.remote)
    rlplat.kill(adder)
    with pytest.raises(ActorDied):
        rlplat.get(end, timeout=30)


@pytest.mark.usefixtures("cluster")
def test_nested_refs_are_freed_at_once() -> None:
    """Not one level at each look: a list of a thousand would hold its memory for a thousand seconds."""
    client: Any = refs.backend()
    ref = rlplat.put(0)
    for _ in range(LONG):
        ref = rlplat.put([ref])
    assert len(client.objects.book) > LONG
    del ref
    rlplat.put(0)
    assert soon(lambda: len(client.objects.book) < 10, 5)


@pytest.mark.usefixtures("cluster", "may_drop")
def test_a_result_that_cannot_be_taken_in_is_an_error_of_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours in a handler: it must not leave its caller, or those whose results came along, waiting."""
    client: Any = refs.backend()
    rlplat.get([increase.remote(n) for n in range(4)])
    fill, broken = client.objects.fill, []

    def fill_or_fail(id: int, value: Any, *rest: Any) -> None:
        if id == broken[0] and value.error is None:
            raise AssertionError("a bug")
        fill(id, value, *rest)

    held = [increase.remote(n) for n in range(4)]
    broken.append(held[1].id)
    monkeypatch.setattr(client.objects, "fill", fill_or_fail)
    later = [increase.remote(ref) for ref in held]  # entries with callbacks go the long way
    for n, ref in enumerate(later):
        if n == 1:
            with pytest.raises(RuntimeFault, match="could not be taken in: AssertionError: a bug"):
                rlplat.get(ref, timeout=20)
        else:
            assert rlplat.get(ref, timeout=20) == n + 2
