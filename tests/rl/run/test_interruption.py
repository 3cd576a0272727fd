"""Ctrl-C: once in order, twice at once."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from rlplat.rl.run.interruption import Interrupted, Interruption


def test_outside_deferred_the_first_signal_raises() -> None:
    with Interruption(pytest.fail) as interruption, pytest.raises(Interrupted) as caught:
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.exit_code == 143 and interruption.signal_number == signal.SIGTERM


def test_a_closed_terminal_is_as_ctrl_c() -> None:
    with Interruption(pytest.fail) as interruption, pytest.raises(Interrupted) as caught:
        assert signal.getsignal(signal.SIGHUP) not in (signal.SIG_DFL, signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGHUP)
    assert caught.value.exit_code == 129 and interruption.signal_number == signal.SIGHUP


def test_the_signal_of_a_closed_terminal_comes_twice_and_counts_once() -> None:
    said: list[str] = []
    with Interruption(said.append, pytest.fail) as interruption, interruption.deferred():
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert interruption.signal_number == signal.SIGHUP and len(said) == 1


def test_under_nohup_a_closed_terminal_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption(pytest.fail) as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
        assert interruption.signal_number is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_inside_deferred_the_first_one_waits_and_the_second_raises() -> None:
    said: list[str] = []
    exits: list[int] = []
    with Interruption(said.append, exits.append) as interruption, interruption.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.signal_number == signal.SIGINT and len(said) == 1
        with pytest.raises(Interrupted) as caught:
            os.kill(os.getpid(), signal.SIGINT)
        assert caught.value.exit_code == 130
    assert len(said) == 1 and exits == []  # the way out did not hang, so the timer is gone
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_way_out_that_hangs_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlplat.rl.run.interruption.GRACE_S", 0.0)
    left = threading.Event()
    codes: list[int] = []

    def hard_exit(code: int) -> None:
        codes.append(code)
        left.set()

    with Interruption(lambda text: None, hard_exit) as interruption, interruption.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGINT)
        assert left.wait(timeout=10)
    assert codes == [130]


def test_in_another_thread_no_handler_is_touched() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def use() -> None:
        with Interruption(pytest.fail) as interruption, interruption.deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert seen == [before]
