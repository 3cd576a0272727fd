"""The zygote: a process with one thread and no sockets of ZeroMQ that has imported what workers need and forks them.

It is forked from the node before that opens its sockets. Orders come over a socketpair: a msgpack map and the write
end of the worker's log pipe. When the node dies (the socketpair ends) it kills its children and removes the folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from rlplat.given.global_random import seed_from_entropy
from rlplat.given.say import say
from rlplat.given.triton_first import before_tensorflow, guard
from rlplat.runtime.envs import spec
from rlplat.runtime.machine.session import (
    MARK,
    WORKER_MARK,
    adopt_orphans,
    end_workers,
    kill_family,
    kill_marked,
    main_of,
    mark_as_worker,
    remove_session,
)
from rlplat.runtime.machine.worker_logs import SNAPSHOTS
from rlplat.runtime.process.crash_points import crash_point

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """SIGKILL for this process when the thread that forked it ends (Linux); at once if it is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def run(orders: socket.socket, session: str, folder: str, preload: list[str]) -> None:
    """Serve orders until the node closes its end. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    adopt_orphans()
    import cloudpickle  # noqa: F401  (what every worker needs: shared by fork)
    import numpy  # noqa: F401

    import rlplat.runtime.worker.worker  # noqa: F401

    guard()  # of every worker too
    num_threads = _num_threads()
    for module in preload:
        if module.partition(".")[0] == "tensorflow":
            before_tensorflow()
        try:
            importlib.import_module(module)
        except Exception as error:  # the worker that needs it will say so in its own words
            say(f"preloading {module!r} failed: {error}")
        started = _num_threads() - num_threads
        if started > 0:
            say(
                f"preload: {module!r} starts {started} thread(s) when it is imported. Forked workers would have none "
                "of them, and a lock that one holds would never be free there: it is left out, and workers import it"
            )
            _start_over(orders, session, folder, [each for each in preload if each != module])
    gc.enable()  # which `launch` had disabled
    gc.freeze()  # a collection in a worker writes to no page that it shares with this process and the other workers
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    children: dict[int, str] = {}
    lease_until: float | None = None
    """Of a machine that has joined a head: its node may hang, and its workers must not outlive the lease."""
    while True:
        try:
            left_s = None if lease_until is None else max(0.0, lease_until - time.monotonic())
            readable, _, _ = select.select([orders.fileno(), wake_read], [], [], left_s)
            if lease_until is not None and time.monotonic() >= lease_until and orders.fileno() not in readable:
                break
            if wake_read in readable:
                os.read(wake_read, 4096)
                _report_dead(orders, children)
            if orders.fileno() in readable:
                data, fds, _, _ = socket.recv_fds(orders, 1 << 18, 1)
                if not data:
                    break
                order = msgspec.msgpack.decode(data)
                if not order:  # the node asks for a sign of life
                    orders.send(data)
                    continue
                if "lease_until" in order:
                    lease_until = order["lease_until"]
                    continue
                _fork(orders, wake_read, wake_write, session, folder, order, fds[0], children)
        except (BrokenPipeError, ConnectionResetError):
            break
    end_workers(children)
    kill_marked(os.environ[MARK])
    shutil.rmtree(os.path.join(folder, SNAPSHOTS), ignore_errors=True)
    remove_session(session)
    os._exit(0)


def _num_threads() -> int:
    """Of this process, without those whose library follows forks itself (jemalloc's: tensorflow loads it)."""
    found = 0
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it ends just now
            found += Path(f"/proc/self/task/{thread}/comm").read_text() != "jemalloc_bg_thd\n"
    return found


def _start_over(orders: socket.socket, session: str, folder: str, preload: list[str]) -> NoReturn:
    """As a new program in this process: what was imported and its threads are gone, children and orders stay."""
    orders.set_inheritable(True)
    life = {
        "orders": orders.fileno(),
        "session": session,
        "folder": folder,
        "preload": preload,
        "sys_path": sys.path,
    }
    os.execv(sys.executable, [sys.executable, "-c", main_of("rlplat.runtime.start.zygote"), json.dumps(life)])


def _fork(
    orders: socket.socket,
    wake_read: int,
    wake_write: int,
    session: str,
    folder: str,
    order: Any,
    log: int,
    children: dict[int, str],
) -> None:
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:  # limits of processes or memory: the node tries again later
        os.close(log)
        orders.send(msgspec.msgpack.encode({"refused": order["worker"], "errno": error.errno}))
        return
    if pid:
        os.close(log)
        children[pid] = order["worker"]
        orders.send(msgspec.msgpack.encode({"started": order["worker"], "pid": pid}))
        return
    try:
        die_with_parent(parent)
        os.setpgid(0, 0)  # `os.killpg(0, ...)` of user code reaches no other worker, and not the zygote
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        orders.close()
        os.close(wake_read)
        os.close(wake_write)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ["CUDA_VISIBLE_DEVICES"] = order["cuda"]
        life = {
            "session": session,
            "folder": folder,
            "worker": order["worker"],
            "gpu_ids": order["gpu_ids"],
            "env": json.loads(order["env"] or "{}"),
        }
        if order["python"]:
            _execute(order["python"], life)
        mark_as_worker(order["worker"])
        _live(life)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def _execute(python: str, life: dict[str, Any]) -> None:
    """Become a new process of an environment's own python."""
    own = {**os.environ, WORKER_MARK: life["worker"]}
    venv = os.path.dirname(os.path.dirname(python))
    if os.path.exists(os.path.join(venv, "pyvenv.cfg")):
        path = os.pathsep.join([os.path.dirname(python), own.get("PATH", os.defpath)])
        own |= {"VIRTUAL_ENV": venv, "PATH": path}
    own = spec.environment(life["env"], own)
    life["sys_path"] = sys.path
    os.execve(python, [python, "-c", main_of("rlplat.runtime.start.zygote"), json.dumps(life)], own)


def main() -> None:
    """The main program of an executed worker, or of a zygote that starts over."""
    life = json.loads(sys.argv.pop())
    if "orders" in life:
        sys.path[:] = life["sys_path"]
        orders = socket.socket(fileno=life["orders"])
        orders.set_inheritable(False)
        run(orders, life["session"], life["folder"], life["preload"])
    # The driver's path goes first, as far as this python has not found it by itself.
    sys.path[:0] = [path for path in life["sys_path"] if path not in sys.path]
    _live(life, has_variables=True)


def _live(life: dict[str, Any], has_variables: bool = False) -> None:
    import faulthandler

    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    seed_from_entropy()
    spec.apply(life["env"], has_variables)
    crash_point("worker_before_hello")
    from rlplat.runtime.worker.worker import main

    main(life["session"], life["worker"], tuple(life["gpu_ids"]), life["env"], life["folder"])


def _report_dead(orders: socket.socket, children: dict[int, str]) -> None:
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        pid = ended.si_pid
        if pid in children:
            kill_family(os.environ[MARK], children[pid], {*children})
        _, status = os.waitpid(
            pid, 0
        )  # now: from here on its number may be another process's, which the node would kill
        worker = children.pop(pid, None)
        if worker is not None:
            orders.send(msgspec.msgpack.encode({"ended": worker, "status": status}))
