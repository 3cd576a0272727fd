"""Values of every size come back whole, wherever they go: put, arguments, results, actors, streams."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ActorDied, SerializationError
from tests.runtime import specimens

LENGTHS = range(17_408 - 160, 17_408 + 4)
"""float32 arrays of more than 64 KiB that end, with what stands before them, about the end of a page."""


def ramp(length: int) -> np.ndarray:
    return np.arange(length, dtype=np.float32) + length


@rlplat.remote
def same(value: Any) -> Any:
    return value


@rlplat.remote(num_returns=2)
def twice(first: Any, *, second: Any) -> tuple[Any, Any]:
    return first, second


@rlplat.remote
def one_by_one(*values: Any) -> Iterator[Any]:
    yield from values


@rlplat.remote
def ramps(lengths: list[int]) -> Iterator[np.ndarray]:
    for length in lengths:
        yield ramp(length)


@rlplat.remote
class Keeper:
    def __init__(self, value: Any) -> None:
        self.value = value

    def swap(self, value: Any) -> Any:
        value, self.value = self.value, value
        return value


def test_arrays_that_end_about_the_end_of_a_page_go_everywhere_and_come_back(cluster: None) -> None:
    for _ in range(2):  # all is held to the end of a round: the first makes segments, the second uses them again
        keeper = Keeper.remote(ramp(LENGTHS[0]))
        stream = ramps.remote(list(LENGTHS))
        held = []
        for length, streamed in zip(LENGTHS, stream, strict=True):
            array = ramp(length)
            ref = rlplat.put(array)
            held.append([ref, same.remote(array), same.remote(ref), streamed, keeper.swap.remote(array)])
        kept = [LENGTHS[0], *LENGTHS]
        for length, length_before, refs in zip(LENGTHS, kept, held, strict=False):
            *got, swapped = rlplat.get(refs)
            for one in got:
                np.testing.assert_array_equal(one, ramp(length))
            np.testing.assert_array_equal(swapped, ramp(length_before))
        del got, swapped, one, refs, ref, streamed, keeper, held


@pytest.mark.parametrize("backend", ["inproc", "zmq"])
def test_random_values_go_everywhere_and_come_back_while_others_are_held(backend: str) -> None:
    memory = {"object_store_memory": 6 << 20} if backend == "zmq" else {}  # less than is held: some go to disk
    rlplat.init(num_cpus=2, num_gpus=0, backend=backend, **memory)
    try:
        chooser, held = random.Random(7), []
        keeper, kept = Keeper.remote(None), None
        for _ in range(60):
            value, other = specimens.value(chooser), specimens.value(chooser)
            ref = rlplat.put(value)
            held += [(ref, value), (same.remote(other), other), (same.remote(ref), value)]
            held += zip(twice.remote(ref, second=other), [value, other], strict=True)
            held += zip(one_by_one.remote(value, ref), [value, value], strict=True)
            held.append((keeper.swap.remote(value), kept))
            kept = value
            for _ in range(6):
                ref, sent = held.pop(chooser.randrange(len(held)))
                specimens.assert_same(rlplat.get(ref), sent)
        for ref, sent in held:
            specimens.assert_same(rlplat.get(ref), sent)
        del ref, keeper
    finally:
        held.clear()
        rlplat.shutdown()


def test_arguments_that_fit_no_message_are_refused(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is small, so all would travel inside the call, which no receiver would take."""
    from rlplat.runtime.wire import codec

    monkeypatch.setattr(codec, "_MAX_BYTES", 100_000)

    class Counter:
        def __init__(self, *blobs: bytes) -> None:
            self.num_bytes = sum(map(len, blobs))

        def count(self, *blobs: bytes) -> int:
            return sum(map(len, blobs))

    @rlplat.remote
    def count(*blobs: bytes) -> int:
        return sum(map(len, blobs))

    @rlplat.remote
    def blob() -> bytes:
        return b"x" * 10_000

    kind = rlplat.remote(Counter)
    actor = kind.remote()
    ready = [rlplat.put(b"x" * 10_000) for _ in range(11)]
    for refs in (ready, [blob.remote() for _ in range(11)]):
        for call in (count.remote, actor.count.remote, lambda *refs: kind.remote(*refs).count.remote()):
            with pytest.raises(  # of a constructor: the actor is gone, for that reason
                (SerializationError, ActorDied),
                match=r"the arguments of .* cannot be sent: .* in one message",
            ):
                rlplat.get(call(*refs), timeout=60)
        assert rlplat.get([count.remote(*refs[:9]), actor.count.remote(*refs[:9])], timeout=60) == [90_000] * 2
    with pytest.raises(SerializationError, match=r"detached actor .*Counter cannot be sent: .* in one message"):
        kind.options(name="detached", lifetime="detached").remote(b"x" * 110_000)
