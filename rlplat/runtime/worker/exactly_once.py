"""Calls that take effect once, although they may be sent again after a restart: the actor's side.

    a call arrives ──▶ its number is in the window? ──yes──▶ the reply that was kept
                              │ no
                              ▼
    it runs ──▶ reply and get_state() into the window ──▶ checkpoint (temporary file, rename) ──▶ replies leave

A reply leaves only when the checkpoint holds its effect, so whoever has a reply can rely on it, and whoever has none
asks the next incarnation, which starts from that checkpoint. Replies of calls that follow each other quickly share one
checkpoint. An actor without `get_state()` and `set_state(state)` has its window in memory alone: then exactly-once ends
at the restart. What a call does outside the state (files, other actors) is not undone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from tempfile import NamedTemporaryFile
from typing import Any

import msgspec

from rlplat.runtime.machine.session import SPILL_LINK
from rlplat.runtime.process.crash_points import crash_point
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.values import ErrorInfo

HOLD_S = 0.002
HOLD_REPLIES = 64


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


class _Checkpoint(msgspec.Struct, array_like=True):
    state: bytes
    window: dict[str, dict[int, Kept]]


class ExactlyOnce:
    """Window, state and file of one actor. Not thread-safe: the client's lock is held but in `snapshot` and `open`.

    `held` are the replies that wait for the checkpoint: functions that send them.
    """

    def __init__(self, path: str) -> None:
        self.window = Window()
        self.held: list[Callable[[], None]] = []
        self.held_since = 0.0
        self._path = path
        self._state = b""
        self._get_state: Callable[[], Any] | None = None

    def open(self, instance: Any) -> None:
        """A new incarnation: go on from the checkpoint of the one before, if there is one."""
        if not hasattr(instance, "get_state"):
            return
        self._get_state = instance.get_state
        try:
            with open(self._path, "rb") as file:
                saved = msgspec.msgpack.decode(file.read(), type=_Checkpoint)
        except FileNotFoundError:
            self._state = self.snapshot()  # a state that cannot be kept is an error of the constructor, not of a call
            return
        instance.set_state(codec.unpack(saved.state))
        self._state, self.window = saved.state, Window(saved.window)

    def snapshot(self) -> bytes:
        """The state as it is after a call."""
        if self._get_state is None:
            return b""
        data, refs = codec.pack_inline(self._get_state(), "what get_state() returned")
        if refs:
            raise ValueError(f"get_state() returned {refs[0]!r}, which would not outlive this process: return values")
        return data

    def finished(self, caller: str, seq: int, reply: Kept, state: bytes | None) -> None:
        """A call ran: its effect and its reply go into the next checkpoint together (None: the state of before)."""
        self.window.keep(caller, seq, reply)
        if state is not None:
            self._state = state

    def hold(self, send: Callable[[], None], now: float) -> None:
        """Send when it is in the checkpoint."""
        if not self.held:
            self.held_since = now
        self.held.append(send)

    def is_due(self, now: float) -> bool:
        return bool(self.held) and (self._get_state is None or len(self.held) >= HOLD_REPLIES or self.due_s(now) <= 0)

    def due_s(self, now: float) -> float:
        """How long until `commit` is due by the clock."""
        return self.held_since + HOLD_S - now if self.held else math.inf

    def _draft(self, data: bytes) -> None:
        """In shared memory; where that is full a link, to a file in the folder for spilled segments."""
        draft = self._path + "~"
        try:
            with open(draft, "wb") as file:
                file.write(data)
        except OSError as error:
            with suppress(OSError):
                os.unlink(draft)
            folder = os.path.join(os.path.dirname(self._path), SPILL_LINK)
            if not os.path.isdir(folder):
                error.strerror = (
                    f"an exactly-once actor's state of {len(data) / 1e6:.1f} MB is not kept: {error.strerror}"
                )
                raise
            with NamedTemporaryFile(dir=folder, delete=False) as spilled:
                spilled.write(data)
            os.symlink(spilled.name, draft)

    def commit(self) -> None:
        """Write the checkpoint, then send what waited for it."""
        if not self.held:
            return
        if self._get_state is not None:
            crash_point("before_checkpoint")
            self._draft(msgspec.msgpack.encode(_Checkpoint(self._state, self.window.kept)))
            crash_point("in_checkpoint")
            on_disk = os.readlink(self._path) if os.path.islink(self._path) else ""
            os.replace(self._path + "~", self._path)
            if on_disk:
                os.unlink(on_disk)
            crash_point("after_checkpoint_before_replies")
        held, self.held = self.held, []
        for send in held:
            send()
