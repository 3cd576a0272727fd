"""`max_calls`: the worker process ends after so many calls of the function."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import OptionError
from tests.patience import soon


def test_values_are_what_they_are(backend: str) -> None:
    @rlplat.remote(max_calls=2)
    def square(x: int) -> int:
        return x * x

    assert rlplat.get([square.remote(i) for i in range(9)]) == [i * i for i in range(9)]


@pytest.mark.parametrize("most", [1, 3])
def test_a_process_runs_no_more_calls_than_that(cluster: None, most: int) -> None:
    @rlplat.remote(max_calls=most, max_retries=0)  # nothing may run twice, and nothing is lost
    def pid() -> int:
        return os.getpid()

    pids = Counter(rlplat.get([pid.remote() for _ in range(8)]))
    assert max(pids.values()) <= most
    assert soon(lambda: not any(is_running(each) for each, count in pids.items() if count == most))


def test_the_same_function_without_it_is_another(cluster: None) -> None:
    def plain() -> int:
        return os.getpid()

    once, often = rlplat.remote(max_calls=1)(plain), rlplat.remote(plain)
    assert len(set(rlplat.get([once.options(max_calls=1).remote() for _ in range(3)]))) == 3
    assert len({rlplat.get(often.remote()) for _ in range(3)}) == 1
    assert len({rlplat.get(once.options(max_calls=0).remote()) for _ in range(3)}) == 1


def test_what_it_made_outlives_it(cluster: None) -> None:
    @rlplat.remote(max_calls=1)
    def make(n: int) -> Any:
        return np.full(n, 7.0), rlplat.put(np.full(n, 8.0)), os.getpid()

    large, ref, pid = rlplat.get(make.remote(20_000))
    assert is_running(pid)  # as long as somebody needs what it owns
    assert (large.sum(), rlplat.get(ref).sum()) == (140_000, 160_000)
    del ref, large
    assert soon(lambda: not is_running(pid))


def test_generators_and_failures_count(cluster: None) -> None:
    @rlplat.remote(max_calls=1)
    def stream() -> Iterator[int]:
        yield os.getpid()

    @rlplat.remote(max_calls=1)
    def fail() -> None:
        raise ValueError(os.getpid())

    pids = [rlplat.get(next(stream.remote())) for _ in range(2)]
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            rlplat.get(fail.remote())
        pids.append(caught.value.cause.args[0])  # type: ignore[attr-defined]
    assert len(set(pids)) == 4


def test_actors_have_none(backend: str) -> None:
    class Actor: ...

    with pytest.raises(OptionError, match="max_calls is for tasks"):
        rlplat.remote(max_calls=1)(Actor)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:  # gone before it was opened, or between that and the reading
        return False
