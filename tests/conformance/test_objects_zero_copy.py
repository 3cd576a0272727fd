"""Tensors, bytes and trees of arrays: what comes back equals what was sent, without a copy where that can be."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.runtime.wire import codec

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


TENSORS = {
    "float32": torch.arange(50_000, dtype=torch.float32).reshape(100, 500),
    "float64": torch.arange(20_000, dtype=torch.float64),
    "int8": torch.arange(100_000).to(torch.int8),
    "bool": torch.arange(100_000) % 3 == 0,
    "bfloat16": torch.arange(50_000, dtype=torch.float32).to(torch.bfloat16),
    "complex64": torch.arange(20_000).to(torch.complex64) * 1j,
    "small": torch.arange(5),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 7),
    "transposed": torch.arange(60_000.0).reshape(200, 300).T,
    "strided": torch.arange(200_000.0)[::3],
    "expanded": torch.ones(1).expand(100_000),
    "conjugated": torch.ones(20_000, dtype=torch.complex64).mul(1j).conj(),
    "sparse": torch.eye(300).to_sparse(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_every_kind(backend: str, name: str) -> None:
    tensor = TENSORS[name]
    got = rlplat.get(rlplat.put({"it": tensor}))["it"]
    assert got.dtype == tensor.dtype
    assert got.shape == tensor.shape
    assert torch.equal(got.to_dense(), tensor.to_dense())


def test_a_tensor_over_a_born_array_may_be_written_after_put(backend: str) -> None:
    tensor = torch.from_numpy(rlplat.empty(50_000, np.float32)).fill_(1)
    ref = rlplat.put({"weights": tensor})
    tensor.zero_()
    got = rlplat.get(ref)["weights"]
    assert got.sum() == 50_000
    got += 1
    assert rlplat.get(ref)["weights"].sum() == 50_000


def test_large_tensors_leave_the_stream_and_come_without_a_warning(backend: str) -> None:
    packed = codec.pack({"weights": TENSORS["float32"], "bias": [TENSORS["bfloat16"]]})
    assert [buffer.raw().nbytes for buffer in packed.buffers] == [200_000, 100_000]
    assert len(packed.data) < 1_000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = rlplat.get(rlplat.put(TENSORS["float32"]))
    assert torch.equal(got, TENSORS["float32"])


def test_a_tensor_may_be_written_and_nobody_else_sees_it(backend: str) -> None:
    @rlplat.remote
    def scale(tensor: Any) -> Any:
        tensor *= 2
        return tensor

    ref = rlplat.put(torch.ones(50_000))
    mine = rlplat.get(ref)
    mine += 1
    assert rlplat.get(scale.remote(ref)).sum() == 100_000
    assert mine.sum() == 100_000
    assert rlplat.get(ref).sum() == 50_000


def test_the_original_of_a_tensor_may_change_after_put(backend: str) -> None:
    tensor = torch.zeros(50_000)
    ref = rlplat.put(tensor)
    tensor += 1
    assert rlplat.get(ref).sum() == 0


def test_gradients_are_asked_for_as_before(backend: str) -> None:
    leaf = torch.ones(50_000, requires_grad=True)
    got = rlplat.get(rlplat.put([leaf, leaf * 2]))
    assert [tensor.requires_grad for tensor in got] == [True, True]
    (got[0] * 3).sum().backward()
    assert got[0].grad[7] == 3


def test_modules_keep_their_parameters_and_ties(backend: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Linear(200, 200))
    module[1].weight = module[0].weight
    got = rlplat.get(rlplat.put(module))
    assert type(got[0].weight) is torch.nn.Parameter
    assert got[0].weight is got[1].weight
    inputs = torch.ones(1, 200)
    assert torch.equal(got(inputs), module(inputs))
    torch.optim.SGD(got.parameters(), 0.1).step()  # its memory may be written


@pytest.mark.parametrize("size", [0, 100, 65_535, 65_536, 3_000_000])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_of_every_size_stay_what_they_are(backend: str, kind: type, size: int) -> None:
    value = kind(np.arange(size, dtype=np.uint8).tobytes())
    got = rlplat.get(rlplat.put(value))
    assert type(got) is kind
    assert got == value
    packed = codec.pack(value)
    assert (len(packed.data) < 200) == (size == 0 or size == 100 or size >= 65_536)


def test_trees_of_arrays_tensors_and_refs(backend: str) -> None:
    @rlplat.remote
    def look(tree: dict[str, Any]) -> Any:
        inner = rlplat.get(tree["refs"])
        return tree["array"].sum(), float(tree["tensor"].sum()), len(tree["bytes"]), inner[0], inner[1].sum()

    tree = {
        "array": np.ones(50_000),
        "tensor": torch.ones(50_000),
        "bytes": b"x" * 100_000,
        "refs": [rlplat.put("small"), rlplat.put(np.ones(20_000))],
    }
    assert rlplat.get(look.remote(tree)) == (50_000, 50_000, 100_000, "small", 20_000)
    assert rlplat.get(look.remote(rlplat.put(tree))) == (50_000, 50_000, 100_000, "small", 20_000)


def test_a_subclass_of_tensor_is_left_to_itself(backend: str) -> None:
    class Named(torch.Tensor):
        pass

    tensor = torch.ones(50_000).as_subclass(Named)
    got = rlplat.get(rlplat.put(tensor))
    assert type(got).__name__ == "Named"
    assert got.sum() == 50_000


def test_wait_takes_fetch_local(backend: str) -> None:
    ref = rlplat.put(1)
    assert rlplat.wait([ref], fetch_local=False) == ([ref], [])


# What an array is made of is only visible where memory is shared.


def test_views_of_one_value_share_its_memory_with_other_processes(cluster: None) -> None:
    @rlplat.remote
    class Looker:
        def keep(self, refs: list[Any]) -> float:
            self.kept = rlplat.get(refs[0])
            return float(self.kept.sum())

        def look(self) -> float:
            return float(self.kept.sum())

    ref = rlplat.put(torch.ones(50_000))
    looker = Looker.remote()
    assert rlplat.get(looker.keep.remote([ref])) == 50_000
    del ref
    for i in range(50):  # would come to light in a tensor that did not keep its segment
        assert rlplat.get(rlplat.put(torch.full((50_000,), float(i))))[3] == i
    assert rlplat.get(looker.look.remote()) == 50_000
