"""Interrupting the task that a worker's main thread runs: a KeyboardInterrupt in the user's code, and only there.

A signal goes to the main thread every few milliseconds until it has struck. Its handler looks at the stack that it
finds. In the user's function, and nothing of the runtime further in: it raises. In the runtime's own code (between
tasks, in a `put`, in the unpickling of arguments), or in another task: it does nothing, and the next one will see.
Where the runtime itself waits for the user's function (in `get`), it looks here before each wait.
"""

from __future__ import annotations

import signal
import threading
import time
from types import CodeType, FrameType

from rlplat.runtime.process import own_frames
from rlplat.runtime.worker.queue import Key, Running

SIGNAL = signal.SIGRTMIN + 5
_AGAIN_S = 0.005
_MISSES = 40


class Interrupts:
    def __init__(self, running: Running, entries: tuple[CodeType, ...]) -> None:
        """`entries`: the functions of the runtime that call a task's code."""
        self._running, self._entries = running, entries
        self._wanted: set[Key] = set()
        self._struck: set[Key] = set()
        self._misses = 0
        self._lock = threading.Lock()
        """Of `_thread`: the one that is about to end must not be taken for one that will signal. The handler needs
        it not, or it would wait for the code that it interrupts."""
        self._thread: threading.Thread | None = None

    def install(self) -> None:
        """Once, in the main thread."""
        signal.signal(SIGNAL, self._on_signal)

    def interrupt(self, task: Key) -> None:
        """Interrupt this task if it runs, or is about to (from any thread)."""
        with self._lock:
            self._misses = 0
            self._wanted.add(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._insist, name="rlplat-interrupts", daemon=True)
                self._thread.start()

    def has_struck(self, task: Key) -> bool:
        """Whether the KeyboardInterrupt that ended this task was ours; asked once."""
        if task in self._struck:
            self._struck.discard(task)
            return True
        return False

    def check(self) -> None:
        """Raise if the task that waits here, in the main thread, is to be interrupted."""
        task = self._running.key if self._wanted and self._running.is_main() else None
        if task in self._wanted:
            self._strike(task)

    def _insist(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while True:
            with self._lock:
                if self._misses >= _MISSES:  # it has ended
                    self._wanted.clear()
                if not self._wanted:
                    self._thread = None
                    return
            signal.pthread_kill(main, SIGNAL)
            time.sleep(_AGAIN_S)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        task = self._running.key
        if task not in self._wanted:
            self._misses += 1
            return
        self._misses = 0
        is_inside = False
        while frame is not None and frame.f_code not in self._entries:
            if own_frames.is_own(frame.f_code.co_filename):
                return
            is_inside, frame = True, frame.f_back
        if is_inside and frame is not None:
            self._strike(task)

    def _strike(self, task: Key) -> None:
        self._wanted.discard(task)
        self._struck.clear()  # one task at a time: what is left over is history
        self._struck.add(task)
        raise KeyboardInterrupt
