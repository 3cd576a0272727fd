"""The account of shared memory: one budget for all processes of a node, kept without a message.

A small file of the session's folder holds a slot for each process. A process changes only its own slot, and whoever
wants room sums up all of them: a reservation is entered first and taken back when the sum is over the limit, so the
budget is never exceeded, except by what two processes reserve in the same few nanoseconds. The slot of a dead process
is settled by the node, after its files are gone; bytes that somebody takes over move from slot to slot.

Slot: name (24 bytes), then int64 used, spare, spilled, owned, objects. `used` counts the pages of the segments that
the process created, those that wait for reuse (`spare`) included; `owned` and `objects` count what the process owns,
whoever created it, and say in an error who holds what.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from rlplat.errors import OptionError, RuntimeFault
from rlplat.machine_limits import memory_limit
from rlplat.runtime.machine.session import SPILL_LINK

FILE = "account"
_MAX_SLOTS = 1023
_WORDS = 8
_NAME_BYTES = 24
_USED, _SPARE, _SPILLED, _OWNED, _OBJECTS = 3, 4, 5, 6, 7
_LIMIT, _TIMEOUT_MS, _NUM_SLOTS = 0, 1, 2
_SHARE_OF_RAM = 0.3
_SHARE_OF_FREE = 0.9
_MIN_BYTES = 1 << 20
_FOR_EVER_S = 1e10
_LOCK_S = 2.0


@dataclass(frozen=True)
class Holding:
    """What one process has in the store."""

    client: str
    used: int
    """Bytes of shared memory in segments that it created."""
    spare: int
    """... of which wait for the next value."""
    spilled: int
    """Bytes that it moved to disk."""
    owned: int
    """Bytes of the large objects that it owns."""
    objects: int


class Account:
    """The view of one process; all of its methods but `move` are called with that process's lock held."""

    def __init__(self, memory: mmap.mmap, path: str | None, client_id: str) -> None:
        self._memory = memory
        self._path = path
        self._words: Any = memoryview(memory).cast("q")
        self._base = 0
        self.limit: int = self._words[_LIMIT]
        self.full_timeout_s: float = self._words[_TIMEOUT_MS] / 1000
        if client_id:
            with self._exclusive():
                self._claim(client_id)

    @classmethod
    def open(cls, session: str, client_id: str = "") -> Account:
        """With a slot for `client_id`, or for looking only. A session without an account has no limit."""
        path = os.path.join(session, FILE)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            memory = mmap.mmap(-1, _bytes(8))
            with memoryview(memory).cast("q") as words:
                words[_LIMIT] = 1 << 62
            return cls(memory, None, client_id)
        try:
            return cls(mmap.mmap(descriptor, 0), path, client_id)
        finally:
            os.close(descriptor)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Slots are given out, settled and moved by one process at a time; but one that was stopped in the middle of
        that must not stop the node, which is the one to kill it."""
        if self._path is None:
            yield
            return
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            deadline = time.monotonic() + _LOCK_S
            while time.monotonic() < deadline:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.001)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a child may have been forked meanwhile
            os.close(descriptor)

    def _claim(self, client_id: str) -> None:
        name = client_id.encode()
        words, num_slots = self._words, self._words[_NUM_SLOTS]
        if len(name) > _NAME_BYTES:
            raise RuntimeFault(f"client id {client_id!r} has more than {_NAME_BYTES} bytes")
        for index in range(1, num_slots + 2):
            base = index * _WORDS
            if base + _WORDS > len(words):
                raise RuntimeFault(f"more than {num_slots} processes share this node's object store")
            if not words[base]:
                break
        self._base = base
        self._memory[8 * base : 8 * base + _NAME_BYTES] = name.ljust(_NAME_BYTES, b"\0")
        words[_NUM_SLOTS] = max(num_slots, index)

    # -- own slot

    def reserve(self, size: int) -> bool:
        """Enter `size` bytes of new pages; False, and nothing entered, when they are over the budget."""
        words, base = self._words, self._base
        words[base + _USED] += size
        if self.used() <= self.limit:
            return True
        words[base + _USED] -= size
        return False

    def release(self, size: int) -> None:
        self._words[self._base + _USED] -= size

    def spare(self, change: int) -> None:
        self._words[self._base + _SPARE] += change

    def spilled(self, change: int) -> None:
        self._words[self._base + _SPILLED] += change

    def owned(self, change: int, objects: int) -> None:
        words, base = self._words, self._base
        words[base + _OWNED] += change
        words[base + _OBJECTS] += objects

    # -- all slots

    def used(self) -> int:
        """Bytes of shared memory that all processes have taken."""
        words = self._words
        return sum(words[_WORDS + _USED : _WORDS * (words[_NUM_SLOTS] + 1) : _WORDS])

    def holdings(self) -> list[Holding]:
        """Of every process that has a slot."""
        out = []
        for index in range(1, self._words[_NUM_SLOTS] + 1):
            base = index * _WORDS
            name = bytes(self._memory[8 * base : 8 * base + _NAME_BYTES]).rstrip(b"\0").decode()
            if name:
                out.append(Holding(name, *self._words[base + _USED : base + _WORDS]))
        return out

    def take_over(self, creator: str, size: int, spilled: int) -> None:
        """Bytes of a dead process are ours from now on."""
        with self._exclusive():
            words = self._words
            base = self._find(creator)
            if base:
                words[base + _USED] -= size
                words[base + _SPILLED] -= spilled
            words[self._base + _USED] += size
            words[self._base + _SPILLED] += spilled

    def settle(self, client: str) -> None:
        """A dead process's files are gone: its slot is free."""
        with self._exclusive():
            base = self._find(client)
            if base:
                self._memory[8 * base : 8 * (base + _WORDS)] = bytes(8 * _WORDS)

    def _find(self, client: str) -> int:
        name = client.encode().ljust(_NAME_BYTES, b"\0")
        for index in range(1, self._words[_NUM_SLOTS] + 1):
            base = index * _WORDS
            if self._memory[8 * base : 8 * base + _NAME_BYTES] == name:
                return base
        return 0

    def describe(self) -> str:
        """Who holds what, the largest owners first."""
        holdings = self.holdings()
        used, spare = sum(h.used for h in holdings), sum(h.spare for h in holdings)
        spilled = sum(h.spilled for h in holdings)
        owners = sorted((h for h in holdings if h.owned), key=lambda h: -h.owned)
        text = f"{used / 1e6:.1f} of {self.limit / 1e6:.1f} MB are taken"
        if spare:
            text += f" ({spare / 1e6:.1f} MB of that wait for reuse)"
        if spilled:
            text += f", {spilled / 1e6:.1f} MB are spilled to disk"
        held = [f"{h.client} {h.owned / 1e6:.1f} MB in {h.objects} objects" for h in owners[:4]]
        if len(owners) > 4:
            held.append(f"{len(owners) - 4} more {sum(h.owned for h in owners[4:]) / 1e6:.1f} MB")
        return text + (f"; owners: {', '.join(held)}" if held else "")

    def close(self) -> None:
        """Later entries are of no account."""
        self._words.release()
        self._memory.close()
        self._words = memoryview(bytearray(_bytes(2))).cast("q")
        self._memory = mmap.mmap(-1, _bytes(2))
        self._path, self._base = None, _WORDS


