"""Jobs on the head: programs that go on when the terminal that submitted them is gone.

<folder>/jobs/<id>/   job.json      command, when it was submitted, who looks after it
                      log           what it prints, to MAX_LOG_BYTES
                      log-before-N  the newest MAX_LOG_BYTES of the N that it printed before that
                      result.json   exit code and end; written once, whole

python -m rlplat.cluster.jobs FOLDER     the supervisor of one job: runs it, and writes its result
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from rlplat import processes
from rlplat.cluster import marks
from rlplat.cluster.node_process import HostError, numbered_folder, private_folder, write_private

MAX_LOG_BYTES = 32 << 20
STOP_GRACE_S = 30.0
"""Seconds that a program has to save a checkpoint after SIGTERM."""


class Jobs:
    def __init__(self, cluster_folder: Path) -> None:
        self._cluster_folder = cluster_folder
        self._folder = cluster_folder / "jobs"

    def submit(self, command: Sequence[str], env: Mapping[str, str], workdir: Path) -> str:
        """Start the program under a supervisor of its own; the id of the job."""
        private_folder(self._cluster_folder)
        private_folder(self._folder)
        folder = numbered_folder(self._folder)
        job = {"command": list(command), "workdir": str(workdir), "submitted": time.time()}
        write_private(folder / "job.json", json.dumps(job))
        with open(os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "rlplat.cluster.jobs", str(folder)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **env, marks.JOB: str(folder)},
            )  # fmt: skip
        job |= {"pid": supervisor.pid, "began": processes.start_time(supervisor.pid)}
        write_private(folder / "job.json", json.dumps(job))
        supervisor.returncode = 0  # it outlives this process, which waits for it nowhere
        return folder.name

    def all(self) -> list[dict[str, Any]]:
        try:
            ids = sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdigit())
        except FileNotFoundError:
            return []
        return [self.look(str(job_id)) for job_id in ids]

    def look(self, job_id: str) -> dict[str, Any]:
        """state: `running`, `done`, `failed`, `stopped`, `lost` (its supervisor is gone: killed, or a reboot), or
        `damaged` (a file of it cannot be read)."""
        folder = self._folder / job_id
        if not (folder / "job.json").exists():
            known = ", ".join(each["id"] for each in self.all()) or "none"
            raise HostError(f"there is no job {job_id!r} (jobs: {known})")
        place = {"id": job_id, "log": str(folder / "log")}
        job = _read(folder / "job.json", {"command": list, "submitted": float, "workdir": str})
        if job is None:
            unread = f"({folder / 'job.json'} is damaged)"
            return place | {
                "state": "damaged",
                "command": [unread],
                "submitted": time.time(),
                "exit_code": None,
            }
        job |= place
        alive = "pid" not in job or marks.is_alive(job["pid"], job["began"])
        if not (folder / "result.json").exists():
            return job | {"state": "running" if alive else "lost", "exit_code": None}
        result = _read(folder / "result.json", {"exit_code": int, "ended": float, "stopped": bool})
        if result is None:
            return job | {"state": "damaged", "exit_code": None}
        code = result["exit_code"]
        state = "stopped" if result["stopped"] else "failed" if code else "done"
        return job | result | {"state": state}

    def stop(self, job_id: str) -> dict[str, Any]:
        """SIGTERM, time to save a checkpoint, SIGKILL; what `look` returns then."""
        job = self.look(job_id)
        if job["state"] == "running":
            try:
                os.kill(job["pid"], signal.SIGTERM)
            except ProcessLookupError:
                pass
            deadline = time.monotonic() + STOP_GRACE_S + 5
            while self.look(job_id)["state"] == "running" and time.monotonic() < deadline:
                time.sleep(0.05)
        mark, grace_s = str(self._folder / job_id), 0.0
        if job["state"] == "lost":  # its program may run on, and nobody has told it to save
            marks.signal_all(marks.JOB, mark, signal.SIGTERM)
            grace_s = STOP_GRACE_S
        marks.end_all(marks.JOB, mark, None, grace_s)
        return self.look(job_id)

    def logs(self, job_id: str, follow: bool, write: Callable[[bytes], None]) -> dict[str, Any]:
        """Write what is kept of what the job has printed, and with `follow` what it prints until it ends; what `look`
        returns."""
        position = 0
        while True:
            job = self.look(job_id)  # before reading: what it printed last is read before it counts as ended
            log = Path(job["log"])
            before, older = _older(log)
            if older is not None and position < before:
                with suppress(FileNotFoundError), open(older, "rb") as file:  # else a newer one has its place
                    file.seek(max(0, file.seek(0, os.SEEK_END) - (before - position)))
                    _copy(file, write)
                position = before
            with open(log, "rb") as file:
                file.seek(position - before)
                position += _copy(file, write)
            if _older(log)[0] == before:
                if not follow or job["state"] != "running":
                    return job
                time.sleep(0.1)


def _older(log: Path) -> tuple[int, Path | None]:
    """How many bytes were printed before those in the log, and the file that has the newest of them."""
    found = [(int(path.name.rpartition("-")[2]), path) for path in log.parent.glob("log-before-*")]
    return max(found, default=(0, None))


def _copy(file: BinaryIO, write: Callable[[bytes], object], limit: float = math.inf) -> int:
    count = 0
    while count < limit and (data := file.read(65536)):
        write(data)
        count += len(data)
    return count


def bound_log(log: Path) -> None:
    """Cut a log that is full, to which its program goes on to append; what it appends between the last read and the
    cut is lost."""
    with suppress(OSError):
        if log.stat().st_size < MAX_LOG_BYTES:
            return
        before, older = _older(log)
        with suppress(OSError), open(log, "rb") as file, open(log.with_name("log-part"), "wb") as part:
            before += file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
            before += _copy(file, part.write, 2 * MAX_LOG_BYTES)
            part.flush()
            os.replace(part.name, log.with_name(f"log-before-{before}"))
            if older is not None:
                older.unlink()
        os.truncate(log, 0)  # on a full disk too


def _read(path: Path, fields: Mapping[str, type]) -> dict[str, Any] | None:
    """A JSON file with these fields; None where it is cut, or another version wrote it."""
    try:
        values = json.loads(path.read_bytes())
    except ValueError:
        return None
    is_whole = isinstance(values, dict) and all(isinstance(values.get(key), kind) for key, kind in fields.items())
    return values if is_whole else None


def supervise(folder: Path) -> int:
    """Run the job of this folder to its end and write its result."""
    job = json.loads((folder / "job.json").read_text())
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        try:
            os.killpg(process.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        signal.alarm(int(STOP_GRACE_S))

    def kill(number: int, frame: FrameType | None) -> None:
        for pid in marks.marked(marks.JOB, str(folder)):
            with suppress(ProcessLookupError):  # it may have ended just now
                os.kill(pid, signal.SIGKILL)

    blocked = {signal.SIGTERM, signal.SIGALRM}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        process = subprocess.Popen(
            job["command"], stdin=subprocess.DEVNULL, cwd=job["workdir"], start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked),
        )  # fmt: skip
    except OSError as error:
        what = job["command"][0] if error.filename in (None, job["command"][0]) else error.filename
        print(f"rlplat: {what}: {error.strerror}", file=sys.stderr, flush=True)
        code = 127
    else:
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGALRM, kill)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        code = marks.exit_code_of(process, lambda: bound_log(folder / "log"))
        bound_log(folder / "log")
        signal.alarm(0)
    code = 128 - code if code < 0 else code
    result = {"exit_code": code, "ended": time.time(), "stopped": stopping}
    write_private(folder / "result.json", json.dumps(result))
    return code


if __name__ == "__main__":
    supervise(Path(sys.argv[1]))
