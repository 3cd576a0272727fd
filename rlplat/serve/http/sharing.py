"""Which connections are a canary's, and how they get there.

    stable replica: accept ─▶ Share.next_is_canarys ─▶ no: serves it      yes: the connection itself ──queue──▶ canary

The queue is a pair of Unix sockets through which descriptors are sent; the controller holds both ends, so that what
waits in it survives the death of a canary's replica. While the share is 0 the stable replicas take what is left in it.
A connection stays where it is: requests kept alive on it, and a WebSocket, are all of one version.
"""

from __future__ import annotations

import math
import socket

CANARY = ".canary"
"""Behind the names of a canary's deployments."""


class Share:
    """Of a replica's connections: after n of them the canary has had n times the share, rounded."""

    def __init__(self, share: float = 0.0) -> None:
        self.share = share
        self._seen = self._given = 0

    def next_is_canarys(self) -> bool:
        self._seen += 1
        due = math.floor(self._seen * self.share + 0.5)
        is_due = due > self._given
        self._given += is_due
        return is_due


def canary_replicas(num_replicas: int, share: float) -> int:
    """How many of a canary's replicas are in proportion: never none."""
    return max(1, math.ceil(round(num_replicas * share, 9)))


def pass_on(connection: socket.socket, queue: socket.socket) -> bool:
    """Give a connection to the canary; False where its queue is full. Not blocking."""
    try:
        socket.send_fds(queue, [b"."], [connection.fileno()])
    except OSError:
        return False
    connection.close()
    return True


def take_over(queue: socket.socket) -> socket.socket:
    """The next connection that was passed on; BlockingIOError where there is none."""
    _, descriptors, _, _ = socket.recv_fds(queue, 1, 1)
    if not descriptors:
        raise BlockingIOError
    return socket.socket(fileno=descriptors[0])
