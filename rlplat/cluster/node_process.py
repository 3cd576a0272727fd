"""One node on this machine: a command that keeps running, with its log, its key and the place where it can be reached.

<folder>/nodes/<name>/   node.json   what runs, as whom, since when       0700, as all above it
                         log         what it prints
<folder>/token           the cluster's key                                0600
/tmp/rlp-xxxxxxxx/       its sockets and scratch files, 0700: the paths of sockets must be short
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlplat import processes
from rlplat.cluster import marks

_STOP_GRACE_S = 3.0
_TAIL_LINES = 15


class HostError(Exception):
    """What a machine was asked for and cannot do; the text is for the user."""


@dataclass(frozen=True)
class NodeStart:
    """How to start a node. `{token}`, `{temp}` and `{python}` in argv, env and address_file stand for paths there."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_text: str = ""
    """What its log has once it can be used."""
    address_file: str | None = None
    """Where the address is that others need, if they need one."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> NodeStart:
        return cls(**{**values, "argv": tuple(values["argv"])})


def private_folder(path: Path) -> Path:
    """Made for this user alone; one that belongs to another user, or that others may write, is refused."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not path.is_dir() or path.is_symlink() or status.st_uid != os.getuid():
        raise HostError(f"{path} is not a folder of this user: remove it, or set folder: in the cluster's file")
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def numbered_folder(parent: Path) -> Path:
    """The next of `1`, `2`, ..., made for this user alone."""
    number = 1 + max((int(path.name) for path in parent.iterdir() if path.name.isdigit()), default=0)
    while True:  # of two that want one at once, it is that one's whose `mkdir` made it
        try:
            (parent / str(number)).mkdir(mode=0o700)
            return parent / str(number)
        except FileExistsError:
            number += 1


def write_private(path: Path, text: str) -> None:
    """The whole file or none of it, readable by this user alone."""
    handle, name = tempfile.mkstemp(dir=path.parent)  # 0600
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(name, path)


class NodeProcess:
    def __init__(self, cluster_folder: Path, name: str) -> None:
        self.name = name
        self.folder = cluster_folder / "nodes" / name
        self.token_file = cluster_folder / "token"
        self.log_file = self.folder / "log"

    def start(
        self, start: NodeStart, token: str, env: Mapping[str, str], python: str, timeout_s: float
    ) -> dict[str, Any]:
        """Start it and wait until it can be used; what runs already is left alone. Returns what `look` returns."""
        private_folder(self.folder.parent.parent)
        private_folder(self.folder.parent)
        private_folder(self.folder)
        seen = self.look()
        if seen["state"] == "running":
            if seen["start"] != json.loads(json.dumps(asdict(start))):
                raise HostError(f"node {self.name} runs with other settings: rlplat down, then rlplat up")
            return seen
        self.stop()  # what a start that was cut off has left
        write_private(self.token_file, token)
        temp = tempfile.mkdtemp(prefix="rlp-", dir="/tmp")
        places = {"{token}": str(self.token_file), "{temp}": temp, "{python}": python}
        environment = {
            **os.environ,
            **env,
            **{name: filled(text, places) for name, text in start.env.items()},
        }
        environment[marks.NODE] = str(self.folder)
        environment.pop(marks.JOB, None)
        record = {"start": asdict(start), "temp": temp, "since": time.time(), "address": None, "ready": False}
        with open(self.log_file, "wb", opener=_private_opener) as log:
            try:
                process = subprocess.Popen(
                    [filled(text, places) for text in start.argv],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
                    preexec_fn=marks.ignore_user_signals,
                )  # fmt: skip
            except OSError as error:
                shutil.rmtree(temp, ignore_errors=True)
                raise HostError(f"node {self.name}: {start.argv[0]}: {error.strerror}") from error
        record |= {"pid": process.pid, "began": processes.start_time(process.pid)}
        self._write(record)
        self._await(process, start, timeout_s)
        if start.address_file is not None:
            record["address"] = Path(filled(start.address_file, places)).read_text().strip()
        self._write(record | {"ready": True})
        return self.look()

    def _await(self, process: subprocess.Popen[bytes], start: NodeStart, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while start.ready_text not in self.log_file.read_text(errors="replace"):
            code = process.poll()
            if code is None and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            said = self.tail()
            self.stop()
            process.wait()
            ending = f"did not start within {timeout_s:g} s" if code is None else f"ended with exit code {code}"
            raise HostError(f"node {self.name} {ending}; the last lines of {self.log_file}:\n{said}")

    def stop(self) -> bool:
        """End all its processes; whether there were any."""
        record = self._record()
        found = marks.end_all(marks.NODE, str(self.folder), None if record is None else record["pid"], _STOP_GRACE_S)
        if record is not None:
            shutil.rmtree(record["temp"], ignore_errors=True)
            (self.folder / "node.json").unlink()
        return found

    def look(self) -> dict[str, Any]:
        """state: `absent` (never started, or stopped), `running`, `starting` or `ended` (by itself)."""
        record = self._record()
        if record is None:
            return {"state": "absent"}
        if not marks.is_alive(record["pid"], record["began"]):
            return {**record, "state": "ended", "log": self.tail()}
        return {**record, "state": "running" if record["ready"] else "starting"}

    def tail(self) -> str:
        try:
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        except FileNotFoundError:
            return ""

    def _record(self) -> dict[str, Any] | None:
        try:
            return json.loads((self.folder / "node.json").read_text())
        except FileNotFoundError:
            return None

    def _write(self, record: Mapping[str, Any]) -> None:
        write_private(self.folder / "node.json", json.dumps(record))


def filled(text: str, places: Mapping[str, str]) -> str:
    for name, path in places.items():
        text = text.replace(name, path)
    return text


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
