"""The runtime under a seeded scheduler of events (docs/simulation.md); and proofs that its invariants can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.run import run_seed

NUM_SEEDS, AT_A_TIME = 2_000, 500
_MOST_MUTANT_SEEDS = 400


def _failure(seed: int) -> str:
    outcome = run_seed(seed)
    return f"seed {seed}: {outcome.failure}" if outcome.failure else ""


@pytest.mark.parametrize("first", range(1, NUM_SEEDS, AT_A_TIME))
def test_invariants_hold_for_every_seed(first: int) -> None:
    seeds = range(first, first + AT_A_TIME)
    with get_context("fork").Pool(2) as pool:
        failures = [text for text in pool.imap_unordered(_failure, seeds, chunksize=20) if text]
        pool.close()
        pool.join()
    assert not failures, "replay one with python -m tests.simulation --seed N --trace\n" + "\n".join(
        failures[:10]
    )


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_planted_defect_is_found(mutant: str) -> None:
    with planted(mutant):
        for seed in range(1, _MOST_MUTANT_SEEDS + 1):
            failure = run_seed(seed).failure
            if failure:
                assert failure.startswith(("Violation", "AssertionError")), (
                    f"the plant itself fails: {failure}"
                )
                return
    pytest.fail(f"{mutant}: {_MOST_MUTANT_SEEDS} seeds have not found it")


def test_a_seed_replays_exactly_whatever_the_hashes() -> None:
    """The same story, event by event, in processes that hash strings differently."""
    program = """if True:
        from tests.simulation.run import run_seed
        for seed in (3, 9, 12):
            print(*run_seed(seed, keep_trace=True).trace, sep="\\n")
    """
    stories = []
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        stories.append(done.stdout.splitlines())
    assert len(stories[0]) > 300
    assert stories[0] == stories[1]
