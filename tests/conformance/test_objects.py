"""put, get, wait; values are copies, and large arrays read-only views."""

from __future__ import annotations

import asyncio
import gc
import pickle
import re

import numpy as np
import pytest

import rlplat
from rlplat.errors import GetTimeout, SerializationError, TaskError


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        "text",
        b"bytes",
        [1, [2]],
        {"a": (1, 2)},
        {1, 2},
        1 + 2j,
        b"x" * 300_000,
        list(range(50_000)),
        range(3),
    ],
    ids=lambda value: f"{type(value).__name__}-{len(repr(value))}",
)
def test_what_is_put_is_got(backend: str, value: object) -> None:
    got = rlplat.get(rlplat.put(value))
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex128", "datetime64[s]", "U5"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (200, 300)], ids=str)
def test_arrays_of_every_shape_and_dtype(backend: str, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).astype("int64").astype(dtype).reshape(shape)
    got = rlplat.get(rlplat.put(array))
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    np.testing.assert_array_equal(got, array)


def test_every_memory_order_survives(backend: str) -> None:
    base = np.arange(360_000, dtype=np.float64).reshape(300, 1200)
    for array in (base.T, np.asfortranarray(base), base[::2, ::3], base[::-1]):
        np.testing.assert_array_equal(rlplat.get(rlplat.put(array)), array)


def test_large_arrays_are_read_only(backend: str) -> None:
    array = rlplat.get(rlplat.put({"a": np.zeros(100_000)}))["a"]
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_what_was_put_does_not_change_with_the_original(backend: str) -> None:
    array = np.zeros(100_000)
    ref = rlplat.put(array)
    array[:] = 1
    assert rlplat.get(ref).sum() == 0


def test_get_of_a_list_keeps_order_and_duplicates(backend: str) -> None:
    one, two = rlplat.put(1), rlplat.put(2)
    assert rlplat.get([two, one, two]) == [2, 1, 2]
    assert rlplat.get([]) == []
    assert rlplat.get((one, two)) == [1, 2]


def test_put_refuses_a_ref(backend: str) -> None:
    with pytest.raises(TypeError, match="pass the ref on"):
        rlplat.put(rlplat.put(1))


def test_wait_splits_in_the_order_given(backend: str) -> None:
    refs = [rlplat.put(i) for i in range(5)]
    ready, rest = rlplat.wait(refs, num_returns=3)
    assert (ready, rest) == (refs[:3], refs[3:])
    assert rlplat.wait(refs, num_returns=5, timeout=0, fetch_local=False) == (refs, [])


@pytest.mark.parametrize("num_returns", [0, 3, -1])
def test_wait_refuses_a_number_it_cannot_return(backend: str, num_returns: int) -> None:
    refs = [rlplat.put(1), rlplat.put(2)]
    with pytest.raises(ValueError, match="2 refs"):
        rlplat.wait(refs, num_returns=num_returns)


def test_wait_counts_failures_as_ready(backend: str) -> None:
    @rlplat.remote
    def fail() -> None:
        raise ValueError

    ref = fail.remote()
    assert rlplat.wait([ref]) == ([ref], [])
    with pytest.raises(TaskError):
        rlplat.get(ref)


def test_refs_are_equal_and_hash_by_object(backend: str) -> None:
    ref = rlplat.put(1)
    (again,) = rlplat.get(rlplat.put([ref]))
    assert again == ref
    assert len({ref, again, rlplat.put(1)}) == 2


def test_a_ref_cannot_be_pickled_by_itself(backend: str) -> None:
    with pytest.raises(SerializationError, match=r"rlplat\.put"):
        pickle.dumps(rlplat.put(1))


def test_futures_and_await(backend: str) -> None:
    @rlplat.remote
    def f(x: int) -> int:
        if x < 0:
            raise ValueError("negative")
        return x + 1

    async def main() -> list[int]:
        return [await f.remote(1), *await asyncio.gather(*(wrap(f.remote(i)) for i in range(3)))]

    async def wrap(ref: rlplat.ObjectRef) -> int:
        return await ref

    assert f.remote(1).future().result(30) == 2
    assert asyncio.run(main()) == [2, 1, 2, 3]
    with pytest.raises(ValueError, match="negative"):
        f.remote(-1).future().result(30)


# The in-process backend has finished everything before `.remote()` returns: nothing is ever late there.


def test_wait_returns_what_is_ready_at_the_timeout(cluster: None) -> None:
    hold, release = _gate()
    late, early = hold.remote(), rlplat.put(1)
    assert rlplat.wait([late, early], timeout=30) == ([early], [late])
    assert rlplat.wait([late, early], num_returns=2, timeout=0.05) == ([early], [late])
    release()
    assert rlplat.wait([late, early], num_returns=2) == ([late, early], [])


def test_wait_without_patience_sees_what_arrived(cluster: None) -> None:
    @rlplat.remote
    def f() -> int:
        return 1

    ref = f.remote()
    while not rlplat.wait([ref], timeout=0)[0]:  # the test's own time limit ends a wait that never sees it
        pass
    assert rlplat.get(ref, timeout=0) == 1


def test_the_text_of_a_timeout_says_what_is_missing_and_why(cluster: None) -> None:
    hold, release = _gate()
    held = hold.options(num_cpus=2).remote()
    text = ""
    while "which waits for a worker" in text or not text:  # until its lease is granted and the news of that is here
        with pytest.raises(GetTimeout) as raised:
            rlplat.get(held, timeout=0.2)
        text = str(raised.value)
    assert re.search(r"timed out after 0\.2 s: 1 of 1 .*hold, which is with worker w\d", text)
    with pytest.raises(TimeoutError, match=r"waits for a worker with .*CPU"):
        rlplat.get(hold.options(num_cpus=1).remote(), timeout=0.1)

    @rlplat.remote
    def use(x: int) -> int:
        return x

    with pytest.raises(GetTimeout, match="use, which waits for 1 of its arguments"):
        rlplat.get(use.remote(held), timeout=0.05)
    release()


def _gate() -> tuple:
    """A task that ends when `release()` is called."""
    import os
    import tempfile

    directory = tempfile.mkdtemp()
    path = os.path.join(directory, "gate")
    os.mkfifo(path)

    @rlplat.remote
    def hold() -> str:
        with open(path, "rb") as file:
            file.read()
        return "released"

    def release() -> None:
        # Opening without blocking fails while no task reads: only then wait for one.
        with open(path, "wb"):
            pass
        os.unlink(path)
        os.rmdir(directory)
        gc.collect()

    return hold, release
