"""Arrays that are born in the object store: `rlplat.empty`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.runtime.refs import backend as connected

SIZE = 50_000


def born(value: float = 1.0) -> Any:
    array = rlplat.empty(SIZE)
    array[:] = value
    return array


def num_unsealed() -> int:
    return len(connected().objects.store._unsealed)


@pytest.mark.parametrize("dtype", ["float32", ">i2", "bool", "complex128", "U5", "i8,f4", "datetime64[s]", "O"])
@pytest.mark.parametrize("shape", [(), 0, 3, (200, 300), [70_000], (30_000, 0)], ids=str)
def test_it_is_an_array_as_numpy_makes_one(backend: str, dtype: str, shape: Any) -> None:
    array = rlplat.empty(shape, dtype)
    like = np.empty(shape, dtype)
    assert type(array) is np.ndarray
    assert (array.shape, array.dtype, array.strides) == (like.shape, like.dtype, like.strides)
    array[...] = np.ones(like.shape).astype("int64").astype(dtype)
    np.testing.assert_array_equal(rlplat.get(rlplat.put(array)), np.ones(like.shape, "int64").astype(dtype))


@pytest.mark.parametrize(
    ("shape", "dtype", "error"), [(-1, float, ValueError), ("x", float, TypeError), (3, "y", TypeError)]
)
def test_what_numpy_refuses_is_refused(backend: str, shape: Any, dtype: Any, error: Any) -> None:
    with pytest.raises(error):
        rlplat.empty(shape, dtype)


def test_it_goes_wherever_values_go(backend: str) -> None:
    @rlplat.remote
    def double(array: Any, *, plus: Any = 0) -> Any:
        result = rlplat.empty(array.shape, array.dtype)
        np.multiply(array, 2, out=result)
        result += plus
        return result

    @rlplat.remote
    class Server:
        def __init__(self, weights: Any) -> None:
            self.weights = weights

        def latest(self) -> Any:
            return self.weights

        def add(self, gradient: Any) -> None:
            weights = rlplat.empty(SIZE)
            np.add(self.weights, gradient, out=weights)
            self.weights = weights

        def several(self) -> Iterator[Any]:
            for value in range(3):
                yield born(value)

    assert rlplat.get(double.remote(born(3), plus=born(1))).tolist() == [7.0] * SIZE
    server = Server.remote(born(1))
    assert (rlplat.get(server.latest.remote()) == 1).all()
    first = rlplat.get(server.latest.remote())
    for _ in range(3):
        server.add.remote(born(2))
        latest = [rlplat.get(server.latest.remote()) for _ in range(2)]
    assert (latest[0] == 7).all() and (latest[1] == 7).all()
    assert (first == 1).all()
    assert [rlplat.get(ref)[-1] for ref in server.several.remote()] == [0, 1, 2]
    assert rlplat.get(rlplat.put({"nested": [born(4)]}))["nested"][0].sum() == 4 * SIZE


def test_on_processes_put_return_and_arguments_make_it_the_object(cluster: None) -> None:
    @rlplat.remote
    class Maker:
        def make(self) -> Any:
            self.made = born(2)
            assert num_unsealed() == 1
            return self.made

        def look(self, array: Any = None) -> tuple[int, float, bool]:
            return num_unsealed(), self.made.sum() / SIZE, self.made.flags.writeable

    array = born()
    assert num_unsealed() == 1
    ref = rlplat.put(array)
    assert num_unsealed() == 0
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 2
    assert (rlplat.get(ref) == 1).all()
    del ref
    maker = Maker.remote()
    assert (rlplat.get(maker.make.remote()) == 2).all()  # (and freed at once)
    array = born()
    assert rlplat.get(maker.look.remote(array)) == (0, 2.0, False)
    assert not array.flags.writeable
    assert num_unsealed() == 0


@pytest.mark.process
def test_one_that_is_dropped_gives_its_memory_back_to_who_waits_for_it() -> None:
    rlplat.init(num_cpus=1, num_gpus=0, object_store_memory=4 << 20)
    try:

        @rlplat.remote
        class Holder:
            def take(self) -> None:
                self.array = rlplat.empty(3 << 20, np.uint8)

            def drop(self) -> None:
                del self.array

        holder = Holder.remote()
        rlplat.get(holder.take.remote())
        rlplat.get(holder.drop.remote())
        array = rlplat.empty(3 << 20, np.uint8)
        array[:] = 1
        refs = [rlplat.put(array)]
        del array
        refs.append(rlplat.put(rlplat.empty(3 << 20, np.uint8)))  # the first one goes to disk
        assert rlplat.get(refs[0]).sum() == 3 << 20
        del refs
    finally:
        rlplat.shutdown()
