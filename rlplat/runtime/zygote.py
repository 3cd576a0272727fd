"""The zygote: a process with one thread and no sockets of ZeroMQ that has imported what workers need and forks them.

It is forked from the node before that opens its sockets. Orders come over a socketpair: a msgpack map and the write
end of the worker's log pipe. When the node dies (the socketpair ends) it kills its children and removes the folder.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import select
import signal
import socket
import sys
from typing import Any

import msgspec

from rlplat.runtime.session import MARK, adopt_orphans, kill_marked, remove_session

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """SIGKILL for this process when the thread that forked it ends (Linux); at once if it is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def run(orders: socket.socket, session: str, preload: list[str]) -> None:
    """Serve orders until the node closes its end. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    adopt_orphans()
    import cloudpickle  # noqa: F401  (what every worker needs: shared by fork)
    import numpy  # noqa: F401

    import rlplat.runtime.worker  # noqa: F401

    for module in preload:
        try:
            importlib.import_module(module)
        except Exception as error:  # the worker that needs it will say so in its own words
            print(f"rlplat: preloading {module!r} failed: {error}", file=sys.stderr)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    children: dict[int, str] = {}
    while True:
        try:
            readable, _, _ = select.select([orders.fileno(), wake_read], [], [])
            if wake_read in readable:
                os.read(wake_read, 4096)
                _report_dead(orders, children)
            if orders.fileno() in readable:
                data, fds, _, _ = socket.recv_fds(orders, 65536, 1)
                if not data:
                    break
                order = msgspec.msgpack.decode(data)
                _fork(orders, wake_read, wake_write, session, order, fds[0], children)
        except (BrokenPipeError, ConnectionResetError):
            break
    kill_marked(os.environ[MARK])
    remove_session(session)
    os._exit(0)


def _fork(
    orders: socket.socket,
    wake_read: int,
    wake_write: int,
    session: str,
    order: Any,
    log: int,
    children: dict[int, str],
) -> None:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(log)
        children[pid] = order["worker"]
        orders.send(msgspec.msgpack.encode({"started": order["worker"], "pid": pid}))
        return
    try:
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        orders.close()
        os.close(wake_read)
        os.close(wake_write)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.environ["CUDA_VISIBLE_DEVICES"] = order["cuda"]
        import faulthandler

        faulthandler.enable()
        import random

        random.seed()
        from rlplat.runtime import worker

        worker.main(session, order["worker"], tuple(order["gpu_ids"]))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def _report_dead(orders: socket.socket, children: dict[int, str]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        worker = children.pop(pid, None)
        if worker is not None:
            orders.send(msgspec.msgpack.encode({"ended": worker, "status": status}))
