"""How many rollout workers are sensible here, and how far their start is.

What is said goes to the logger `rlplat.start`; `rlplat train` shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil

import rlplat
from rlplat.errors import InfeasibleResources
from rlplat.rl.spread import is_one_machine

if TYPE_CHECKING:
    from rlplat import ObjectRef

WORKER_BYTES = 16 * 2**20
"""What a rollout worker has for itself at the least (CartPole, an MLP in numpy: 17.6 MiB measured)."""
WORKERS_PER_CPU = 4
TELL_PERIOD_S = 5.0

log = logging.getLogger("rlplat.start")


def check_num_workers(num_workers: int) -> None:
    """A warning for many more rollout workers than CPU cores; InfeasibleResources where memory cannot hold them."""
    if num_workers <= WORKERS_PER_CPU:
        return
    if is_one_machine():
        refuse_beyond(num_workers, psutil.virtual_memory().available)
    num_cpus = rlplat.cluster_resources()["CPU"]
    if num_workers > WORKERS_PER_CPU * num_cpus:
        log.warning(
            "warning: %s rollout workers share %g CPU cores: more than about %d a core slow each other down, and each "
            "is a process to start; --num-envs-per-worker adds environments without processes",
            f"{num_workers:,}",
            num_cpus,
            WORKERS_PER_CPU,
        )


def refuse_beyond(num_workers: int, free_bytes: int) -> None:
    if num_workers * WORKER_BYTES > free_bytes:
        raise InfeasibleResources(
            f"{num_workers:,} rollout workers need {num_workers * WORKER_BYTES / 2**30:.1f} GiB at the least "
            f"({WORKER_BYTES >> 20} MiB each, before environments and networks), and {free_bytes / 2**30:.1f} GiB are "
            f"free: set --num-rollout-workers to less than {max(1, free_bytes // WORKER_BYTES):,}"
        )


def wait_for_first(fragments: Sequence[list[ObjectRef]]) -> None:
    """Returns when all are there (or lost), and says every few seconds how many of the workers have got so far."""
    num_started = 0
    while num_started < len(fragments):
        refs = [ref for fragment in fragments for ref in fragment]
        rlplat.wait(refs, num_returns=len(refs), timeout=TELL_PERIOD_S)
        ready = set(rlplat.wait(refs, num_returns=len(refs), timeout=0)[0])
        num_started = sum(ready.issuperset(fragment) for fragment in fragments)
        if num_started < len(fragments):
            log.info("started %d of %d rollout workers", num_started, len(fragments))
