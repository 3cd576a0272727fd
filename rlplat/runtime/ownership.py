"""The owner's book: what each object of this process is, and who still needs it. Pure: no I/O, no clock, no locks.

Rules
1. An entry lives while anybody needs it: refs in this process (`num_refs`), copies handed to other processes
   (`borrowers`), or the task that is to produce it.
2. Handing a ref to a peer, inside whatever value, lends it once (`lend`). The peer says once, when it has no copy
   left, how many it had been handed (`returned`). The news may come in any order; only the sums count.
3. A dead peer has returned everything (`peer_died`).
4. What nobody needs any more is in `freed`, for the shell to act on.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec


class Entry(msgspec.Struct, eq=False, gc=False):
    """An object of this process."""

    id: int
    num_refs: int = 1
    value: Any = None
    """`messages.Value`, or None while the task runs."""
    borrowers: dict[str, int] | None = None
    inner: Any = None
    """Refs inside the value: they live as long as it does."""
    callbacks: list[Any] | None = None
    """Called with the value once it is here (by Fetch, futures)."""
    made_by: str = ""
    """"put", or what made it is called (large results only)."""


class Book:
    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.freed: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, id: int) -> Entry:
        """A new object with one ref."""
        entry = self.entries[id] = Entry(id)
        return entry

    def find(self, id: int) -> Entry | None:
        return self.entries.get(id)

    def values(self) -> list[Entry]:
        return list(self.entries.values())

    def unref(self, id: int) -> None:
        entry = self.entries[id]
        entry.num_refs -= 1
        if not entry.num_refs and entry.value is not None and not entry.borrowers:
            del self.entries[id]  # `_settle` for the common case
            self.freed.append(entry)

    def fill(self, id: int, value: Any, inner: Any = None) -> Entry | None:
        """The value is here; returns the entry, or None when it is known already or nobody wants it."""
        entry = self.entries.get(id)
        if entry is None or entry.value is not None:
            return None
        entry.value, entry.inner = value, inner
        if not entry.num_refs:
            self._settle(entry)
        return entry

    def lend(self, id: int, peer: str, count: int = 1) -> bool:
        """False when the object is gone: then there is nothing to lend."""
        entry = self.entries.get(id)
        if entry is None:
            return False
        if entry.borrowers is None:
            entry.borrowers = {}
        left = entry.borrowers.get(peer, 0) + count
        if left:
            entry.borrowers[peer] = left
        else:
            del entry.borrowers[peer]
        if not entry.num_refs:
            self._settle(entry)
        return True

    def returned(self, id: int, peer: str, count: int) -> None:
        self.lend(id, peer, -count)

    def peer_died(self, peer: str) -> None:
        for entry in [e for e in self.entries.values() if e.borrowers and peer in e.borrowers]:
            assert entry.borrowers is not None
            del entry.borrowers[peer]
            if not entry.num_refs:
                self._settle(entry)

    def _settle(self, entry: Entry) -> None:
        if entry.value is not None and not entry.num_refs and not entry.borrowers:
            del self.entries[entry.id]
            self.freed.append(entry)

    def check_valid(self) -> None:
        """Assert the invariants (for tests)."""
        for id, entry in self.entries.items():
            assert entry.id == id
            assert entry.num_refs >= 0
            assert entry.num_refs or entry.borrowers or entry.value is None, (
                f"object {id} is needed by nobody"
            )
