"""One cluster for all tests of a file: torch is imported once, in the process that forks the ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import rlplat


@pytest.fixture(scope="module")
def ranks_cluster() -> Iterator[None]:
    rlplat.init(
        num_cpus=4,
        num_gpus=0,
        preload=["rlplat.data_parallel.torch.program", "tests.data_parallel.loops"],
        log_to_driver=False,
    )
    yield
    rlplat.shutdown()
