"""Views of shared memory in processes that user code forks from this one: the objects stay until these have ended.

A child inherits views, but its copies count nowhere: when the last view here went, the segment would hold other data,
or be gone (SIGBUS). So what has views at a fork is held until no process has the write end of a pipe any more, which
only the child and what it forks have (an exec closes it).
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Callable
from typing import Any

from rlplat.runtime.link.chores import NEVER
from rlplat.runtime.link.link import Link

_LOOK_S = 1.0
_open = weakref.WeakSet["ForkedViews"]()


class ForkedViews:
    def __init__(self, link: Link, viewed: Callable[[], list[Any]], in_child: Callable[[], None]) -> None:
        """`viewed` gives what keeps the memory of all views of this process (lock held); a child calls `in_child`."""
        self._link, self._viewed, self.in_child = link, viewed, in_child
        self._held: dict[int, list[Any]] = {}
        """By the read end of a pipe."""
        self._write_ends: dict[int, int] = {}
        """By the thread that forks."""
        self._look_at = 0.0
        link.chore(self._look, lambda: self._look_at - link.clock() if self._held else NEVER)
        _open.add(self)

    def before_fork(self) -> None:
        with self._link.lock:
            viewed = self._viewed()
            if viewed:
                read_end, self._write_ends[threading.get_ident()] = os.pipe2(os.O_CLOEXEC)
                self._held[read_end] = viewed
                self._look_at = self._link.clock() + _LOOK_S
                self._link.loop.new_chore()

    def after_fork_in_parent(self) -> None:
        write_end = self._write_ends.pop(threading.get_ident(), None)
        if write_end is not None:
            os.close(write_end)

    def _look(self) -> None:
        self._look_at = self._link.clock() + _LOOK_S
        poller = select.poll()
        for read_end in self._held:
            poller.register(read_end, 0)  # (POLLHUP is always told)
        for read_end, _ in poller.poll(0):
            os.close(read_end)
            del self._held[read_end]

    def close(self) -> None:
        """The cluster has ended: no segment is written or truncated any more."""
        _open.discard(self)
        for read_end in self._held:
            os.close(read_end)
        self._held.clear()


def _before_fork() -> None:
    for views in list(_open):
        views.before_fork()


def _after_fork_in_parent() -> None:
    for views in list(_open):
        views.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for views in list(_open):
        views.in_child()
    _open.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
