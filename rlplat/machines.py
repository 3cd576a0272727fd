"""Machines of a cluster of one owner: what `rlplat start` and `rlplat stop` do (docs/clusters.md)."""

from __future__ import annotations


def start_head(path: str, host: str, port: int, token: str = "", offers: dict[str, float] | None = None) -> str:
    """Write a new join file, for the machine whose address `host` is; returns HOST:PORT.

    token: a secret that the keys are made of. offers: CPUs and GPUs of the head's machine, where its program says none.
    """
    from rlplat.runtime.start import join_file

    return join_file.make(path, host, port, token, offers).address


def make_join_file(path: str, address: str, token: str) -> None:
    """That of the cluster with this address and secret, for another machine."""
    from rlplat.runtime.link.trunk import new_keys
    from rlplat.runtime.start import join_file

    join_file.write(path, new_keys(address, token))


def work(path: str, num_cpus: float | None, num_gpus: int | None, resources: dict[str, float] | None) -> None:
    """Work for the programs of the cluster of this join file, until SIGTERM or SIGINT."""
    from rlplat.runtime.start import machine

    machine.serve(path, num_cpus, num_gpus, resources)


def stop(path: str | None) -> int:
    """End what `work` does on this machine, for this cluster or all; returns how many there were."""
    from rlplat.runtime.start import machine

    return machine.stop(path)
