"""How long a machine may go on without the head, and how long the head waits for it. Pure.

Claim: the agent kills its workers before the head calls them dead. The agent's lease counts from when it *asked* for
the newest one that was answered, the head's patience from when it *heard* the machine's last words, which came no
earlier than any question that it answered; and the lease is shorter, by the time that a kill takes.
"""

from __future__ import annotations

ASK_EVERY_S = 1.0
LEASE_S = 5.0
ZYGOTE_S = 0.5
"""When the node itself hangs its zygote kills the workers, so much later."""
BROKEN_S = 8.0
"""Of the head, when the connection has broken: the lease, and time to kill."""
SILENT_S = 10.0
"""Of the head, when nothing comes."""
_GAP_S = 3.0


class Lease:
    """A machine's."""

    def __init__(self, now: float) -> None:
        self.until = now + LEASE_S
        self.ask_at = now
        self._asked: dict[int, float] = {}
        self._number = 0

    def ask(self, now: float) -> int:
        """The number of the next question."""
        self._number += 1
        self._asked[self._number] = now
        self.ask_at = now + ASK_EVERY_S
        return self._number

    def answered(self, number: int) -> bool:
        """Whether it lasts longer now."""
        asked_at = self._asked.get(number)
        if asked_at is None:
            return False
        self.until = asked_at + LEASE_S
        self._asked = {other: at for other, at in self._asked.items() if other > number}
        return True


class Patience:
    """The head's, with one machine."""

    def __init__(self, now: float) -> None:
        self._heard_at = self._looked_at = now
        self.is_broken = False

    def heard(self, now: float) -> None:
        self._heard_at = now

    def is_over(self, now: float) -> bool:
        """(After a gap in our own clock we have not listened: it is waited for anew.)"""
        if now - self._looked_at > _GAP_S:
            self._heard_at = now
        self._looked_at = now
        return now - self._heard_at >= (BROKEN_S if self.is_broken else SILENT_S)
