"""Whether the head of the cluster answers: Ray itself ends a driver without a word 60 s after it was lost."""

from __future__ import annotations

import socket
import threading

from rlplat.given.say import say

PERIOD_S = 2.0
MISSES = 4
"""So many times in a row, and it counts as lost."""


def why_silent(address: str) -> str:
    """Why no process answers at host:port; "" where one does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PERIOD_S).close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


class HeadWatch:
    """A thread that connects to the head now and then."""

    def __init__(self, address: str) -> None:
        self.lost = ""
        """In words, once it is gone."""
        self._address = address
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlplat-head-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        missed = 0
        while missed < MISSES:
            if self._is_over.wait(PERIOD_S):
                return
            missed = missed + 1 if (why := why_silent(self._address)) else 0
        self.lost = (
            f"the head of the Ray cluster at {self._address} does not answer any more ({why}): it was stopped or lost, "
            "and with it every task, actor and object; start it again, and resume from the last checkpoint (--resume)"
        )
        say(self.lost)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
