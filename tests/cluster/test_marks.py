"""How the launcher's own processes wait for programs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from rlplat.cluster import marks


@pytest.mark.process
def test_a_signal_that_another_thread_receives_ends_the_program_that_is_waited_for() -> None:
    """The kernel may give a signal to any thread, and one that comes just before a wait begins interrupts nothing: the
    handler must run while the program does."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    before = signal.signal(signal.SIGUSR1, lambda *_: program.terminate())
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    try:
        threading.Timer(0.3, lambda: signal.pthread_kill(other.ident or 0, signal.SIGUSR1)).start()
        limit = threading.Timer(20, program.kill)
        limit.start()
        assert marks.exit_code_of(program) == -signal.SIGTERM
        limit.cancel()
    finally:
        ended.set()
        other.join()
        signal.signal(signal.SIGUSR1, before)
