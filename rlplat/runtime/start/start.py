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
_FOR_EVER_S = 1e10


def open_backend(settings: Settings) -> Driver:
    """A private cluster on this machine: its node process, and this process's part as its driver."""
    check_at_least("hang_timeout_s", settings.hang_timeout_s, 0.5)
    check_at_least("memory_usage_threshold", settings.memory_usage_threshold, 0, at_most=1)
    num_cpus, num_gpus = settings.num_cpus, settings.num_gpus
    keys = None
    if settings.address is not None:
        from rlplat.runtime.start import join_file

        keys = join_file.read(settings.address)
        join_file.check_free(keys)
        if num_cpus is None:
            num_cpus = keys.offers.get("CPU")
        if num_gpus is None and "GPU" in keys.offers:
            num_gpus = int(keys.offers["GPU"])
    total = machine_resources(num_cpus, num_gpus, settings.resources)
    session = make_session()
    node: subprocess.Popen[bytes] | None = None
    driver: Driver | None = None
    try:
        node = begin_node(session)
        from rlplat.runtime.machine.worker_logs import SNAPSHOTS
        from rlplat.runtime.process import stacks
        from rlplat.runtime.wire.messages import NODE

        env: dict[str, Any] = {}
        if settings.runtime_env is not None:
            from rlplat.runtime.envs.spec import checked

            env = checked(settings.runtime_env)
        if keys is not None and settings.user_code is not None and "working_dir" not in env:
            from rlplat.runtime.envs.spec import NOT_CODE

            env |= {"working_dir": settings.user_code, "excludes": [*env.get("excludes", ()), *NOT_CODE]}
        folder = furnish(
            session,
            settings.store_full_timeout_s,
            settings.object_store_memory,
            settings.spill_dir,
            settings.log_dir,
            node="" if keys is None else NODE,
        )
        config = {
            "session": session,
            "folder": folder,
            "total": total,
            "keys": keys,
            "versions": versions(),
            "preload": list(settings.preload),
            "sys_path": sys.path,
            "namespace": settings.namespace,
            "hang_timeout_s": settings.hang_timeout_s,
            "memory_usage_threshold": settings.memory_usage_threshold,
            "log_to_driver": settings.log_to_driver,
            "store_full_timeout_s": min(settings.store_full_timeout_s, _FOR_EVER_S),
        }
        configure(node, config)
        from rlplat.runtime.start.driver import Driver

        await_ready(node)
        driver = Driver(session, node)
        driver.use_runtime_env(env, os.path.join(folder, SNAPSHOTS))
        driver.start()
        stacks.arm()
        return driver
    except BaseException as error:
        has_ended = not os.path.exists(session)  # the node has removed it: its zygote was killed
        _give_up(session, node, driver)
        if has_ended and isinstance(error, Exception) and not isinstance(error, RlplatError):
            raise NodeLost("the node process ended during the start; what it said last is above, on stderr") from error
        raise


def versions() -> str:
    """What all machines of a cluster need alike."""
    import rlplat

    return f"Python {sys.version_info.major}.{sys.version_info.minor} with rlplat {rlplat.__version__}"


def begin_node(session: str) -> subprocess.Popen[bytes]:
    """Its process, which waits for its configuration."""
    return subprocess.Popen(
        [sys.executable, "-c", main_of("rlplat.runtime.start.launch")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=_environment(session),
    )


def furnish(
    session: str,
    store_full_timeout_s: float,
    object_store_memory: int | None = None,
    spill_dir: str | None = None,
    log_dir: str | None = None,
    *,
    node: str,
) -> str:
    """What the processes of a session expect in its folder; returns the one for logs. `node`: the name of this machine
    in a cluster of several."""
    from rlplat.runtime.machine.worker_logs import make_session_folder
    from rlplat.runtime.store import account

    limit = account.budget(object_store_memory, session)
    account.create_account(session, limit, store_full_timeout_s)
    make_spill_folder(session, spill_dir)
    if node:
        from rlplat.runtime.link.transport import SEVERAL

        with open(os.path.join(session, SEVERAL), "x") as file:
            file.write(node)
    return str(make_session_folder(session, log_dir))


def configure(node: subprocess.Popen[bytes], config: dict[str, Any]) -> None:
    import msgspec

    assert node.stdin is not None
    try:
        # (Not by msgspec alone, which takes no name of a folder that is not UTF-8.)
        node.stdin.write(json.dumps(msgspec.to_builtins(config)).encode() + b"\n")
        node.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended already: `await_ready` finds that out


def await_ready(node: subprocess.Popen[bytes]) -> None:
    assert node.stdout is not None
    if not _is_readable(node.stdout.fileno(), _START_S):
        raise NodeLost(f"the node process did not start within {_START_S:g} s; this machine may be overloaded")
    if node.stdout.readline() != b"ready\n":
        code = node.wait()
        how = f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
        raise NodeLost(f"the node process could not start ({how}); what it said last is above, on stderr")


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
