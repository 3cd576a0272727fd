"""Which rank is to blame for what all of them show."""

from __future__ import annotations

import pytest

from rlplat.data_parallel.failures import Answered, Cut, Died, Outcome, Raised, RanksLost, Silent, verdict
from rlplat.errors import ConfigError


def test_a_users_error_comes_before_the_broken_connections_that_it_causes() -> None:
    error = ValueError("mine")
    assert verdict([Cut(3, "closed"), Raised(error)], 60) is error


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        ([Cut(3, "closed"), Died("SIGKILL")], "rank 1: SIGKILL"),
        (
            [Silent(), Cut(3, "timed out")],
            "rank 0 hangs: no sign of it for 60 s, while rank 1 waited in vain",
        ),
        (
            [Cut(3, "reset"), Cut(3, "reset")],
            "between the ranks broke: rank 0 waited in vain in step 4: reset",
        ),
    ],
)
def test_processes_that_are_lost(outcomes: list[Outcome], text: str) -> None:
    failure = verdict(outcomes, 60)
    assert isinstance(failure, RanksLost)
    assert text in str(failure)


def test_a_rank_that_stopped_early_is_named() -> None:
    failure = verdict([Cut(10, "timed out"), Answered(10, "returned from its function")], 60)
    assert isinstance(failure, ConfigError)
    assert "rank 1 returned from its function after 10 steps, and rank 0 waited in vain in step 11" in str(
        failure
    )


def test_all_answered() -> None:
    assert verdict([Answered(), Answered()], 60) is None
