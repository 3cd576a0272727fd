"""The contracts of put, get and wait, and of `ObjectRef` itself."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

import pytest

import rlplat
from rlplat.errors import GetTimeout


@rlplat.remote
def identity(x: Any) -> Any:
    return x


def test_each_get_of_a_small_value_is_a_copy_of_its_own(backend: str) -> None:
    ref = rlplat.put([1])
    rlplat.get(ref).append(2)
    assert rlplat.get(ref) == [1]


@pytest.mark.parametrize("wrong", [1, "text", None, {"a": 1}, [1], [None]], ids=repr)
def test_get_of_anything_else_is_refused(backend: str, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        rlplat.get(wrong)


def test_what_get_is_given_is_shown() -> None:
    with pytest.raises(TypeError, match=r"takes an ObjectRef or a list of them, not 3 \(int\)"):
        rlplat.get(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"and in it is 'x' \(str\)"):
        rlplat.get(["x"])  # type: ignore[list-item]


def test_get_with_a_timeout_of_what_is_there(backend: str) -> None:
    ref = rlplat.put(1)
    assert rlplat.get(ref, timeout=5) == 1
    assert rlplat.get([ref, ref], timeout=0) == [1, 1]


def test_put_inside_a_task_and_an_actor(backend: str) -> None:
    class Actor:
        def make(self, x: int) -> list:
            return [rlplat.put(x)]

    @rlplat.remote
    def make(x: int) -> list:
        return [rlplat.put(x)]

    actor = rlplat.remote(Actor).remote()
    assert rlplat.get(rlplat.get([make.remote(1), actor.make.remote(2)])[0][0]) == 1
    assert rlplat.get(rlplat.get(actor.make.remote(3))[0]) == 3


def test_wait_returns_every_ref_exactly_once(backend: str) -> None:
    refs = [identity.remote(i) for i in range(10)]
    seen: list[Any] = []
    rest = refs
    while rest:
        ready, rest = rlplat.wait(rest)
        assert len(ready) == 1
        seen += ready
    assert sorted(rlplat.get(seen)) == list(range(10))
    assert set(seen) == set(refs)


def test_wait_refuses_duplicates_and_what_is_no_list_of_refs(backend: str) -> None:
    ref = rlplat.put(1)
    with pytest.raises(ValueError):
        rlplat.wait([ref, ref])
    (again,) = rlplat.get(rlplat.put([ref]))
    with pytest.raises(ValueError, match="twice"):
        rlplat.wait([ref, again])
    with pytest.raises(TypeError):
        rlplat.wait(ref)
    with pytest.raises(TypeError):
        rlplat.wait([1])


def test_wait_inside_a_task(backend: str) -> None:
    @rlplat.remote
    def first(box: list) -> int:
        (ready, _) = rlplat.wait(box)
        return rlplat.get(ready[0])

    assert rlplat.get(first.remote([rlplat.put(3)])) == 3


def test_futures_work_with_as_completed(backend: str) -> None:
    futures = [identity.remote(i).future() for i in range(5)]
    assert sorted(f.result() for f in concurrent.futures.as_completed(futures, timeout=30)) == list(range(5))


def test_await_raises_what_get_raises(backend: str) -> None:
    @rlplat.remote
    def fail() -> None:
        raise ValueError("awaited")

    async def main() -> None:
        await fail.remote()

    with pytest.raises(ValueError, match="awaited"):
        asyncio.run(main())


def test_asyncio_wait_for_and_as_completed(backend: str) -> None:
    async def main() -> list[int]:
        refs = [identity.remote(i) for i in range(4)]
        first = await asyncio.wait_for(asyncio.wrap_future(refs[0].future()), 30)
        done = [await f for f in asyncio.as_completed([asyncio.wrap_future(r.future()) for r in refs])]
        return [first, *sorted(done)]

    assert asyncio.run(main()) == [0, 0, 1, 2, 3]


def test_get_in_a_thread(backend: str) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: rlplat.get(identity.remote(i)), range(12))) == list(range(12))


def test_a_get_of_an_error_can_be_repeated(backend: str) -> None:
    @rlplat.remote
    def fail() -> None:
        raise LookupError("again")

    ref = fail.remote()
    for _ in range(3):
        with pytest.raises(LookupError, match="again"):
            rlplat.get(ref)


# Things that are late: never so in-process.


def test_get_times_out_and_the_value_comes_later(cluster: None, tmp_path: Any) -> None:
    path = str(tmp_path / "go")

    @rlplat.remote
    def held() -> str:
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.01)
        return "here"

    ref = held.remote()
    with pytest.raises(GetTimeout):
        rlplat.get(ref, timeout=0.05)
    with pytest.raises(TimeoutError):
        rlplat.get([rlplat.put(1), ref], timeout=0)
    assert rlplat.wait([ref], timeout=0) == ([], [ref])
    open(path, "w").close()
    assert rlplat.get(ref, timeout=60) == "here"
