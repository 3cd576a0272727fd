"""Are there CPUs and memory for the rollout workers that are asked for? Said before the first one starts."""

from __future__ import annotations

import os

import psutil

from rlplat.errors import ConfigError

WORKER_BYTES = 16 << 20
"""Least private memory of a rollout worker (measured: 18 MiB with CartPole and an MLP)."""
CROWDED = 4
"""Rollout workers per CPU from which on it is worth a warning."""


def check_crowding(num_workers: int) -> str:
    """One line of warning, or the empty string; ConfigError where the memory cannot hold the processes."""
    num_cpus, free_bytes = len(os.sched_getaffinity(0)), psutil.virtual_memory().available
    if num_workers * WORKER_BYTES > free_bytes:
        raise ConfigError(
            f"num_rollout_workers={num_workers}: so many processes need {num_workers * WORKER_BYTES / 2**30:.1f} GiB "
            f"of memory and more, and {free_bytes / 2**30:.1f} GiB are free; give one or two for each of the "
            f"{num_cpus} CPUs, and raise --num-envs-per-worker"
        )
    if num_workers <= CROWDED * num_cpus:
        return ""
    return (
        f"warning: starting {num_workers:,} rollout workers on {num_cpus} CPUs: they wait for each other, and the "
        "start takes long; --num-envs-per-worker gives more environments without more processes"
    )
