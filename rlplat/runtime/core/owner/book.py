"""The owner's book: what each object of this process is, and who still needs it. Pure: no I/O, no clock, no locks.

Rules
1. An entry lives while anybody needs it: refs in this process (`num_refs`), copies handed to other processes
   (`borrowers`), or the task that is to produce it.
2. Handing a ref to a peer, inside whatever value, lends it once (`lend`). The peer says once, when it has no copy
   left, how many it had been handed (`returned`). The news may come in any order; only the sums count.
3. There is a sum for each borrower and lender: "" stands for this process (and for borrowers that helped themselves).
   Sums are never added up: one below zero, a return that came ahead of its loan, must not hide another.
4. A dead peer may have passed on what it had: its lines stand until its death is settled (`settled`; decision 0011). By
   then what others have from it stands in lines of the lender `after_death(peer)`.
5. What nobody needs any more is in `freed`, for the shell to act on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec


class Entry(msgspec.Struct, eq=False, gc=False):
    """An object of this process."""

    id: int
    num_refs: int = 1
    call: Any = None
    """The `lanes.TaskRecord` that is to make it, until it has ended."""
    value: Any = None
    """`messages.Value`, or None while the task runs."""
    borrowers: dict[str | tuple[str, str], int] | None = None
    """Copies by borrower (lent by this process) or (borrower, lender)."""
    inner: Any = None
    """Refs inside the value: they live as long as it does."""
    callbacks: list[Any] | None = None
    """Called with the value once it is here (by Fetch, futures)."""
    made_by: str = ""
    """"put", or what made it is called (large results only)."""

    def num_lent(self) -> dict[str, int]:
        """Copies by borrower, whoever lent them."""
        counts: dict[str, int] = {}
        for line, count in (self.borrowers or {}).items():
            borrower = line if isinstance(line, str) else line[0]
            counts[borrower] = counts.get(borrower, 0) + count
        return counts


def after_death(lender: str) -> str:
    """The lender under which loans of a dead process are booked once more, as their borrowers count them."""
    return f"{lender}!"


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

    def call(self, id: int) -> Any:
        """The call that is to make this object; None when it has ended, or there is none."""
        entry = self.entries.get(id)
        return None if entry is None else entry.call

    def calls(self) -> list[Any]:
        """All that have not ended."""
        return [each.call for each in self.entries.values() if each.call is not None and each.call.id == each.id]

    def ended(self, ids: Iterable[int]) -> None:
        """The call that was to make these has ended."""
        for id in ids:
            entry = self.entries.get(id)
            if entry is not None:
                entry.call = None
                if not entry.num_refs:
                    self._settle(entry)

    def values(self) -> list[Entry]:
        return list(self.entries.values())

    def unref(self, id: int) -> None:
        entry = self.entries[id]
        entry.num_refs -= 1
        if not entry.num_refs and entry.value is not None and not entry.borrowers and entry.call is None:
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

    def lend(self, id: int, peer: str, count: int = 1, lender: str = "") -> bool:
        """`lender`: who has handed it over, when that was another process.

        False when the object is gone: then there is nothing to lend.
        """
        entry = self.entries.get(id)
        if entry is None:
            return False
        if entry.borrowers is None:
            entry.borrowers = {}
        line = (peer, lender) if lender else peer
        left = entry.borrowers.get(line, 0) + count
        if left:
            entry.borrowers[line] = left
        else:
            entry.borrowers.pop(line, None)
        if not entry.num_refs:
            self._settle(entry)
        return True

    def returned(self, id: int, peer: str, count: int, lender: str = "") -> None:
        self.lend(id, peer, -count, lender)

    def settled(self, peer: str) -> None:
        """Nobody has anything from a dead peer but what is booked of `after_death(peer)`."""
        for entry in [each for each in self.entries.values() if each.borrowers]:
            assert entry.borrowers is not None
            lines = [line for line in entry.borrowers if line == peer or (type(line) is tuple and peer in line)]
            for line in lines:
                del entry.borrowers[line]
            if lines and not entry.num_refs:
                self._settle(entry)

    def _settle(self, entry: Entry) -> None:
        if entry.value is not None and not entry.num_refs and not entry.borrowers and entry.call is None:
            del self.entries[entry.id]
            self.freed.append(entry)


class Callbacks:
    """What is called when a value has come: one after the other, never one inside another.

    A call whose argument failed fails as well, and so does the call that waits for that one. A chain of them is
    worked off here link by link: however long it is, the stack is as deep as for one.

    One thread at a time.
    """

    def __init__(self) -> None:
        self._due: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._is_running = False

    def run(self, calls: Iterable[Callable[[Any], object]], value: Any) -> None:
        """Call these with the value; from within one of them: after it, and after those that are due already.

        All are called: the first exception is raised in the end.
        """
        for call in calls:
            self._due.append((call, value))
        if self._is_running:
            return
        self._is_running, raised = True, None
        try:
            while self._due:
                call, value = self._due.popleft()
                try:
                    call(value)
                except Exception as error:
                    raised = raised or error
        finally:
            self._is_running = False
        if raised is not None:
            raise raised
