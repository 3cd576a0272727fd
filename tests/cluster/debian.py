"""Debian's packages, unpacked into a cache folder and not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rlplat-tests"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def unpacked(name: str, packages: tuple[str, ...]) -> Path:
    """The folder CACHE/name with these packages in it; skips the test where they cannot be had."""
    folder = CACHE / name
    if folder.exists():
        return folder
    if not shutil.which("apt-get"):
        pytest.skip(f"there is no apt-get to fetch {packages[0]}")
    downloads = CACHE / f"{name}-{os.getpid()}"
    downloads.mkdir(parents=True)
    try:
        done = subprocess.run(
            ["apt-get", "download", *packages], cwd=downloads, capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            pytest.skip(f"apt-get cannot fetch {packages[0]}: {done.stderr.strip().splitlines()[-1:]}")
        for package in downloads.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, downloads / "root"], check=True)
        try:
            (downloads / "root").rename(folder)
        except OSError:  # another test process was first
            pass
    finally:
        shutil.rmtree(downloads)
    return folder
