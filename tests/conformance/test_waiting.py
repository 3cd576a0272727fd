"""`wait`: an empty list, and generators among the refs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import rlplat


@rlplat.remote
def numbers(n: int) -> Iterator[int]:
    yield from range(n)


def test_of_nothing_nothing_is_ready(backend: str) -> None:
    assert rlplat.wait([]) == ([], [])


def test_a_generator_is_ready_when_its_next_value_is(backend: str) -> None:
    generator, ref = numbers.remote(2), rlplat.put(1)
    assert rlplat.wait([generator, ref], num_returns=2, timeout=60) == ([generator, ref], [])
    seen = []
    while True:
        ready, rest = rlplat.wait([generator], timeout=60)
        assert (ready, rest) == ([generator], [])
        try:
            seen.append(rlplat.get(next(generator)))
        except StopIteration:
            break
    assert seen == [0, 1]


def test_a_generator_that_has_nothing_yet_is_not_ready(cluster: None, tmp_path: Any) -> None:
    gate = tmp_path / "gate"

    @rlplat.remote
    def gated(path: str) -> Iterator[int]:
        import os
        import time

        yield 1
        while not os.path.exists(path):
            time.sleep(0.01)
        yield 2

    late, early = gated.remote(str(gate)), numbers.remote(1)
    assert rlplat.get(next(late)) == 1
    assert rlplat.wait([late, early], timeout=60) == ([early], [late])
    assert rlplat.wait([late], timeout=0) == ([], [late])
    gate.touch()
    assert rlplat.wait([late], timeout=60) == ([late], [])
    assert rlplat.get(next(late)) == 2


def test_generators_of_an_async_actor(backend: str) -> None:
    @rlplat.remote
    class Actor:
        async def count(self, n: int) -> Any:
            for i in range(n):
                yield i

    actor = Actor.remote()
    generators = [actor.count.remote(1), actor.count.remote(1)]
    ready, rest = rlplat.wait(generators, num_returns=2, timeout=60)
    assert ready == generators
    assert rest == []
    assert [rlplat.get(next(each)) for each in ready] == [0, 0]
