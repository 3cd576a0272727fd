"""Large values that a machine pulls from others, message by message: no process, no socket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlplat.runtime.machine.session import SPILL_LINK
from rlplat.runtime.node.copies import CHUNK_BYTES, Copies
from rlplat.runtime.store.account import Account, create_account, remove_files_of
from rlplat.runtime.wire.agent_messages import AskChunk, Chunk, DropCopies, Keep
from rlplat.runtime.wire.messages import MakeRoom, Pull, Pulled

LIMIT = 8 * CHUNK_BYTES
SIZE = 2 * CHUNK_BYTES


class Machine:
    def __init__(self, session: Path) -> None:
        create_account(str(session), LIMIT, 1.0)
        self.now = 0.0
        self.session = session
        self.told: list[Any] = []
        self.posted: list[tuple[str, Any]] = []
        self.copies = Copies(
            str(session),
            "n2",
            lambda message, data: self.told.append(message if data == b"" else (message, data)),
            lambda client, message: self.posted.append((client, message)),
            lambda: self.now,
        )

    def pull(self, name: str, creator: str = "w1", chunks: int = 2, size: int = SIZE) -> None:
        self.copies.pull("reader", Pull(1, creator, name))
        for offset in range(0, chunks * CHUNK_BYTES, CHUNK_BYTES):
            self.chunk(name, offset, size)

    def chunk(self, name: str, offset: int, size: int = SIZE, data: bytes = b"x" * CHUNK_BYTES) -> None:
        self.copies.hear(Chunk("n2", name, offset, size), data)

    def used(self) -> int:
        return self.copies._account.used()

    def files(self) -> list[str]:
        return sorted(name for name in os.listdir(self.session) if name.startswith("s-"))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.copies._account.close()


def test_a_copy_is_there_when_all_its_chunks_are(machine: Machine) -> None:
    machine.pull("s-w1-1", chunks=1)
    assert machine.files() == ["s-w1-1.part"] and not machine.posted
    machine.chunk("s-w1-1", CHUNK_BYTES, data=b"y" * CHUNK_BYTES)
    assert machine.files() == ["s-w1-1"] and machine.posted == [("reader", Pulled(1, True, ""))]
    assert (machine.session / "s-w1-1").read_bytes() == b"x" * CHUNK_BYTES + b"y" * CHUNK_BYTES
    assert machine.used() == SIZE
    assert [message.offset for message in machine.told if isinstance(message, AskChunk)] == [0, CHUNK_BYTES]


def test_a_pull_of_what_no_machine_has_ends_at_once(machine: Machine) -> None:
    machine.copies._tell = lambda message, data: machine.chunk(message.name, 0, -1, b"")
    machine.copies.pull("reader", Pull(1, "w1", "s-w1-1"))
    assert [message.is_there for _, message in machine.posted] == [False]


@pytest.mark.parametrize("ends", ["gone", "other size", "creator lost"])
def test_a_pull_that_fails_leaves_neither_a_file_nor_bytes_in_the_account(machine: Machine, ends: str) -> None:
    machine.pull("s-w1-1", chunks=1)
    assert machine.used() == SIZE
    if ends == "creator lost":
        machine.copies.lost(["w1"])
    else:
        size = -1 if ends == "gone" else SIZE + 1
        machine.chunk("s-w1-1", CHUNK_BYTES, size, b"")
    assert machine.files() == [] and machine.used() == 0
    assert [message.is_there for _, message in machine.posted] == [False]


def test_copies_of_a_dead_maker_go_and_no_others(machine: Machine) -> None:
    machine.pull("s-w1-1")
    machine.pull("s-w2-1", creator="w2")
    machine.copies.lost(["w1"])
    assert machine.files() == ["s-w2-1"] and machine.used() == SIZE


def test_copies_go_when_their_originals_do_and_the_oldest_first_when_room_is_needed(machine: Machine) -> None:
    for number in range(4):
        machine.pull(f"s-w1-{number}")
    machine.pull("s-w1-9")  # five have no room
    assert machine.files() == ["s-w1-1", "s-w1-2", "s-w1-3", "s-w1-9"]
    machine.copies.make_room("w5", MakeRoom(SIZE))
    assert machine.files() == ["s-w1-2", "s-w1-3", "s-w1-9"]
    machine.copies.hear(DropCopies("n2", ["s-w1-2", "s-w1-9", "s-never-1"]))
    assert machine.files() == ["s-w1-3"] and machine.used() == SIZE


def test_what_an_owner_elsewhere_keeps_of_a_dead_maker_stays_until_it_is_freed_or_its_owner_dies(
    machine: Machine,
) -> None:
    (machine.session / SPILL_LINK).mkdir()
    maker = Account.open(str(machine.session), "w1")
    for number in range(3):
        assert maker.reserve(10)
        (machine.session / f"s-w1-{number}").write_bytes(b"z" * 10)
    spilled = machine.session / SPILL_LINK / "s-w1-3"
    spilled.write_bytes(b"z" * 10)
    maker.spilled(10)
    machine.copies.hear(Keep("w8", "w1", ["s-w1-0", "s-w1-3", "s-w1-7"], False))
    machine.copies.hear(Keep("w9", "w1", ["s-w1-1"], False))
    remove_files_of(str(machine.session), "w1", machine.copies)
    assert machine.files() == ["s-w1-0", "s-w1-1"] and spilled.exists()
    (holding,) = machine.copies._account.holdings()
    assert (holding.used, holding.spilled) == (20, 10)
    machine.copies.hear(Keep("w8", "w1", ["s-w1-3"], True))
    assert not spilled.exists()
    machine.copies.settled(["w9"])
    assert machine.files() == ["s-w1-0"] and machine.used() == 10
    machine.copies.hear(Keep("w8", "w1", ["s-w1-0", "s-w1-0"], True))
    assert machine.files() == [] and machine.used() == 0
    maker.close()


def test_who_has_copies_of_what_is_made_here_hears_of_its_end(machine: Machine) -> None:
    original = machine.session / "s-w3-1"
    original.write_bytes(b"z" * 10)
    machine.copies.hear(AskChunk("n3", "w3", "s-w3-1", 0))
    assert machine.told == [(Chunk("n3", "s-w3-1", 0, 10), b"z" * 10)]
    machine.copies.keep_house(1.0)
    original.unlink()
    machine.copies.keep_house(3.0)
    assert machine.told[1:] == [DropCopies("n3", ["s-w3-1"])]


def test_copies_of_a_dead_maker_elsewhere_and_pulls_of_them_go_on(machine: Machine) -> None:
    machine.pull("s-w1-1")
    machine.pull("s-w1-2", chunks=1)
    remove_files_of(str(machine.session), "w1", machine.copies)
    machine.chunk("s-w1-2", CHUNK_BYTES)
    assert machine.files() == ["s-w1-1", "s-w1-2"] and machine.used() == 2 * SIZE


def test_a_pull_whose_file_is_removed_fails_alone(machine: Machine) -> None:
    machine.pull("s-w1-1", chunks=1)
    (machine.session / "s-w1-1.part").unlink()
    machine.chunk("s-w1-1", CHUNK_BYTES)
    assert machine.used() == 0 and [message.is_there for _, message in machine.posted] == [False]


def test_chunks_are_asked_for_ahead_by_a_window_that_all_pulls_share(machine: Machine) -> None:
    size = 20 * CHUNK_BYTES
    machine.copies._account.limit = 3 * size

    def asked(name: str) -> int:
        return sum(isinstance(message, AskChunk) and message.name == name for message in machine.told)

    machine.pull("s-w1-1", chunks=1, size=size)
    assert asked("s-w1-1") == 1 + 8
    machine.pull("s-w2-1", creator="w2", chunks=1, size=size)
    assert asked("s-w2-1") == 1 + 1  # one at least
    machine.chunk("s-w1-1", CHUNK_BYTES, size)
    assert (asked("s-w1-1"), asked("s-w2-1")) == (9, 2)
    for number in range(2, 9):
        machine.now += 1.0  # a slow connection: fewer wait in it
        machine.chunk("s-w1-1", number * CHUNK_BYTES, size)
    assert (asked("s-w1-1"), asked("s-w2-1")) == (10, 2)
    machine.copies.lost(["w1", "w2"])


def test_a_chunk_that_a_failed_pull_has_asked_for_does_not_count(machine: Machine) -> None:
    machine.pull("s-w1-1", chunks=1)
    machine.copies.lost(["w1"])
    machine.pull("s-w1-1", chunks=0)
    machine.chunk("s-w1-1", CHUNK_BYTES, data=b"z" * CHUNK_BYTES)
    machine.chunk("s-w1-1", 0)
    machine.chunk("s-w1-1", 0)
    assert machine.files() == ["s-w1-1.part"]
    machine.chunk("s-w1-1", CHUNK_BYTES)
    assert (machine.session / "s-w1-1").read_bytes() == b"x" * SIZE
