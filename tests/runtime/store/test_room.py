"""Segments that go to disk: oldest first, never one that somebody looks at, and readers find them."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.errors import ObjectStoreFull
from rlplat.runtime.store.account import create_account
from rlplat.runtime.store.room import Spiller
from rlplat.runtime.store.segments import BytesMissing, Store
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.values import Segment

MB = 1 << 20


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """A creator's and a reader's, with 10 MiB for both."""
    create_account(str(tmp_path), 10 * MB, 0)
    (tmp_path / "spill").mkdir()
    writer, reader = Store(str(tmp_path), "w1"), Store(str(tmp_path), "driver")
    yield writer, reader
    writer.close()
    reader.close()


def write(store: Store, value: float, size: int = MB // 2) -> Segment:
    """An array of `size` float64 (4 MiB)."""
    return store.write(codec.pack(np.full(size, value)), "driver")


def num_open(path: str) -> int:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.lexists(link) and os.path.realpath(link) == path for link in links)


def spill(store: Store, needed: int) -> tuple[int, str]:
    spiller = Spiller(store, threading.Lock())
    return spiller.spill(needed), spiller.failure


def test_the_budget_holds_and_own_spares_give_way(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    first, _ = write(writer, 1), write(writer, 2)
    with pytest.raises(ObjectStoreFull, match=r"no room for 4\.2 MB in the object store: 8\.4 of 10\.5 MB"):
        write(writer, 3)
    with pytest.raises(ObjectStoreFull):
        write(reader, 3)
    writer.free(first.name)
    with pytest.raises(ObjectStoreFull):
        write(reader, 3)  # it has no say over the other's spare
    assert (reader.read(write(writer, 4, MB // 4), None) == 4).all()  # another size class: the spare went
    assert writer.account.used() < 6.5 * MB


def test_the_oldest_goes_first_and_is_read_from_disk(stores: tuple[Store, Store], tmp_path: Path) -> None:
    writer, reader = stores
    old, young = write(writer, 1), write(writer, 2)
    freed, _ = spill(writer, 1)
    assert freed >= 4 * MB
    assert (tmp_path / "spill" / old.name).exists()
    assert not (tmp_path / old.name).exists()
    assert (reader.place(old), reader.place(young)) == ("spilled", "shm")
    third = write(writer, 3)
    for segment, value in ((old, 1), (young, 2), (third, 3)):
        assert (reader.read(segment, None) == value).all()
    holding = writer.account.holdings()[0]
    assert holding.spilled >= 4 * MB
    assert holding.used < 8.5 * MB


def test_what_somebody_looks_at_stays_and_keeps_its_pages(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    seen, unseen = write(writer, 1), write(writer, 2)
    view = reader.read(seen, None)
    reader.read(unseen, None)  # mapped still, but nobody looks
    assert spill(writer, 100 * MB)[0] == 0
    reader.drop_mappings()
    assert 4 * MB <= spill(writer, 100 * MB)[0] < 5 * MB
    assert (writer.place(seen), writer.place(unseen)) == ("shm", "spilled")
    assert (view == 1).all()
    del view
    reader.drop_mappings()
    assert spill(writer, 100 * MB)[0] >= 4 * MB
    assert (reader.read(seen, None) == 1).all()


def test_a_freed_object_on_disk_is_removed(stores: tuple[Store, Store], tmp_path: Path) -> None:
    writer, _ = stores
    segment = write(writer, 1)
    spill(writer, 1)
    writer.free(segment.name)
    assert os.listdir(tmp_path / "spill") == []
    assert writer.account.holdings()[0].spilled == 0
    assert write(writer, 2).name != segment.name


def test_a_spare_that_somebody_removed_is_not_written_to(stores: tuple[Store, Store], tmp_path: Path) -> None:
    writer, reader = stores
    for _ in range(2):  # with and without a mapping
        segment = write(writer, 1)
        writer.free(segment.name)
        os.unlink(tmp_path / segment.name)
        again = write(writer, 2)
        assert (reader.read(again, None) == 2).all()
        writer.free(again.name)
        assert (reader.read(write(writer, 3), None) == 3).all()
        reader.drop_mappings()
        writer.lose(again.name)
        writer.drop_spares(1 << 62)
    assert writer.account.used() == 0


def test_an_object_that_is_freed_on_its_way_to_disk_is_forgotten(
    stores: tuple[Store, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, _ = stores
    gone, lost = write(writer, 1), write(writer, 2)
    move = writer.move

    def free_and_move(name: str) -> bool:
        writer.free(gone.name)
        writer.owner_died("driver")
        return move(name)

    monkeypatch.setattr(writer, "move", free_and_move)
    spill(writer, 1)
    assert os.listdir(tmp_path / "spill") == []
    assert not (tmp_path / gone.name).exists()
    assert not (tmp_path / lost.name).exists()
    assert writer.account.used() == 0


def test_a_full_disk_leaves_the_object_where_it_was(
    stores: tuple[Store, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = stores
    segment = write(writer, 1)

    def sendfile(target: int, *_: Any) -> int:
        os.write(target, b"a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "sendfile", sendfile)
    assert spill(writer, 1) == (0, "spilling to disk failed: No space left on device")
    assert os.listdir(tmp_path / "spill") == []
    assert (reader.read(segment, None) == 1).all()
    reader.drop_mappings()
    monkeypatch.undo()
    assert spill(writer, 1)[0] >= 4 * MB


def test_a_reader_that_comes_in_the_middle_waits_and_finds_the_copy(
    stores: tuple[Store, Store], tmp_path: Path
) -> None:
    writer, reader = stores
    segment = write(writer, 1)
    path = str(tmp_path / segment.name)
    other = Store(str(tmp_path), "w7")
    twin = other.write(codec.pack(np.full(MB // 2, 9.0)), "driver")  # told apart from the original
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(reader.read(segment, None)))
    thread.start()
    while num_open(path) < 2:  # the reader has opened the original, and waits for the lock
        pass
    os.rename(tmp_path / twin.name, tmp_path / "spill" / segment.name)
    os.unlink(path)
    os.close(lock)
    thread.join(10)
    other.close()
    assert (got[0] == 9).all()


def test_spilled_bytes_of_a_dead_creator_can_be_taken_over(stores: tuple[Store, Store], tmp_path: Path) -> None:
    writer, owner = stores
    segment = write(writer, 7)
    spill(writer, 1)
    taken = owner.take_over(segment)
    assert taken.creator == "driver"
    os.unlink(tmp_path / "spill" / segment.name)
    assert (owner.read(taken, None) == 7).all()
    assert {h.client: h.spilled > 0 for h in owner.account.holdings()} == {"w1": False, "driver": True}
    owner.free(taken.name)
    assert os.listdir(tmp_path / "spill") == []


def test_missing_bytes_are_told_apart(stores: tuple[Store, Store], tmp_path: Path) -> None:
    writer, reader = stores
    segment = write(writer, 1)
    os.unlink(tmp_path / segment.name)
    with pytest.raises(BytesMissing):
        reader.read(segment, None)
    assert reader.place(segment) == "lost"
    writer.lose(segment.name)
    assert writer.account.used() == 0
    assert write(writer, 2).name != segment.name


def test_while_a_reader_waits_for_the_lock_mappings_can_be_dropped(stores: tuple[Store, Store], tmp_path: Path) -> None:
    """The thread that serves all messages does that: it must not wait for a copy to disk."""
    writer, reader = stores
    segment = write(writer, 1)
    path = str(tmp_path / segment.name)
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(reader.read(segment, None)))
    waiting.start()
    while num_open(path) < 2:
        pass
    dropping = threading.Thread(target=reader.drop_mappings)
    dropping.start()
    dropping.join(10)
    was_free = not dropping.is_alive()
    os.close(lock)
    waiting.join(10)
    dropping.join(10)
    assert was_free
    assert (got[0] == 1).all()
