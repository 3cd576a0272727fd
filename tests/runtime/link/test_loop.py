"""Threads around one socket: nobody sleeps on while what it waits for is here."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from rlplat.errors import NotInitialized
from rlplat.runtime.link.chores import NEVER, Chores
from rlplat.runtime.link.dropped import Dropped
from rlplat.runtime.link.loop import IoLoop


class SilentTransport:
    """A socket whose descriptor never tells of input: a send has swallowed the signal, as ZeroMQ's may."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)
        self.num_unsent = 0
        self.dropped = Dropped("driver")
        self.frames: deque[tuple[str, list[Any]]] = deque()

    def flush(self) -> None:
        self.num_unsent = 0

    def has_input(self) -> bool:
        return bool(self.frames)

    def receive(self) -> Iterator[tuple[str, list[Any]]]:
        while self.frames:
            yield self.frames.popleft()

    def close(self, linger_s: float = 0) -> None:
        os.close(self.fd)


class News:
    pass


@pytest.fixture
def loop() -> Iterator[IoLoop]:
    made = IoLoop(SilentTransport(), spin=False, handlers={}, chores=Chores())  # type: ignore[arg-type]
    yield made
    made.close()


def hear(loop: IoLoop, heard: list[str]) -> None:
    loop._handlers[News] = lambda sender, _: heard.append(sender)  # type: ignore[index]


def wait_in_thread(loop: IoLoop, heard: list[str]) -> threading.Thread:
    def wait() -> None:
        with loop.lock:
            loop.wait_until(lambda: bool(heard), 30, "news")

    thread = threading.Thread(target=wait)
    thread.start()
    while not loop._has_leader:
        pass
    return thread


def test_who_drains_for_the_leader_wakes_it(loop: IoLoop) -> None:
    heard: list[str] = []
    hear(loop, heard)
    thread = wait_in_thread(loop, heard)
    with loop.lock:
        loop.transport.frames.append(("w1", [News()]))  # type: ignore[attr-defined]
        assert loop.send_now()
    thread.join(10)
    assert not thread.is_alive()


def test_a_second_waiter_looks_at_what_its_flush_has_swallowed(loop: IoLoop) -> None:
    heard: list[str] = []
    hear(loop, heard)
    first = wait_in_thread(loop, heard)
    with loop.lock:
        loop.transport.frames.append(("w1", [News()]))  # type: ignore[attr-defined]
        loop.wait_until(lambda: bool(heard), 10, "news")
    first.join(10)
    assert not first.is_alive()


def test_the_background_thread_looks_at_what_its_flush_has_swallowed(loop: IoLoop) -> None:
    heard: list[str] = []
    hear(loop, heard)
    ticked = threading.Event()

    def tick() -> None:
        if loop._has_leader and not ticked.is_set():
            loop.transport.frames.append(("w1", [News()]))  # type: ignore[attr-defined]
            ticked.set()

    loop._chores.add(tick, lambda: NEVER, ["something to do whenever a thread is awake"])
    thread = wait_in_thread(loop, heard)
    with loop.lock:
        loop._last_use = float("inf")  # the background thread is on its beat, beside the leader
    loop.start()
    loop.wake()  # as any input would: the leader looks, and wakes the background thread
    thread.join(10)
    assert not thread.is_alive()


def test_a_sleeper_that_is_woken_looks_at_the_clock_again(loop: IoLoop) -> None:
    """A nearer deadline was set while it slept for a later one."""
    due: list[str] = []
    heard: list[str] = []
    loop._chores.add(lambda: heard.extend(due), lambda: 100.0 if not due else 0.0)
    thread = wait_in_thread(loop, heard)
    with loop.lock:
        due.append("deadline")
        loop.wake()
    thread.join(10)
    assert not thread.is_alive()


def test_the_background_thread_looks_before_it_sleeps_alone(loop: IoLoop) -> None:
    """What it has sent itself, with nobody else there, may have swallowed the signal."""
    arrived, was_heard = threading.Event(), threading.Event()
    loop._handlers[News] = lambda sender, _: was_heard.set()  # type: ignore[index]

    def tick() -> None:
        if not arrived.is_set():
            arrived.set()
            loop.transport.frames.append(("w1", [News()]))  # type: ignore[attr-defined]

    loop._chores.add(tick, lambda: NEVER, ["something to do whenever a thread is awake"])
    loop.start()
    loop.wake()
    assert was_heard.wait(10)


def test_short_waits_one_after_another_do_not_wake_the_background_thread(loop: IoLoop) -> None:
    """It keeps its beat beside them: woken by each, it would fight for the lock with whoever calls and waits."""
    woken = []
    notify = loop._background_wakes.notify
    loop._background_wakes.notify = lambda n=1: (woken.append(n), notify(n))[1]  # type: ignore[method-assign]
    loop.start()
    for _ in range(200):
        with loop.lock:
            loop.enter()
            loop.pump(0.001)
            loop.leave()
    assert len(woken) < 50


def test_who_waits_when_it_is_closed_reads_nothing_more() -> None:
    """The numbers of its descriptors may be another's by then."""
    loop = IoLoop(SilentTransport(), spin=False, handlers={}, chores=Chores())  # type: ignore[arg-type]
    due: list[str] = []
    chores_done: list[str] = []
    loop._chores.add(lambda: chores_done.extend(due), lambda: NEVER, due)
    ended: list[BaseException] = []

    def check() -> None:
        if loop.is_closed:
            raise NotInitialized

    def wait() -> None:
        try:
            with loop.lock:
                loop.wait_until(lambda: False, 30, "news", check)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not loop._has_leader:
        pass
    with loop.lock:  # all of it before the leader comes back
        due.append("one")
        loop.close()
    thread.join(10)
    assert [type(error) for error in ended] == [NotInitialized]
    assert chores_done == []
