"""A real sshd on loopback: Debian's, unpacked and not installed, in a mount namespace of its own for the two places
that it insists on (a user `sshd`, /run/sshd). Skipped, with the reason, where that is not possible."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlplat.cluster import marks
from tests.cluster.debian import CACHE, LIBRARIES, unpacked

_PACKAGES = ("openssh-server", "openssh-sftp-server", "libwrap0")


@dataclass
class Sshd:
    """hosts: four names of one machine, 127.0.0.1 to 127.0.0.4, which take `key`."""

    folder: Path
    port: int
    key: Path
    config: Path
    known_hosts: Path

    @property
    def hosts(self) -> list[str]:
        return [f"127.0.0.{number}:{self.port}" for number in range(1, 5)]

    def section(self, num_hosts: int) -> str:
        return f"ssh: {{hosts: {self.hosts[:num_hosts]}, identity_file: {self.key}, config_file: {self.config}}}"


@pytest.fixture(scope="package")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    program = _program()
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found = Sshd(folder, port, folder / "user", folder / "ssh_config", folder / "known_hosts")
    host_key = " ".join((folder / "host.pub").read_text().split()[:2])
    names = [f"[127.0.0.{number}]:{port}" for number in range(1, 5)]
    found.known_hosts.write_text("".join(f"{name} {host_key}\n" for name in names))
    found.config.write_text(f"UserKnownHostsFile {found.known_hosts}\nGlobalKnownHostsFile /dev/null\n")
    listening = "".join(f"ListenAddress 127.0.0.{number}:{port}\n" for number in range(1, 5))
    (folder / "sshd_config").write_text(
        f"{listening}HostKey {folder / 'host'}\nAuthorizedKeysFile {folder / 'user.pub'}\nPidFile none\n"
        "PasswordAuthentication no\nUsePAM no\nPermitRootLogin prohibit-password\nStrictModes no\n"
        "MaxStartups 100\nMaxSessions 100\n"
    )
    (folder / "passwd").write_text(Path("/etc/passwd").read_text() + "sshd:x:110:65534::/run/sshd:/usr/sbin/nologin\n")
    script = (
        f"mount --bind {folder}/passwd /etc/passwd && mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && "
        f"exec {program} -D -e -f {folder}/sshd_config"
    )
    libraries = f"{CACHE}/sshd/{LIBRARIES}:{CACHE}/sshd/lib/x86_64-linux-gnu"
    log = folder / "log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stderr=file,
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
        )
    try:
        deadline = time.monotonic() + 20
        while "Server listening on 127.0.0.4" not in log.read_text():
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"sshd does not run here: {log.read_text().strip().splitlines()[-1:]}")
            time.sleep(0.02)
        yield found
    finally:
        server.kill()
        server.wait()


def _program() -> Path:
    """The sshd of the system, or of Debian's package in a cache folder."""
    if os.getuid() != 0:
        pytest.skip("a real sshd needs root")
    if not shutil.which("ssh") or not shutil.which("unshare"):
        pytest.skip("ssh and unshare are not installed")
    if system := shutil.which("sshd", path="/usr/sbin:/usr/local/sbin"):
        return Path(system)
    return unpacked("sshd", _PACKAGES) / "usr" / "sbin" / "sshd"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A cluster's folder on each node. A test that leaves a process of its nodes or jobs fails, and it ends."""
    folder = tmp_path / "there"
    yield folder
    left = [
        pid
        for place in (*folder.glob("nodes/*"), *folder.glob("jobs/*"))
        for name in (marks.NODE, marks.JOB)
        for pid in marks.marked(name, str(place))
    ]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "lab.yaml"
        path.write_text(text)
        return path

    return write