def _bytes(num_slots: int) -> int:
    return 8 * _WORDS * (num_slots + 1)


def create_account(session: str, limit: int, full_timeout_s: float) -> None:
    if isinstance(full_timeout_s, bool) or not isinstance(full_timeout_s, (int, float)) or not full_timeout_s >= 0:
        raise OptionError(f"store_full_timeout_s must be seconds, at least 0, not {full_timeout_s!r}")
    descriptor = os.open(os.path.join(session, FILE), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _bytes(_MAX_SLOTS))  # all of it: a full /dev/shm is no SIGBUS later
        header = [limit, int(min(full_timeout_s, _FOR_EVER_S) * 1000), 0]
        os.pwrite(descriptor, b"".join(word.to_bytes(8, "little", signed=True) for word in header), 0)
    finally:
        os.close(descriptor)


def usage(session: str) -> dict[str, Any]:
    """What people are shown of a store: no process needs to be asked."""
    account = Account.open(session)
    holdings, limit = account.holdings(), account.limit
    account.close()
    return {
        "bytes": sum(holding.used for holding in holdings),
        "limit_bytes": limit,
        "spare_bytes": sum(holding.spare for holding in holdings),
        "spilled_bytes": sum(holding.spilled for holding in holdings),
        "by_creator": {holding.client: holding.used for holding in holdings if holding.used},
    }


def budget(wanted: int | None, session: str) -> int:
    """Bytes that objects may take: what `init` was told, or a share of RAM bounded by what is free."""
    disk = shutil.disk_usage(session)
    if wanted is None:
        return max(_MIN_BYTES, int(min(_SHARE_OF_RAM * memory_limit(), _SHARE_OF_FREE * disk.free)))
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < _MIN_BYTES:
        raise OptionError(f"object_store_memory must be a number of bytes, at least 1 MiB, not {wanted!r}")
    if wanted > disk.total:
        raise OptionError(
            f"object_store_memory is {wanted / 1e6:.0f} MB, but {os.path.dirname(session)} has "
            f"{disk.total / 1e6:.0f} MB in all: ask for less, or give the machine (or container: --shm-size) more"
        )
    return wanted


def remove_files_of(session: str, client: str, kept: Container[str] = ()) -> None:
    """The node's clean-up after a dead process: its socket, its segments wherever they are (but for `kept`), its
    slot."""
    for folder in (session, os.path.join(session, SPILL_LINK)):
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            continue
        for name in names:
            if name == client or (name.startswith((f"s-{client}-", f".s-{client}-")) and name not in kept):
                # Unlinked, not truncated: other processes may look at the pages still.
                os.unlink(os.path.join(folder, name))
    account = Account.open(session)
    account.settle(client)
    account.close()
