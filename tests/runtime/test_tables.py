"""What a process remembers of others is bounded by what is alive, not by what has ever been."""

from __future__ import annotations

import time
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied
from rlplat.runtime import refs
from rlplat.runtime.client import actors
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
    assert soon(lambda: rlplat.get(rlplat.remote(lambda: 1).remote()) == 1 and len(client.tasks.lanes()) < 3)
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
