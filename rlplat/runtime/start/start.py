"""Start a private cluster: a session folder, a node process, and this process as its driver.

The node's interpreter starts first; while it does, this process imports what a driver needs and settles the rest of the
configuration, which follows through the pipe. That halves the time to the first result.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from rlplat.errors import NodeLost, RlplatError
from rlplat.runtime.machine.hardware import check_at_least, machine_resources
from rlplat.runtime.machine.session import (
    MARK,
    NO_WORKER,
    WORKER_MARK,
    main_of,
    make_session,
    make_spill_folder,
    remove_session,
)
from rlplat.runtime.process.signals import uninterrupted

if TYPE_CHECKING:
    from rlplat.runtime.connect import Settings
    from rlplat.runtime.start.driver import Driver

_START_S = 120.0


def open_backend(settings: Settings) -> Driver:
    """A private cluster on this machine: its node process, and this process's part as its driver."""
    check_at_least("hang_timeout_s", settings.hang_timeout_s, 0.5)
    check_at_least("memory_usage_threshold", settings.memory_usage_threshold, 0, at_most=1)
    total = machine_resources(settings.num_cpus, settings.num_gpus, settings.resources)
    session = make_session()
    node: subprocess.Popen[bytes] | None = None
    driver: Driver | None = None
    try:
        node = subprocess.Popen(
            [sys.executable, "-c", main_of("rlplat.runtime.start.launch")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=_environment(session),
        )
        assert node.stdin is not None and node.stdout is not None
        from rlplat.runtime.machine.worker_logs import SNAPSHOTS, make_session_folder
        from rlplat.runtime.process import stacks
        from rlplat.runtime.store import account

        env: dict[str, Any] = {}
        if settings.runtime_env is not None:
            from rlplat.runtime.envs.spec import checked

            env = checked(settings.runtime_env)
        limit = account.budget(settings.object_store_memory, session)
        account.create_account(session, limit, settings.store_full_timeout_s)
        make_spill_folder(session, settings.spill_dir)
        folder = str(make_session_folder(session, settings.log_dir))
        config = {
            "session": session,
            "folder": folder,
            "total": total,
            "preload": list(settings.preload),
            "sys_path": sys.path,
            "namespace": settings.namespace,
            "hang_timeout_s": settings.hang_timeout_s,
            "memory_usage_threshold": settings.memory_usage_threshold,
            "log_to_driver": settings.log_to_driver,
        }
        try:
            node.stdin.write(json.dumps(config).encode() + b"\n")
            node.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already: the next line finds that out
        from rlplat.runtime.start.driver import Driver

        if not _is_readable(node.stdout.fileno(), _START_S):
            raise NodeLost(
                f"the node process did not start within {_START_S:g} s; this machine may be overloaded"
            )
        if node.stdout.readline() != b"ready\n":
            code = node.wait()
            how = f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
            raise NodeLost(f"the node process could not start ({how}); what it said last is above, on stderr")
        driver = Driver(session, node)
        driver.use_runtime_env(env, os.path.join(folder, SNAPSHOTS))
        driver.start()
        stacks.arm()
        return driver
    except BaseException as error:
        has_ended = not os.path.exists(session)  # the node has removed it: its zygote was killed
        _give_up(session, node, driver)
        if has_ended and isinstance(error, Exception) and not isinstance(error, RlplatError):
            raise NodeLost(
                "the node process ended during the start; what it said last is above, on stderr"
            ) from error
        raise


@uninterrupted
def _give_up(session: str, node: subprocess.Popen[bytes] | None, driver: Driver | None) -> None:
    if driver is not None:
        driver.close()
    if node is not None:
        node.kill()
        node.wait()
        assert node.stdin is not None and node.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # what it has not read is written once more
            node.stdin.close()
        node.stdout.close()
    remove_session(session)


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def _environment(session: str) -> dict[str, str]:
    # Worker processes are many: numpy's own threads would only fight over the cores. torch has its own setting.
    # A count that the user has set stays.
    marks = {MARK: os.path.basename(session), WORKER_MARK: NO_WORKER}
    return {**os.environ, "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS") or "1", **marks}
