"""When handlers of signals run: not while the books are being written, and at once after that."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rlplat
from rlplat.runtime import refs
from rlplat.runtime.link.chores import Chores
from rlplat.runtime.link.loop import IoLoop
from rlplat.runtime.process import signals
from rlplat.runtime.process.signals import LoopLock, uninterrupted
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import codec
from tests.runtime.link.test_loop import SilentTransport, wait_in_thread


class TooLong(Exception):
    pass


def too_long(number: int, frame: object) -> None:
    raise TooLong


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers of a plain script, and one that raises for SIGUSR1."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, too_long)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def lock() -> LoopLock:
    signals.wrap_handlers()
    return LoopLock()


@pytest.fixture
def loop() -> Iterator[IoLoop]:
    made = IoLoop(SilentTransport(), spin=False, handlers={}, chores=Chores())  # type: ignore[arg-type]
    yield made
    made.close()


def test_a_handler_waits_for_the_lock(lock: LoopLock) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        with lock:
            signal.raise_signal(signal.SIGINT)
            done.append("held")
        done.append("given up")
    assert done == ["held"]


def test_and_strikes_at_once_elsewhere(lock: LoopLock) -> None:
    with lock:
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_one_interrupt_is_one_interrupt(lock: LoopLock) -> None:
    num_caught = 0
    for _ in range(100):
        try:
            with lock:
                for _ in range(10):
                    signal.raise_signal(signal.SIGINT)
                    len("a call")
        except KeyboardInterrupt:
            num_caught += 1
    for _ in range(100):
        len("another")
    assert num_caught == 100


def test_functions_that_must_be_whole(lock: LoopLock) -> None:
    done: list[str] = []

    @uninterrupted
    def write() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("first")
        with lock:
            done.append("second")
        done.append("third")

    with pytest.raises(KeyboardInterrupt):
        write()
        len("a call, after which Python looks for signals")
    assert done == ["first", "second", "third"]


def test_every_handler_that_waits_runs(lock: LoopLock) -> None:
    """Also when the first raises."""
    with pytest.raises((KeyboardInterrupt, TooLong)) as caught:
        try:
            with lock:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGUSR1)
        except (KeyboardInterrupt, TooLong) as first:
            assert type(first) is KeyboardInterrupt
            len("a call")
            raise AssertionError("the second one was lost") from first
    assert caught.type is TooLong


def test_a_handler_that_was_put_back_is_found(lock: LoopLock) -> None:
    """As a notebook does it before each cell."""
    done: list[int] = []
    for number in (signal.SIGINT, signal.SIGALRM):
        before = signal.signal(number, too_long)
        try:
            with pytest.raises(TooLong):
                with lock:
                    signal.raise_signal(number)
                    done.append(number)
        finally:
            signal.signal(number, before)
    assert done == [signal.SIGINT, signal.SIGALRM]


def test_a_handler_may_take_the_lock(lock: LoopLock) -> None:
    done: list[str] = []

    def handler(number: int, frame: object) -> None:
        with lock:
            done.append("handled")

    signal.signal(signal.SIGINT, handler)
    with lock:
        signal.raise_signal(signal.SIGINT)
        done.append("held")
    assert done == ["held", "handled"]


def test_the_death_of_a_ref_swallows_nothing(lock: LoopLock, monkeypatch: pytest.MonkeyPatch) -> None:
    swallowed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)
    heard: list[int] = []

    def drop(id: int) -> None:
        signal.raise_signal(signal.SIGINT)
        heard.append(id)

    ref = ObjectRef("driver", 7, drop, 7)
    with pytest.raises(KeyboardInterrupt):
        del ref
        len("a call")
    assert heard == [7]
    assert not swallowed


def test_a_runtime_that_hangs_can_be_interrupted(lock: LoopLock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "PATIENCE_S", -1.0)
    with pytest.raises(KeyboardInterrupt):
        with lock:
            signal.raise_signal(signal.SIGINT)
            while True:
                len("it hangs")


def test_a_remote_function_whose_first_call_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Backend:
        is_interrupted = False

        def submitter(self, *_: Any) -> Any:
            if not self.is_interrupted:
                self.is_interrupted = True
                raise KeyboardInterrupt
            return lambda args, kwargs: args

    monkeypatch.setattr(refs, "_backend", Backend())
    function = rlplat.remote(lambda x: x)
    with pytest.raises(KeyboardInterrupt):
        function.remote(1)
    assert function.remote(1) == (1,)


def test_what_a_handler_raises_is_no_fault_of_the_value() -> None:
    class Slow:
        def __reduce__(self) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            raise AssertionError

    with pytest.raises(TooLong):
        codec.pack(Slow())


def interrupted_wait(loop: IoLoop, is_waiting: Callable[[], bool]) -> None:
    """The main thread waits for ever, and is interrupted as soon as it does."""

    def interrupt() -> None:
        while not is_waiting():
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        with loop.lock:
            thread.start()
            loop.wait_until(lambda: False, 30, "nothing")
    thread.join()
    assert not loop.lock._is_owned()


def test_a_wait_for_input_is_interrupted(loop: IoLoop) -> None:
    interrupted_wait(loop, lambda: loop._has_leader)
    assert loop._num_users == 0
    assert not loop._has_leader


def test_a_wait_beside_a_leader_is_interrupted(loop: IoLoop) -> None:
    heard: list[str] = []
    leader = wait_in_thread(loop, heard)
    interrupted_wait(loop, lambda: len(loop._changed._waiters) == 1)  # type: ignore[attr-defined]
    assert loop._num_users == 1
    with loop.lock:
        heard.append("news")
        loop.wake()
    leader.join(10)
    assert not leader.is_alive()


def test_the_users_handlers_are_given_back() -> None:
    signals.wrap_handlers()
    assert signal.getsignal(signal.SIGUSR1) is not too_long
    signals.unwrap_handlers()
    assert signal.getsignal(signal.SIGUSR1) is too_long
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
