"""`rlplat doctor`: what rlplat finds on this machine, and what to mend."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import metadata

from rlplat.cli.output import print_json
from rlplat.cli.parser import command
from rlplat.errors import how_to_install
from rlplat.machine_limits import cpu_count, memory_limit

_HELP = """\
Show what rlplat finds on this machine: cores, limits, GPUs, extras, shared memory.

--json  print one JSON array

examples:
  rlplat doctor

Exit code 1: something keeps rlplat from working well; the line says what to do.
"""
LEAST_SHARED = 256 << 20
"""Bytes in /dev/shm below which large arrays are spilled to disk."""
LEAST_FILES = 1024
_NOT_SHOWN = ("bench", "dev", "docs")
Finding = tuple[str, str, str]
"""(what, what was found, what to do about it; empty: nothing)."""


@command("doctor", _HELP)
def run(options: argparse.Namespace) -> int:
    found = [*machine(), *extras()]
    if options.json:
        print_json([dict(zip(("what", "found", "mend"), each, strict=True)) for each in found])
    else:
        print("\n".join(f"{what:<16}{text}{f'  <- {mend}' if mend else ''}" for what, text, mend in found))
    return 1 if any(mend for _, _, mend in found) else 0


def machine() -> Iterator[Finding]:
    import rlplat

    yield "rlplat", f"{rlplat.__version__}, Python {platform.python_version()}, {platform.platform()}", ""
    limited = f" of {os.cpu_count()} (the rest is not this process's)" if cpu_count() != os.cpu_count() else ""
    yield "cores", f"{cpu_count()}{limited}", ""
    yield "memory", f"{memory_limit() / 1e9:.1f} GB", ""
    yield "GPUs", gpus(), ""
    yield shared_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    mend = f"ulimit -n {LEAST_FILES}: each worker takes some" if hard < LEAST_FILES else ""
    yield "open files", f"{soft}, at most {hard}", mend
    yield temporary_files()


def temporary_files() -> Finding:
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        return "temporary files", str(error.strerror), "name a folder that can be written by TMPDIR"
    return "temporary files", f"{folder}, {shutil.disk_usage(folder).free / 1e9:.1f} GB free", ""


def shared_memory(folder: str = "/dev/shm") -> Finding:
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        return "shared memory", f"{folder} cannot be written", "mount it: --shm-size=2g of docker run"
    free = shutil.disk_usage(folder).free
    mend = "docker run --shm-size=2g, or fewer large arrays at once" if free < LEAST_SHARED else ""
    return "shared memory", f"{folder}, {free / 1e9:.2f} GB free", mend


def gpus() -> str:
    if shutil.which("nvidia-smi") is None:
        return "none (no nvidia-smi)"
    asked = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return "; ".join(asked.stdout.splitlines()) or "none"


def extras() -> Iterator[Finding]:
    """Those of pyproject.toml; an extra that is absent is no fault."""
    packages: dict[str, list[str]] = {}
    for line in metadata.requires("rlplat") or []:
        if found := re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", line):
            packages.setdefault(found[2], []).append(found[1])
    for extra, names in sorted(packages.items()):
        if extra not in _NOT_SHOWN:
            absent = [name for name in names if not _is_there(name)]
            text = f"without {', '.join(absent)}: {how_to_install(extra)}" if absent else "installed"
            yield f"[{extra}]", text, ""


def _is_there(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return importlib.util.find_spec(package.replace("-", "_")) is not None
    return True
