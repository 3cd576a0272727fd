"""What ranks on TensorFlow run in the tests; imported in their processes."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from rlplat.data_parallel.tf.program import TFProgram


class PortTaken(TFProgram):
    """Another program takes rank 1's port after it was chosen."""

    def open_door(self, hosts: Sequence[str]) -> tuple[str, int]:
        host, port = super().open_door(hosts)
        if self.settings.rank == 1:
            self._taker = socket.create_server((host, port))
        return host, port
