"""Shared memory: recycling, zero copy, views that stay true, a full store."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.errors import ObjectLost, ObjectStoreFull
from rlplat.runtime.store import segments
from rlplat.runtime.store.room import Spiller
from rlplat.runtime.store.segments import Store, _class_bytes
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.codec import OUT_OF_BAND_BYTES
from rlplat.runtime.wire.values import Segment


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """A creator's and a reader's."""
    writer, reader = Store(str(tmp_path), "w1"), Store(str(tmp_path), "driver")
    yield writer, reader
    writer.close()
    reader.close()


def packed(value: Any) -> codec.Packed:
    return codec.pack(value)


def array(value: float, size: int = 50_000) -> np.ndarray:
    return np.full(size, value)


@pytest.mark.parametrize(
    "value",
    [
        array(1.5),
        {"a": array(1), "b": [array(2, 10_000), "text"]},
        b"x" * 200_000,
        np.zeros((0, 3)),
        list(range(30_000)),
    ],
    ids=["array", "tree", "bytes", "empty", "no buffers"],
)
def test_what_is_written_is_read(stores: tuple[Store, Store], value: Any) -> None:
    writer, reader = stores
    got = reader.read(writer.write(packed(value), "driver"), "ref")
    np.testing.assert_equal(got, value)


@pytest.mark.parametrize("alone", [segments._SHARED_COPY_BYTES, OUT_OF_BAND_BYTES])
def test_values_that_end_anywhere_in_a_page_are_read_fresh_from_a_used_segment_and_from_disk(
    stores: tuple[Store, Store], tmp_path: Path, alone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_SHARED_COPY_BYTES", alone)  # (how much one thread copies alone)
    writer, reader = stores
    (tmp_path / "spill").mkdir()
    spiller = Spiller(writer, threading.Lock())
    source = np.random.default_rng(0).bytes(2 * OUT_OF_BAND_BYTES)
    ends = {64 * i + d for i in range(65) for d in (-1, 0, 1)} | set(range(PAGESIZE - 192, PAGESIZE + 1))
    for end in sorted(ends):
        size = OUT_OF_BAND_BYTES + end
        fresh = writer.write(packed(source[:size]), "driver")
        assert os.path.getsize(tmp_path / fresh.name) % PAGESIZE == 0
        assert reader.read(fresh, None) == source[:size]
        writer.free(fresh.name)
        used = writer.write(packed(source[-size:]), "driver")
        assert used.name == fresh.name
        assert reader.read(used, None) == source[-size:]
        reader.drop_mappings()
        assert spiller.spill(1) > 0
        assert reader.place(used) == "spilled"
        assert reader.read(used, None) == source[-size:]
        reader.drop_mappings()
        writer.free(used.name)


def test_a_read_array_is_a_read_only_view_that_keeps_its_ref(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    ref = object()
    got = reader.read(writer.write(packed(array(1)), "driver"), ref)
    assert not got.flags.writeable
    assert not got.flags.owndata
    piece: Any = got[10:20].reshape(2, 5)
    del got
    while not hasattr(piece, "ref"):
        piece = piece.base if isinstance(piece, np.ndarray) else piece.obj
    assert piece.ref is ref


def test_a_freed_segment_is_used_again_for_its_size_class(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    first = writer.write(packed(array(1)), "driver")
    writer.free(first.name)
    second = writer.write(packed(array(2)), "driver")
    assert second.name == first.name
    assert (reader.read(second, None) == 2).all()
    larger = writer.write(packed(array(3, 500_000)), "driver")
    assert larger.name != first.name


def test_both_halves_of_a_large_value_are_in_a_used_segment(stores: tuple[Store, Store]) -> None:
    """Two threads copy them."""
    writer, reader = stores
    for size in range(segments._SHARED_COPY_BYTES - 2, segments._SHARED_COPY_BYTES + 3):
        source = np.random.default_rng(size).integers(0, 255, size, np.uint8)
        names = []
        for value in (np.zeros(size, np.uint8), source, source[::-1].copy()):
            segment = writer.write(packed(value), "driver")
            np.testing.assert_array_equal(reader.read(segment, None), value)
            names.append(segment.name)
            writer.free(segment.name)
        assert len(set(names)) == 1


def test_a_segment_in_use_is_never_written_over(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    kept = [reader.read(writer.write(packed(array(-i)), "driver"), None) for i in range(5)]
    for i in range(300):
        segment = writer.write(packed(array(i)), "driver")
        assert reader.read(segment, None)[-1] == i
        writer.free(segment.name)
    assert all((view == -i).all() for i, view in enumerate(kept))


def test_a_smaller_value_in_a_used_segment_reads_right(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    for size in (50_000, 49_000, 50_000, 48_500):
        segment = writer.write(packed(array(size, size)), "driver")
        got = reader.read(segment, None)
        assert got.shape == (size,)
        assert (got == size).all()
        writer.free(segment.name)


@pytest.mark.parametrize("size", [65_536, 100_000, 1 << 20, (1 << 20) + 1, 3_333_333, 1 << 33])
def test_size_classes_hold_their_values_and_waste_a_quarter_at_most(size: int) -> None:
    assert size <= _class_bytes(size) <= max(1.25 * size, size + (1 << 14))
    assert _class_bytes(_class_bytes(size)) == _class_bytes(size)


def test_freeing_twice_or_a_stranger_changes_nothing(stores: tuple[Store, Store]) -> None:
    writer, _ = stores
    segment = writer.write(packed(array(1)), "driver")
    writer.free(segment.name)
    writer.free(segment.name)
    writer.free("s-w1-99")
    names = {writer.write(packed(array(i)), "driver").name for i in range(3)}
    assert len(names) == 3


def test_a_full_disk_is_an_error_and_the_store_is_usable_after(
    stores: tuple[Store, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = stores
    real, room = os.pwrite, [100_000]

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        size = min(len(data), room[0])  # a nearly full file system writes less before it says no
        if size == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= size
        return real(descriptor, data[:size], offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(ObjectStoreFull, match=r"no room for 0\.4 MB.*free.*--shm-size"):
        writer.write(packed(array(1)), "driver")
    assert os.listdir(tmp_path) == []
    room[0] = 10**9
    assert (reader.read(writer.write(packed(array(2)), "driver"), None) == 2).all()


def test_another_error_of_the_disk_is_not_called_full(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwrite(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="Input/output"):
        stores[0].write(packed(array(1)), "driver")


def test_the_bytes_of_a_dead_creator_can_be_taken_over(stores: tuple[Store, Store], tmp_path: Path) -> None:
    writer, owner = stores
    segment = writer.write(packed(array(7)), "driver")
    before = owner.read(segment, None)
    taken = owner.take_over(segment)
    assert taken.creator == "driver"
    os.unlink(tmp_path / segment.name)  # as the node does for the dead
    assert (owner.read(taken, None) == 7).all()
    assert (before == 7).all()
    owner.free(taken.name)
    again = owner.write(packed(array(8)), "driver")
    assert again.name == taken.name
    assert (owner.read(again, None) == 8).all()


def test_what_is_gone_already_cannot_be_taken_over(stores: tuple[Store, Store], tmp_path: Path) -> None:
    writer, owner = stores
    segment = writer.write(packed(array(7)), "driver")
    os.unlink(tmp_path / segment.name)
    taken = owner.take_over(segment)
    with pytest.raises(ObjectLost, match=r"w1.*gone"):
        owner.read(taken, None)


def test_what_a_dead_owner_left_is_never_written_over(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    orphan, other = writer.write(packed(array(7)), "w9"), writer.write(packed(array(8)), "driver")
    views = reader.read(orphan, None), reader.read(other, None)
    writer.owner_died("w9")
    for i in range(20):
        segment = writer.write(packed(array(i)), "driver")
        assert segment.name not in (orphan.name, other.name)
    assert (views[0] == 7).all()
    assert (views[1] == 8).all()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "s-/../../x", "node", "", "s-w1-1/../../x"])
def test_a_forged_name_is_refused(stores: tuple[Store, Store], name: str) -> None:
    with pytest.raises(ObjectLost, match="refused"):
        stores[1].read(Segment("w1", name, [100]), None)


def test_a_segment_that_is_a_link_is_refused(stores: tuple[Store, Store], tmp_path: Path) -> None:
    target = tmp_path / "secret"
    target.write_bytes(b"x" * 8192)
    os.symlink(target, tmp_path / "s-w1-1")
    with pytest.raises((ObjectLost, OSError)):
        stores[1].read(Segment("w1", "s-w1-1", [100]), None)


def test_a_description_longer_than_the_segment_is_refused(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    segment = writer.write(packed(array(1)), "driver")
    with pytest.raises(ObjectLost, match="shorter"):
        reader.read(Segment("w1", segment.name, [*segment.sizes, 1 << 30]), None)
