"""The worker processes of a node: started through the zygote, their output taken, stopped, mourned.

The node asks (`start`, `stop`, `kill`) and hears of each end once, through `on_lost`. Nothing here decides who is to
run: that is the scheduler's judgement. What is decided here is when to try again:

- a worker whose environment is being built waits for that; it is lost when the build fails;
- when a process cannot be made (limits of processes, memory, descriptors) the next start waits 0.05 s, then twice as
  long, up to 2 s. What waits stays queued. After 5 s a warning says why, every 30 s.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable

import msgspec

from rlplat.machine_limits import has_descriptors
from rlplat.runtime.envs.builds import EnvBuilds
from rlplat.runtime.machine.worker_logs import LogFile
from rlplat.runtime.node.output import Console, WorkerOutput

_CLOSE_S = 5.0
_FIRST_DELAY_S, _MOST_DELAY_S = 0.05, 2.0
_WARN_AFTER_S, _WARN_AGAIN_S = 5.0, 30.0
_SPARE_DESCRIPTORS = 12
"""For a worker's pipe and connection, for reading /proc and log files."""


class Start(msgspec.Struct, frozen=True):
    worker: str
    gpu_ids: tuple[int, ...]
    env: str


class Process:
    """A worker process, as the node sees it."""

    def __init__(self, start: Start, output: WorkerOutput) -> None:
        self.start = start
        self.output = output
        self.pid = 0
        self.log: int | None = None
        """The read end of its output; None before it is launched."""
        self.kill_at: float | None = None
        self.kill_reason = ""
        """Why somebody wanted it killed."""
        self.kind = "WorkerCrashed"
        self.actor = ""
        """The class of the actor that it is, as its log file was told."""


