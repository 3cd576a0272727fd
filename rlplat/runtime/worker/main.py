"""The life of a worker process, from its fork to its end."""

from __future__ import annotations

import atexit
import os
import signal
from typing import Any

from rlplat.runtime import refs
from rlplat.runtime.machine.worker_logs import SNAPSHOTS
from rlplat.runtime.process import stacks
from rlplat.runtime.worker.worker import Worker


def main(
    session: str, client_id: str, gpu_ids: tuple[int, ...], runtime_env: dict[str, Any], folder: str
) -> None:
    """The life of a worker process (already forked, with its log as stdout and stderr)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(session, client_id, gpu_ids)
    atexit._clear()  # what the zygote has imported registered its handlers for the zygote
    worker.use_runtime_env(runtime_env, os.path.join(folder, SNAPSHOTS))
    refs.set_backend(worker)
    stacks.arm()
    worker.interrupts.install()
    worker.start()
    worker.run()
    worker.leave()
