"""Arrays that are born in a segment: sealed without a copy, true whatever their maker writes later, never lost."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.errors import ObjectStoreFull
from rlplat.runtime.store import mapping, segments
from rlplat.runtime.store.account import create_account
from rlplat.runtime.store.mapping import Mapping
from rlplat.runtime.store.room import Spiller
from rlplat.runtime.store.segments import Store
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.values import Segment
from tests.runtime import specimens

MB = 1 << 20


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """A creator's, with room for 8 MiB, and a reader's."""
    create_account(str(tmp_path), 8 * MB, 0)
    (tmp_path / "spill").mkdir()
    writer, reader = Store(str(tmp_path), "w1"), Store(str(tmp_path), "driver")
    yield writer, reader
    writer.close()
    reader.close()


def born(store: Store, value: float = 1.0, size: int = 100_000) -> Any:
    array = store.empty(np.empty(size))
    array[:] = value
    return array


def write(store: Store, value: Any) -> Segment:
    return store.write(codec.pack(value), "driver")


def num_copied(store: Store) -> int:
    """Born arrays that are still what they were."""
    return len(store._unsealed)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda array: array,
        lambda array: {"weights": array, "version": 3, "small": np.arange(10)},
        lambda array: ((array, 1), {"key": "x"}),
        lambda array: array.reshape(100, -1),
        lambda array: array.reshape(100, -1).T,
        lambda array: array.view(np.int64),
        lambda array: array[:],
    ],
    ids=["itself", "in a dict", "argument", "reshaped", "transposed", "another type", "a view of all"],
)
def test_the_whole_of_it_is_sealed_where_it_is(stores: tuple[Store, Store], wrap: Any) -> None:
    writer, reader = stores
    array = born(writer)
    array[:] = np.arange(100_000)
    value = wrap(array)
    segment = write(writer, value)
    assert num_copied(writer) == 0
    assert not array.flags.writeable
    specimens.assert_same(reader.read(segment, None), value)
    assert writer.account.used() == os.path.getsize(writer._path(segment.name))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda array: array[1:],
        lambda array: array[::-1],
        lambda array: array[::2],
        lambda array: [array, np.zeros(100_000)],
        lambda array: [array, array[:50_000]],
        lambda array: [array, b"x" * 5000],
        lambda array: array.astype("M8[s]"),
        lambda array: array.copy(),
    ],
    ids=["a part", "backwards", "stepped", "with another", "with a part", "with a long stream", "converted", "a copy"],
)
def test_anything_else_is_copied(stores: tuple[Store, Store], wrap: Any) -> None:
    writer, reader = stores
    array = born(writer)
    value = wrap(array)
    segment = write(writer, value)
    assert num_copied(writer) == 1
    array[:] = 7
    specimens.assert_same(reader.read(segment, None), wrap(born(writer)))


@pytest.mark.parametrize("size", [100_000, 2 * MB // 8, 3 * MB // 8], ids=str)
@pytest.mark.parametrize("kernel", ["new", "old"])
def test_nothing_that_its_maker_writes_later_is_in_the_object(
    stores: tuple[Store, Store], kernel: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = stores
    monkeypatch.setattr(mapping, "_can_leave", kernel == "new")
    array = born(writer, size=size)
    aliases = [array[10:], array.view(np.uint64), np.frombuffer(memoryview(array)[:], np.float64)]
    segment = write(writer, array)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 2
    got = reader.read(segment, None)
    for alias in aliases:
        alias[:] = 5
    assert (got == 1).all()
    assert (reader.read(segment, None) == 1).all()
    assert array[50] != 1, "they share memory with it still, and with nothing else"
    del array, aliases, alias, got
    writer.free(segment.name)
    again = born(writer, 7, size)
    assert write(writer, again).name == segment.name
    reader.drop_mappings()
    assert (reader.read(segment, None) == 7).all()


def test_the_second_time_it_is_copied(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    array = born(writer)
    first, second = write(writer, array), write(writer, array)
    assert first.name != second.name
    np.testing.assert_array_equal(reader.read(first, None), reader.read(second, None))


def test_what_was_never_an_object_is_used_again(stores: tuple[Store, Store], tmp_path: Path) -> None:
    writer, _ = stores
    array = born(writer)
    view = array[5:]
    del array
    writer.collect()
    assert num_copied(writer) == 1, "a view of it is left"
    assert [(each.owned, each.objects) for each in writer.account.holdings()] == [(800_000, 1), (0, 0)]
    del view
    writer.collect()
    assert num_copied(writer) == 0 == len(writer.born)
    [holding] = [each for each in writer.account.holdings() if each.client == "w1"]
    assert (holding.used, holding.owned, holding.objects) == (holding.spare, 0, 0)
    again = born(writer)
    assert [name for name in os.listdir(tmp_path) if name.startswith("s-")] == ["s-w1-1"]
    assert (again == 1).all()


def test_it_stays_as_it_is_for_its_maker_when_its_owner_has_freed_it(stores: tuple[Store, Store]) -> None:
    writer, _ = stores
    array = born(writer, 3)
    segment = write(writer, array)
    writer.free(segment.name)
    others = [write(writer, np.full(100_000, 4.0)) for _ in range(3)]
    assert segment.name not in [other.name for other in others]
    writer.drop_spares(1 << 60)
    assert (array == 3).all()
    del array
    assert write(writer, np.full(100_000, 5.0)).name != segment.name, "nobody has told the store"
    writer.collect()
    assert write(writer, np.full(100_000, 5.0)).name == segment.name


@pytest.mark.parametrize("end", ["lost", "owner died"])
def test_it_stays_as_it_is_for_its_maker_when_the_object_is_gone(stores: tuple[Store, Store], end: str) -> None:
    writer, _ = stores
    array = born(writer, 3)
    segment = write(writer, array)
    if end == "lost":
        writer.lose(segment.name)
    else:
        writer.owner_died("driver")
    assert (array == 3).all()
    assert writer.account.used() == 0
    del array
    writer.collect()
    assert writer.account.used() == 0


def test_it_goes_to_disk_once_nobody_looks(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    spiller = Spiller(writer, threading.Lock())
    array = born(writer, 2)
    assert spiller.spill(1) == 0, "it is no object"
    segment = write(writer, array)
    assert spiller.spill(1) == 0, "its maker looks at it"
    assert (array == 2).all()
    del array
    assert spiller.spill(1) > 0
    assert reader.place(segment) == "spilled"
    assert (reader.read(segment, None) == 2).all()


def test_a_full_store_has_no_room_for_it(stores: tuple[Store, Store]) -> None:
    writer, _ = stores
    array = born(writer)
    with pytest.raises(ObjectStoreFull, match=r"w1 0\.8 MB in 1 objects"):
        born(writer, size=MB)
    del array
    writer.collect()
    born(writer, size=MB - 1000)


@pytest.mark.parametrize("what", ["pages", "address space"])
def test_a_full_disk_is_an_error_and_leaves_nothing(
    stores: tuple[Store, Store], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, _ = stores

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device") if what == "pages" else ObjectStoreFull("ulimit -v")

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "posix_fallocate", full) if what == "pages" else (segments, "to_fill", full)))
        with pytest.raises(ObjectStoreFull):
            born(writer)
    assert writer.account.used() == 0
    assert not [name for name in os.listdir(tmp_path) if name.startswith("s-")]
    assert (born(writer) == 1).all()


@pytest.mark.parametrize("what", ["removed", "no mapping"])
def test_where_it_cannot_be_sealed_it_is_copied(
    stores: tuple[Store, Store], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = stores
    array = born(writer)
    if what == "removed":
        os.unlink(writer._path("s-w1-1"))
    else:

        def none(*_: Any) -> Any:
            raise ObjectStoreFull("as many mappings as it may")

        monkeypatch.setattr(Mapping, "make_private", none)
    segment = write(writer, array)
    assert segment.name == "s-w1-2"
    array[:] = 5
    assert (reader.read(segment, None) == 1).all()


@pytest.mark.parametrize("seed", range(4))
def test_arrays_of_every_shape_and_type(stores: tuple[Store, Store], seed: int) -> None:
    writer, reader = stores
    chooser = random.Random(seed)
    for _ in range(100):
        sent = specimens.array(chooser)
        if not codec.is_out_of_band(np.ascontiguousarray(sent)):
            continue
        array = writer.empty(sent)
        assert (array.shape, array.dtype) == (sent.shape, sent.dtype)
        assert array.flags.c_contiguous and array.ctypes.data % 64 == 0
        array[...] = sent
        segment = write(writer, array)
        assert num_copied(writer) == 0
        specimens.assert_same(reader.read(segment, None), np.ascontiguousarray(sent).reshape(sent.shape))
        del array
        writer.free(segment.name)


def test_what_a_fork_writes_is_its_own(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    array = born(writer)
    pid = os.fork()
    if not pid:
        writer.after_fork_in_child()
        array[:] = 9
        del array
        writer.let_go.clear()
        os._exit(0)
    os.waitpid(pid, 0)
    assert (array == 1).all()
    assert (reader.read(write(writer, array), None) == 1).all()
