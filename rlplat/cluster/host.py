"""The half of the launcher that runs on each machine: `python -m rlplat.cluster.host VERB`.

It reads one line of JSON, the request, and for `receive` the bytes of an archive after it; it prints what people may
read, then one line that begins with RESULT and has the answer as JSON. Requests hold the cluster's key: they come by
standard input, never on a command line, which every user of the machine may read. `run` and `shell`, whose input is the
program's, take the name of a request that was kept before (`keep`), 0600, and remove it.
What is slow to import is imported where it is used: each verb is a new process.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import rlplat
from rlplat.cluster.jobs import Jobs
from rlplat.cluster.node_process import (
    HostError,
    NodeProcess,
    NodeStart,
    filled,
    private_folder,
    write_private,
)

RESULT = "@rlplat "
_KEEP_S = 3600.0


def main(arguments: list[str]) -> int:
    verb, *rest = arguments
    try:
        if verb in ("run", "shell"):
            return _run(_kept(Path(rest[0])), rest[1:])
        request = json.loads(sys.stdin.buffer.readline())
        answer = _VERBS[verb](request)
    except HostError as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": f"{error.filename or verb}: {error.strerror or error}"}
    except (KeyError, TypeError, ValueError, IndexError) as error:  # files or requests of another version
        answer = {
            "error": f"{verb}: rlplat {rlplat.__version__} cannot read this ({error!r}): one version on all nodes?"
        }
    print(RESULT + json.dumps(answer), flush=True)
    return 1 if "error" in answer else 0


def cluster_folder(text: str) -> Path:
    return Path(text).expanduser().absolute()


def files_folder(request: dict[str, Any]) -> Path:
    """The copy of the user's files; the home folder where nothing was copied."""
    folder = cluster_folder(request["folder"]) / "files"
    return folder if folder.is_dir() else Path.home()


def look(request: dict[str, Any]) -> dict[str, Any]:
    """token: where it is asked for, the key that the cluster has already, for nodes that join later."""
    folder = cluster_folder(request["folder"])
    token = folder / "token"
    return {
        "token": token.read_text() if request["with_token"] and token.exists() else None,
        "rlplat": rlplat.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "ray": _version("ray"),
        "address": _own_address(),
        "is_up": (folder / "up").exists(),
        "nodes": {name: NodeProcess(folder, name).look() for name in request["nodes"]},
    }


class LeadsOutside(Exception):
    """What is in an archive is no file, or does not stay in the folder into which it is unpacked."""


def take(archive: Any, member: Any, target: Path) -> None:
    """Unpack a member; LeadsOutside where `tarfile.data_filter` says so, which Python has from 3.11.4 on."""
    import tarfile

    if hasattr(tarfile, "data_filter"):
        try:
            archive.extract(member, target, filter="data")
        except tarfile.FilterError as error:
            raise LeadsOutside(str(error)) from None
        return
    root = os.path.realpath(target)
    place = os.path.realpath(os.path.join(root, member.name.lstrip("/")))
    reached = {"be extracted to": place}
    if member.issym() or member.islnk():
        if os.path.isabs(member.linkname):
            raise LeadsOutside(f"{member.name!r} is a link to an absolute path")
        base = os.path.dirname(place) if member.issym() else root
        reached["link to"] = os.path.realpath(os.path.join(base, member.linkname))
    elif not (member.isreg() or member.isdir()):
        raise LeadsOutside(f"{member.name!r} is a special file")
    for verb, path in reached.items():
        if os.path.commonpath([path, root]) != root:
            raise LeadsOutside(f"{member.name!r} would {verb} {path!r}, which is outside the destination")
    archive.extract(member, target)


def receive(request: dict[str, Any]) -> dict[str, Any]:
    """Unpack the archive on standard input into a folder; nothing in it can lead out of that folder."""
    import tarfile

    target = _target(request)
    count = 0
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            try:
                take(archive, member, target)
            except LeadsOutside as error:
                raise HostError(f"{error}: put a copy in its place, or its name into exclude:") from None
            count += member.isfile()
    return {"files": count, "folder": str(target)}


def send(request: dict[str, Any]) -> dict[str, Any]:
    """The archive of a file or folder goes to standard output, after a line with its name."""
    import tarfile

    source = Path(request["source"]).expanduser()
    source = source if source.is_absolute() else files_folder(request) / source
    if not source.exists():
        raise HostError(f"{source} does not exist")
    print(RESULT + json.dumps({"name": source.name}), flush=True)
    try:
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
            archive.add(source, arcname=source.name)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the other side takes no more, and says why
        os._exit(1)
    os._exit(0)


def setup(request: dict[str, Any]) -> dict[str, Any]:
    """Run the user's commands in order; the first that fails ends it."""
    for command in request["commands"]:
        print(f"$ {command}", flush=True)
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=files_folder(request), env={**os.environ, **request["env"]}, stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode:
            raise HostError(f"setup command ended with exit code {done.returncode}: {command}")
    return {}


def start(request: dict[str, Any]) -> dict[str, Any]:
    folder = private_folder(cluster_folder(request["folder"]))
    node = NodeProcess(folder, request["node"])
    with _lock(folder, request["node"]):
        was_running = node.look()["state"] == "running"
        seen = node.start(
            NodeStart.of(request["start"]),
            request["token"],
            request["env"],
            sys.executable,
            request["timeout_s"],
        )
    return {**seen, "was_running": was_running}


