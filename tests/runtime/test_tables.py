"""What a process remembers of others is bounded by what is alive, not by what has ever been."""

from __future__ import annotations

import time
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied
from rlplat.runtime import refs
from rlplat.runtime.client import actors
from rlplat.runtime.core.owner.lanes import MOST_CODES
from tests.patience import soon


class Counter:
    def __init__(self) -> None:
        self._num = 0

    def add(self) -> int:
        self._num += 1
        return self._num


class Caller:
    """An actor that is handed others."""

    def call(self, counter: Any) -> int:
        return int(rlplat.get(counter.add.remote()))

    def sizes(self) -> dict[str, int]:
        client: Any = refs.backend()
        dead = client.objects.dead
        return {"books": len(client.actors.books), "dead": dead.num_ranges()}

    def num_loose_spans(self) -> int:
        client: Any = refs.backend()
        return len(client.executor._spans._recent)


class AsyncCaller(Caller):
    async def num_loose_spans(self) -> int:  # type: ignore[override]
        return super().num_loose_spans()


@pytest.mark.usefixtures("cluster")
def test_books_of_what_is_over_are_closed() -> None:
    client: Any = refs.backend()
    caller = rlplat.remote(num_cpus=0)(Caller).remote()
    for number in range(1, 13):
        one = rlplat.remote(lambda number=number: number).options(num_cpus=number / 100)
        assert rlplat.get(one.remote()) == number
        del one
        counter = rlplat.remote(num_cpus=0)(Counter).remote()
        assert rlplat.get(caller.call.remote(counter)) == 1
        del counter
    assert soon(lambda: rlplat.get(caller.sizes.remote())["books"] == 0)
    assert soon(lambda: rlplat.get(rlplat.remote(lambda: 1).remote()) == 1 and len(client.calls.lanes()) < 3)
    assert soon(lambda: 0 < rlplat.get(caller.sizes.remote())["dead"] < 6)
    assert client.objects.dead.num_ranges() < 6


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("kind", [Caller, AsyncCaller])
def test_the_last_calls_of_a_worker_are_packed(kind: type) -> None:
    caller = rlplat.remote(num_cpus=0)(kind).remote()
    rlplat.get([caller.num_loose_spans.remote() for _ in range(1200)])
    assert soon(lambda: rlplat.get(caller.num_loose_spans.remote()) < 300)
    client: Any = refs.backend()
    waits = client.link.loop.waits
    for number in range(600):
        waits.append(("get", number, number + 1))
    rlplat.wait([rlplat.remote(lambda: time.sleep(0.01)).remote()])  # a long wait
    assert len(waits._recent) < 300


@pytest.mark.usefixtures("cluster")
def test_books_of_detached_actors_that_are_gone_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "_REMEMBERED", 3)
    client: Any = refs.backend()
    detached = rlplat.remote(num_cpus=0)(Counter).options(lifetime="detached")
    handles = []
    for number in range(6):
        handles.append(detached.options(name=f"counter {number}").remote())
        again = detached.options(name=f"counter {number}", get_if_exists=True).remote()
        assert rlplat.get(again.add.remote()) == 1
        rlplat.kill(handles[-1])
    assert len(client.actors.books) == len(client.actors._detached) == 3
    for handle in handles:
        with pytest.raises(ActorDied, match="it was killed by"):
            rlplat.get(handle.add.remote())
    assert soon(lambda: len(client.actors.books) == len(client.actors._detached) == 3)


@rlplat.remote
def tables_of_code() -> dict[str, int]:
    worker: Any = refs.backend()
    executor = worker.executor
    return {
        "code": len(executor._code),
        "paces": len(worker._replies._told_pace),
        "borrows": len(worker.objects.borrows),
    }


@pytest.mark.usefixtures("cluster")
def test_the_code_of_closures_goes_with_them() -> None:
    """2,000 closures, each with an object of its own."""
    client: Any = refs.backend()
    rlplat.get(tables_of_code.remote())
    before = len(client.objects.book.entries)
    for begin in range(0, 2000, 100):
        held = [rlplat.put(number) for number in range(begin, begin + 100)]
        closures = [rlplat.remote(lambda ref=ref: rlplat.get(ref)) for ref in held]
        assert rlplat.get([closure.remote() for closure in closures]) == list(range(begin, begin + 100))
    del held, closures
    tables = rlplat.get([tables_of_code.remote() for _ in range(20)])
    for table in tables:
        assert table["code"] <= MOST_CODES and table["paces"] <= MOST_CODES + 1 and table["borrows"] <= MOST_CODES
    assert all(len(lease.known_code) <= MOST_CODES for lane in client.calls.lanes() for lease in lane.leases.values())
    # What both workers have of them still, at most.
    assert soon(
        lambda: rlplat.get(tables_of_code.remote()) and len(client.objects.book.entries) - before < 2 * MOST_CODES
    )


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("with_ref", [False, True])
def test_code_that_a_worker_has_not_any_more_is_sent_again(with_ref: bool) -> None:
    @rlplat.remote(num_cpus=2)
    def forget() -> None:
        worker: Any = refs.backend()
        worker.executor._code.clear()

    args = [rlplat.put(7)] if with_ref else [7]
    same = rlplat.remote(num_cpus=2)(lambda given: given)
    calls = [call for _ in range(5) for call in (same.remote(*args), forget.remote(), same.remote(*args))]
    assert rlplat.get(calls, timeout=60) == [7, None, 7] * 5


@pytest.mark.usefixtures("cluster")
def test_code_whose_handle_is_gone_is_there_for_its_calls() -> None:
    def late(gate: list[int]) -> int:
        return gate[0]

    waits = rlplat.remote(lambda: time.sleep(0.3) or [5]).remote()
    after = rlplat.remote(late).remote(waits)  # its handle is gone before it is sent
    assert rlplat.get(after, timeout=30) == 5
