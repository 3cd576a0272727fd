"""How the ranks of a group find each other: a store on rank 0's node, at a port that the system picks.

    host, port = open_store("127.0.0.1")                                 # in rank 0's process
    join(host, port, rank=1, world_size=2, backend="gloo")               # in each process, rank 0's included

The port is bound at the given address alone, so that ranks of one machine open nothing to the network.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import psutil
import torch.distributed as dist

_opened: dict[tuple[str, int], Any] = {}
"""This process's, by address; one ends with the process."""


def open_store(host: str) -> tuple[str, int]:
    """(host, port) of a new store in this process; host: an address of this machine that all ranks can reach."""
    listener = socket.socket()
    listener.bind((host, 0))
    listener.listen(1024)
    port = int(listener.getsockname()[1])
    _opened[host, port] = _store(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return host, port


def join(host: str, port: int, *, rank: int, world_size: int, backend: str, timeout_s: float = 1800.0) -> None:
    """Make this process the member `rank` of the default process group; returns when all members have joined.

    timeout_s: after which a collective call that some member does not join fails in the others.
    """
    timeout = timedelta(seconds=timeout_s)
    store = _opened.get((host, port)) or _store(host, port, is_master=False, timeout=timeout)
    interface = interface_to(host)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


def _store(host: str, port: int, **options: Any) -> Any:
    return dist.TCPStore(host, port, **options)  # type: ignore[attr-defined]


def interface_to(host: str) -> str | None:
    """The network interface by which this machine reaches `host`; None: unknown, and gloo asks the resolver."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # of a datagram socket: nothing is sent
        except OSError:
            return None
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == own for address in addresses):
            return str(name)
    return None


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    _opened.clear()
