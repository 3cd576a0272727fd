"""Processes of this machine as /proc shows them: their state, when they began, and which of them inherited a mark."""

from __future__ import annotations

import os


def stat_fields(pid: int) -> list[str]:
    """Of /proc/<pid>/stat from the state on; none when it is gone. OSError where that cannot be known, for want of
    descriptors: what belongs to a process that lives is not to be cleaned up."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def state_of(pid: int) -> str:
    """The kernel's letter: R S D T Z; "" for one that is gone."""
    return (stat_fields(pid) or [""])[0]


def start_time(pid: int) -> str | None:
    """In the kernel's ticks: with the pid it names one process for good. None when it has ended, which a zombie has:
    where nobody waits for it (a container without an init) it stays one."""
    fields = stat_fields(pid)
    return None if not fields or fields[0] == "Z" else fields[19]


def marked(*marks: str) -> set[int]:
    """Those of this user, but for this one, that have these `NAME=value` in the environment that they were given:
    children inherit it, so neither a fork nor `setsid` hides one."""
    wanted, found = {os.fsencode(mark) for mark in marks}, set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if wanted <= {*file.read().split(b"\0")}:
                        found.add(int(name))
            except OSError:  # it ended, or is another user's
                continue
    return found
