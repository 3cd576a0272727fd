"""`rlplat.map`: many small tasks in few frames (Ray has `ray.util.ActorPool.map` for this; the verb is ours)."""

from __future__ import annotations

import itertools
import os

import pytest

import rlplat
from rlplat.errors import ConfigError, TaskError


def test_results_come_in_the_order_of_the_items(backend: str) -> None:
    assert list(rlplat.map(lambda x: x * x, range(5000))) == [x * x for x in range(5000)]


def test_no_items_no_results(backend: str) -> None:
    assert list(rlplat.map(str, [])) == []


@pytest.mark.parametrize("chunk_size", [1, 7, 1000])
def test_chunks_of_a_given_size(backend: str, chunk_size: int) -> None:
    assert list(rlplat.map(str, range(100), chunk_size=chunk_size)) == [str(n) for n in range(100)]


def test_a_remote_function_brings_its_options(backend: str) -> None:
    @rlplat.remote(num_cpus=2)
    def double(x: int) -> int:
        return 2 * x

    assert list(rlplat.map(double, [1, 2, 3])) == [2, 4, 6]


def test_endless_items_are_taken_as_results_are(backend: str) -> None:
    taken = []

    def numbers() -> itertools.count:
        for n in itertools.count():
            taken.append(n)
            yield n

    first = list(itertools.islice(rlplat.map(lambda x: -x, numbers(), chunk_size=10), 25))
    assert first == [-n for n in range(25)]
    assert len(taken) <= 10 * (3 * 2 + 3)  # 3 chunks in flight for each of 2 CPUs, and those that were taken


def test_an_exception_comes_where_its_item_is(backend: str) -> None:
    def invert(x: int) -> float:
        return 1 / x

    results = rlplat.map(invert, [1, 2, 0, 4], chunk_size=4)
    assert [next(results), next(results)] == [1.0, 0.5]
    with pytest.raises(ZeroDivisionError, match="invert on item 2 of a chunk of 4") as raised:
        next(results)
    assert isinstance(raised.value, TaskError)


def test_bad_options_are_refused(backend: str) -> None:
    with pytest.raises(ConfigError, match="chunk_size must be at least 1, not 0"):
        rlplat.map(str, [1], chunk_size=0)
    with pytest.raises(ConfigError, match="num_returns=2"):
        rlplat.map(rlplat.remote(lambda x: (x, x)).options(num_returns=2), [1])
    with pytest.raises(TypeError, match="not RemoteClass"):
        rlplat.map(rlplat.remote(str), [1])


def test_a_chunk_whose_worker_dies_runs_again(cluster: None, tmp_path) -> None:  # type: ignore[no-untyped-def]
    once = tmp_path / "once"

    def fragile(x: int) -> int:
        if x == 150 and not once.exists():
            once.touch()
            os._exit(1)
        return x

    assert list(rlplat.map(fragile, range(300), chunk_size=50)) == list(range(300))
    assert once.exists()
