"""An engine of real processes that listen on loopback and know the cluster's key: what the launcher does is real,
and no Ray is needed. `python toy_engine.py head|worker TOKEN_FILE ADDRESS_FILE|HEAD` is a node."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlplat.cluster.node_process import NodeStart


class ToyEngine:
    program_env = {"TOY_ADDRESS": "{address}", "TOY_TOKEN_FILE": "{token}"}
    note = "a toy"

    def __init__(self, broken_address: str | None = None) -> None:
        self.broken_address = broken_address
        """The node at this address ends at once."""

    def head(self, address: str) -> NodeStart | None:
        return self._start("head", "{temp}/address", address, address_file="{temp}/address")

    def worker(self, address: str, head: str) -> NodeStart:
        return self._start("worker", head, address)

    def _start(self, role: str, place: str, address: str, address_file: str | None = None) -> NodeStart:
        role = "broken" if address == self.broken_address else role
        return NodeStart(("{python}", __file__, role, "{token}", place), {}, "ready\n", address_file)

    def complaint(self, seen: Mapping[str, Any]) -> str | None:
        return None


def head(token: str, address_file: Path) -> None:
    """Answers `yes` to those who know the key."""
    server = socket.create_server(("127.0.0.1", 0))
    address_file.write_text(f"127.0.0.1:{server.getsockname()[1]}\n")
    print("ready", flush=True)
    while True:
        peer, _ = server.accept()
        threading.Thread(target=answer, args=(peer, token)).start()


def answer(peer: socket.socket, token: str) -> None:
    with peer, peer.makefile("rw") as talk:
        talk.write("yes\n" if talk.readline().strip() == token else "no\n")


def asked(token: str, address: str) -> str:
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port))) as peer, peer.makefile("rw") as talk:
        talk.write(token + "\n")
        talk.flush()
        return talk.readline().strip()


def join(folder: str) -> None:
    """One task of a SLURM job on this engine."""
    import os

    from rlplat.cluster.join import Task

    sys.exit(Task(Path(folder), os.environ, ToyEngine()).run())


def main(role: str, token_file: str, place: str = "") -> None:
    if role == "join":
        join(token_file)
    token = Path(token_file).read_text()
    if role == "broken":
        sys.exit("no room for a node here")
    if role == "head":
        head(token, Path(place))
    else:
        assert asked(token, place) == "yes"
        print("ready", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