class Processes:
    """`who(worker)` names it in forwarded lines, `ask_to_exit(worker)` sends it a message; one that has said hello
    `is_ready`.

    `on_lost(worker, reason, kind)` tells its end; kind is the class of the error that a task lost with it fails with:
    "WorkerCrashed" or "OutOfMemory". `on_env_settled(key)`: the environment is built, or has failed.
    """

    def __init__(
        self,
        orders: socket.socket,
        zygote: int,
        poller: select.poll,
        gpus: list[str],
        folder: str,
        log_to_driver: bool,
        *,
        who: Callable[[str], str],
        is_ready: Callable[[str], bool],
        ask_to_exit: Callable[[str], None],
        on_lost: Callable[[str, str, str], None],
        on_env_settled: Callable[[str], None],
    ) -> None:
        self._orders, self._poller, self._gpus = orders, poller, gpus
        orders.setblocking(False)  # one that is stopped reads nothing
        self.zygote = zygote
        self.zygote_end = "has ended (was it killed?)"
        self._has_zygote_spoken = False
        self.log_folder = os.path.join(folder, "logs")
        self._log_to_driver = log_to_driver
        self._who, self._is_ready, self._ask_to_exit, self._on_lost = who, is_ready, ask_to_exit, on_lost
        self.console = Console()
        self.envs = EnvBuilds(poller, folder, on_env_settled)
        self._processes: dict[str, Process] = {}
        self._worker_by_log: dict[int, str] = {}
        self._waiting: dict[str, Start] = {}
        """Not launched yet."""
        self._never_begun: list[str] = []
        """Stopped, or failed with their environment, before they had a process."""
        self._not_before = 0.0
        self._delay_s = 0.0
        self._trouble = ""
        self._trouble_since: float | None = None
        self._warned_at = float("-inf")
        poller.register(orders.fileno(), select.POLLIN)

    # -- orders

    def start(self, worker: str, gpu_ids: tuple[int, ...], env: str = "") -> None:
        start = Start(worker, gpu_ids, env)
        file = LogFile(os.path.join(self.log_folder, f"{worker}.log"))
        self._processes[worker] = Process(start, WorkerOutput(worker, self.console, file, self._log_to_driver))
        self._waiting[worker] = start
        self._launch(time.monotonic())

    def _launch(self, now: float) -> None:
        """Order what can be ordered of what waits."""
        for worker, start in list(self._waiting.items()):
            if self.envs.error(start.env) is not None:
                self._forget_unbegun(worker)
            elif now >= self._not_before and (how := self.envs.start_of(start.env)) is not None:
                try:
                    self._order(start, *how)
                except BlockingIOError:
                    self._put_off(now, "the zygote, which forks them, has not taken the orders before")
                    return
                except OSError as error:
                    self._put_off(now, _describe_failure(error))
                    return

    def _order(self, start: Start, python: str, spec: str) -> None:
        self._check_descriptors()
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(read, False)
            cuda = ",".join(self._gpus[g] if g < len(self._gpus) else str(g) for g in start.gpu_ids)
            order = {
                "worker": start.worker,
                "gpu_ids": start.gpu_ids,
                "cuda": cuda,
                "python": python,
                "env": spec,
            }
            socket.send_fds(self._orders, [msgspec.msgpack.encode(order)], [write])
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        del self._waiting[start.worker]
        self._processes[start.worker].log = read
        self._worker_by_log[read] = start.worker
        self._poller.register(read, select.POLLIN)

    def _check_descriptors(self) -> None:
        """EMFILE while there is room still: ZeroMQ aborts a process that has no descriptor for a new connection."""
        coming = sum(p.log is not None and not self._is_ready(w) for w, p in self._processes.items())
        if not has_descriptors(coming + _SPARE_DESCRIPTORS):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def _put_off(self, now: float, why: str) -> None:
        self._delay_s = min(_MOST_DELAY_S, 2 * self._delay_s or _FIRST_DELAY_S)
        self._not_before = now + self._delay_s
        self._trouble = why
        if self._trouble_since is None:
            self._trouble_since = now

    def _forget_unbegun(self, worker: str) -> None:
        self._waiting.pop(worker, None)
        self._never_begun.append(worker)

    def stop(self, worker: str, at_once: bool, is_surplus: bool, reason: str = "") -> None:
        """Kill it (`reason`: where the scheduler alone knows it), or ask it to close itself: a surplus one has time."""
        process = self._processes.get(worker)
        if process is None:
            return
        if at_once or worker in self._waiting:
            process.kill_reason = process.kill_reason or (reason and f"was killed: {reason}")
            self._kill(worker, process)
        else:
            self._ask_to_exit(worker)
            if not is_surplus:
                process.kill_at = time.monotonic() + _CLOSE_S

    def kill(self, worker: str, reason: str, kind: str = "WorkerCrashed") -> None:
        """SIGKILL; its end is reported with this reason, and kind."""
        process = self._processes.get(worker)
        if process is not None and not process.kill_reason:
            process.kill_reason, process.kind = reason, kind
            self._kill(worker, process)

    def _kill(self, worker: str, process: Process) -> None:
        process.kill_at = 0.0
        if process.pid:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        elif worker in self._waiting:
            self._forget_unbegun(worker)

    def ask_zygote(self) -> None:
        """For a sign of life."""
        with contextlib.suppress(OSError):  # it has many orders to answer, or its end is to be read
            self._orders.send(b"\x80")

    def lease_zygote(self, until: float) -> None:
        """When it is to kill all workers unless it hears of a later time (monotonic)."""
        with contextlib.suppress(OSError):
            self._orders.send(msgspec.msgpack.encode({"lease_until": until}))

    def kill_zygote(self, reason: str) -> None:
        self.zygote_end = reason
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.zygote, signal.SIGKILL)

    @property
    def waits_for_zygote(self) -> bool:
        """Whether a worker is to be started, or its end to be told."""
        return any(p.kill_at is not None or (p.log is not None and not p.pid) for p in self._processes.values())

    def pid(self, worker: str) -> int:
        """0 when it has none: not started yet, or ended."""
        process = self._processes.get(worker)
        return 0 if process is None else process.pid

    def pids(self) -> dict[str, int]:
        """Of every worker; 0 for those that are not started yet."""
        return {worker: process.pid for worker, process in self._processes.items()}

    # -- news

    def hear(self, descriptor: int) -> bool:
        """Handle input on one of the descriptors that were registered here; False when the zygote is gone."""
        if descriptor == self._orders.fileno():
            return self._hear_zygote()
        if descriptor in self._worker_by_log:
            worker = self._worker_by_log[descriptor]
            self._read_output(worker, self._processes[worker])
        else:
            self.envs.hear(descriptor)
        return True

    def on_ready(self, worker: str) -> None:
        """It has said hello: processes can be made."""
        process = self._processes.get(worker)
        if process is not None:
            self.envs.was_ready(process.start.env)
            self._delay_s = self._not_before = 0.0
            self._trouble_since = None

    def _hear_zygote(self) -> bool:
        try:
            data = self._orders.recv(65536)
        except ConnectionResetError:  # it was killed with orders unread
            return False
        if not data:
            return False
        self._has_zygote_spoken = True
        news = msgspec.msgpack.decode(data)
        if "started" in news:
            process = self._processes[news["started"]]
            process.pid = news["pid"]
            process.output.file.add_to_head(f"# {news['started']} pid={process.pid} started={time.time():.0f}\n")
            if process.kill_at is not None and process.kill_at <= time.monotonic():
                self._kill(news["started"], process)
        elif "refused" in news:
            self._on_refused(news["refused"], news["errno"])
        elif "ended" in news:
            self._on_ended(news["ended"], news["status"])
        return True

    def has_zygote_spoken(self) -> bool:
        """Since the last call."""
        has_spoken, self._has_zygote_spoken = self._has_zygote_spoken, False
        return has_spoken

    def _on_refused(self, worker: str, number: int) -> None:
        process = self._processes[worker]
        self._close_output(process)
        self._put_off(time.monotonic(), _describe_failure(OSError(number, os.strerror(number)), "fork"))
        if process.kill_at is None:
            self._waiting[worker] = process.start
        else:
            self._forget_unbegun(worker)

    def _on_ended(self, worker: str, status: int) -> None:
        process = self._processes.pop(worker)
        self._read_output(worker, process)
        self._close_output(process)
        process.output.end(self._name(worker, process), time.monotonic())
        reason = f"pid {process.pid} {process.kill_reason or _describe(status)}"
        if process.output.last_lines and not (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0):
            reason += "; last lines of its output:\n  " + "\n  ".join(process.output.last_lines)
        if process.kill_at is None and not self._is_ready(worker):
            self.envs.died_early(process.start.env, reason)
        self._on_lost(worker, reason, process.kind)

    def _read_output(self, worker: str, process: Process) -> None:
        if process.log is None:
            return
        try:
            data = os.read(process.log, 65536)
        except BlockingIOError:
            return
        if data:
            process.output.take(data, self._name(worker, process), time.monotonic())
        else:  # it has closed its stdout and stderr
            self._close_output(process)

    def _close_output(self, process: Process) -> None:
        if process.log is not None:
            self._poller.unregister(process.log)
            del self._worker_by_log[process.log]
            os.close(process.log)
            process.log = None

    def _name(self, worker: str, process: Process) -> str:
        who = self._who(worker)
        if who not in (worker, process.actor):
            process.actor = who
            process.output.file.add_to_head(f"# Actor {who}\n")
        return f"{who} pid={process.pid}"

    # -- time

    def next_deadline(self) -> float | None:
        """When `keep_house` is to be called next (monotonic)."""
        times = [p.kill_at for p in self._processes.values() if p.kill_at]
        times += [p.output.report_at for p in self._processes.values() if p.output.report_at is not None]
        if self._never_begun:
            times.append(0.0)
        if self._waiting and self._not_before > time.monotonic():
            times.append(self._not_before)
        if self.console.is_waiting:
            times.append(time.monotonic() + 0.1)
        build = self.envs.next_deadline()
        if build is not None:
            times.append(build)
        return min(times, default=None)

    def keep_house(self, now: float) -> None:
        self.console.flush()
        for worker, process in list(self._processes.items()):
            if process.kill_at and process.kill_at <= now:
                self._kill(worker, process)
            if process.output.report_at is not None and process.output.report_at <= now:
                process.output.report(self._name(worker, process))
        self.envs.keep_house(now)
        if self._waiting:
            self._launch(now)
            self._warn(now)
        never_begun, self._never_begun = self._never_begun, []
        for worker in never_begun:
            process = self._processes.pop(worker)
            self._on_lost(worker, process.kill_reason or "was stopped before it had begun", process.kind)

    def _warn(self, now: float) -> None:
        """What waits has waited for long."""
        since = self._trouble_since
        if since is None or now - since < _WARN_AFTER_S or now - self._warned_at < _WARN_AGAIN_S:
            return
        self._warned_at = now
        self.console.write(
            f"rlplat: no worker process could be started for {now - since:.0f} s; {len(self._waiting)} wait, and the "
            f"work that needs them stays queued: {self._trouble}\n"
        )

    def close(self) -> None:
        """The workers are dead: take what they have printed still."""
        for worker, process in self._processes.items():
            self._read_output(worker, process)
            process.output.end(self._name(worker, process), time.monotonic())
        self.console.flush(within_s=0.2)
        self._orders.close()


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name
        hint = ": it was killed from outside, or the kernel ran out of memory" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"
    return f"exited with code {os.WEXITSTATUS(status)}"


def _describe_failure(error: OSError, what: str = "start") -> str:
    """With the limit that was met, and how to raise it."""
    text = f"{what}: {error.strerror}"
    if error.errno == errno.EAGAIN:
        limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        return f"{text} (this user may have {limit} processes and threads: `ulimit -u`, or the cgroup's pids.max)"
    if error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"{text} (a process may have {limit} open files, and the node needs two for each worker: `ulimit -n`)"
    if error.errno == errno.ENFILE:
        return f"{text} (the machine's limit: sysctl fs.file-max)"
    if error.errno == errno.ENOMEM:
        return f"{text} (memory, or overcommit: sysctl vm.overcommit_memory)"
    return text
