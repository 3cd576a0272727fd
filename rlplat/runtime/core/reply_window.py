"""The replies of an exactly-once actor that its callers may ask for again. Pure."""

from __future__ import annotations

import msgspec

from rlplat.runtime.wire.values import ErrorInfo


class Kept(msgspec.Struct, array_like=True):
    """A reply: the pickles of its values, or the error in their place."""

    values: list[bytes] = []
    error: ErrorInfo | None = None


class Window:
    """The replies that callers may ask for again, by caller and number. Pure.

    A caller has at most `actor_calls.WINDOW` calls under way and says with each up to which number it has its
    replies: those are dropped, which bounds the window.
    """

    def __init__(self, kept: dict[str, dict[int, Kept]] | None = None) -> None:
        self.kept: dict[str, dict[int, Kept]] = kept or {}

    def asked(self, caller: str, seq: int, answered: int) -> Kept | None:
        """The reply to a call that ran before; drops what its caller has got."""
        replies = self.kept.setdefault(caller, {})
        while replies and (oldest := next(iter(replies))) <= answered:
            del replies[oldest]
        return replies.get(seq)

    def keep(self, caller: str, seq: int, reply: Kept) -> None:
        self.kept.setdefault(caller, {})[seq] = reply

    def forget(self, caller: str) -> None:
        """The caller is dead: nobody asks for it again."""
        self.kept.pop(caller, None)