def open_up(request: dict[str, Any]) -> dict[str, Any]:
    """From now on, until `stop`, the cluster takes programs; workdir: where they run."""
    folder = private_folder(cluster_folder(request["folder"]))
    (folder / "up").touch(mode=0o600)
    return {"workdir": str(files_folder(request))}


def stop(request: dict[str, Any]) -> dict[str, Any]:
    folder = cluster_folder(request["folder"])
    if not folder.is_dir():
        return {"stopped": [], "was_up": False}
    was_up = (folder / "up").exists()
    if request["jobs"]:  # no further program from here on
        (folder / "up").unlink(missing_ok=True)
        jobs = Jobs(folder)
        for job in jobs.all():
            if job["state"] in ("running", "lost"):
                jobs.stop(job["id"])
    names = request["nodes"]

    def end(name: str) -> bool:
        node = NodeProcess(folder, name)
        if not node.folder.exists():
            return False
        with _lock(folder, name):
            return node.stop()

    stopped = [name for name in names if name == "autoscaler" and end(name)]  # first: it starts nodes
    with ThreadPoolExecutor(max(1, len(names))) as pool:
        stopped += [name for name, was_there in zip(names, pool.map(end, names), strict=True) if was_there]
    if request["jobs"]:
        (folder / "token").unlink(missing_ok=True)
    return {"stopped": stopped, "was_up": was_up}


def submit(request: dict[str, Any]) -> dict[str, Any]:
    folder = cluster_folder(request["folder"])
    env = _program_env(request)
    if not request["needs_engine"] and not (folder / "up").exists():  # where nothing runs that could be asked
        raise HostError(f"the cluster is down; {request['up']} starts it")
    workdir = files_folder(request)
    return {"job": Jobs(folder).submit(request["command"], env, workdir), "workdir": str(workdir)}


def jobs(request: dict[str, Any]) -> dict[str, Any]:
    return {"jobs": Jobs(cluster_folder(request["folder"])).all()}


def stop_job(request: dict[str, Any]) -> dict[str, Any]:
    return Jobs(cluster_folder(request["folder"])).stop(request["job"])


def logs(request: dict[str, Any]) -> dict[str, Any]:
    last = b"\n"

    def write(data: bytes) -> None:
        nonlocal last
        last = data
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    found = Jobs(cluster_folder(request["folder"])).logs(request["job"], request["follow"], write)
    if not last.endswith(b"\n"):
        write(b"\n")  # the answer begins a line
    return found


def keep(request: dict[str, Any]) -> dict[str, Any]:
    """Write the request where `run` and `shell` find it; what was kept and never asked for goes after an hour."""
    folder = private_folder(private_folder(cluster_folder(request["folder"])) / "requests")
    for old in folder.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > _KEEP_S:
                old.unlink()
    place = folder / secrets.token_hex(16)
    write_private(place, json.dumps(request))
    return {"place": str(place)}


def _kept(place: Path) -> dict[str, Any]:
    try:
        request: dict[str, Any] = json.loads(place.read_text())
    finally:
        place.unlink(missing_ok=True)
    return request


_VERBS = {
    "keep": keep,
    "look": look, "receive": receive, "send": send, "setup": setup, "start": start, "open": open_up, "stop": stop,
    "submit": submit, "jobs": jobs, "stop-job": stop_job, "logs": logs,
}  # fmt: skip


def _run(request: dict[str, Any], command: list[str]) -> int:
    """A program with the caller's input, output and terminal, in place of this one; without a command a shell."""
    os.chdir(files_folder(request))
    command = command or [pwd.getpwuid(os.getuid()).pw_shell or "sh"]
    try:
        env = _program_env(request)
    except HostError as error:
        print(f"rlplat: {error}", file=sys.stderr)
        return 2
    try:
        os.execvpe(command[0], command, {**os.environ, **env})
    except OSError as error:
        print(f"rlplat: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


def _program_env(request: dict[str, Any]) -> dict[str, str]:
    """What a program on this cluster needs: the user's variables, and how it finds the engine."""
    folder = cluster_folder(request["folder"])
    head = NodeProcess(folder, request["head"]).look()
    if request["needs_engine"] and head["state"] != "running":
        raise HostError(f"the cluster is down, its head is {head['state']}; {request['up']} starts it")
    address = head.get("address") or ""
    places = {"{token}": str(folder / "token"), "{address}": address}
    engine = {name: filled(text, places) for name, text in request["engine_env"].items()}
    path = os.path.dirname(sys.executable)
    return {**request["env"], **engine, "PATH": f"{path}:{os.environ.get('PATH', os.defpath)}"}


def _target(request: dict[str, Any]) -> Path:
    given = Path(request["target"]).expanduser()
    if given.is_absolute():
        given.mkdir(parents=True, exist_ok=True)
        return given
    folder = private_folder(cluster_folder(request["folder"]))
    target = folder / "files" / given
    target.mkdir(parents=True, exist_ok=True)
    return target


def _version(package: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _own_address() -> str:
    """Under which the launcher reached this machine."""
    connection = os.environ.get("SSH_CONNECTION", "").split()  # client, its port, this machine, its port
    return connection[2] if len(connection) == 4 else "127.0.0.1"


@contextmanager
def _lock(folder: Path, node: str) -> Iterator[None]:
    """One start or stop of a node at a time, on this machine."""
    with open(private_folder(folder) / f"lock-{node}", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
