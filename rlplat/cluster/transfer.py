"""Files to and from machines, as an archive over the connection that is there: no other program is needed."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from rlplat.cluster.calls import Feed, ask
from rlplat.cluster.host import RESULT, LeadsOutside, take
from rlplat.cluster.machines import Machine
from rlplat.cluster.node_process import HostError
from rlplat.errors import ConfigError


def packed(source: Path, exclude: Sequence[str]) -> Feed:
    """The content of a folder, or one file, without what has an excluded name."""
    if not source.exists():
        raise ConfigError(f"'{source}' does not exist")

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if Path(member.name).name in exclude else member

    def write(stream: IO[bytes]) -> None:
        with tarfile.open(fileobj=stream, mode="w|") as archive:
            if not source.is_dir():
                archive.add(source, arcname=source.name)
                return
            for path in sorted(source.iterdir()):
                archive.add(path, arcname=path.name, filter=kept)

    return write


def send_up(machine: Machine, folder: str, source: Path, target: str, exclude: Sequence[str]) -> dict[str, Any]:
    """Copy to `target` there, below the cluster's files unless it is absolute. Nothing is deleted there."""
    return ask(machine, "receive", {"folder": folder, "target": target}, feed=packed(source, exclude))


def bring_down(machine: Machine, folder: str, source: str, target: Path) -> int:
    """Copy a file or folder from there into the folder `target`; the number of files."""
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"'{target}' cannot be a folder here: {error.strerror}") from None
    request = json.dumps({"folder": folder, "source": source}) + "\n"
    process = subprocess.Popen(
        machine.argv([machine.python, "-m", "rlplat.cluster.host", "send"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    count = 0
    try:
        process.stdin.write(request.encode())
        process.stdin.close()
        answer = _answer(process.stdout.readline())
        if "error" in answer:
            raise HostError(answer["error"])
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for member in archive:
                take(archive, member, target)
                count += member.isfile()
    except LeadsOutside as error:
        raise HostError(f"{error}: copy what is wanted by its own name; {count} files were copied") from None
    except tarfile.ReadError as error:
        raise HostError(f"{machine.name}: the connection ended in the middle of {source}: {error}") from error
    finally:
        process.stdout.close()
        process.wait()
    return count


def _answer(line: bytes) -> dict[str, Any]:
    text = line.decode(errors="replace")
    if not text.startswith(RESULT):
        raise HostError(text.strip() or "no answer; the lines above say why")
    found: dict[str, Any] = json.loads(text.removeprefix(RESULT))
    return found
