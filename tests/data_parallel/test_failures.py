"""Which rank is to blame for what all of them show."""

from __future__ import annotations

from typing import Any

import pytest

from rlplat.data_parallel import TrainingOperator
from rlplat.data_parallel.failures import (
    Answered,
    CollectiveFailed,
    Cut,
    Died,
    Outcome,
    Raised,
    RanksLost,
    Silent,
    verdict,
)
from rlplat.data_parallel.rank import Rank, RankSettings
from rlplat.errors import ConfigError


def test_a_users_error_comes_before_the_broken_connections_that_it_causes() -> None:
    error = ValueError("mine")
    assert verdict([Cut("closed", 3), Raised(error)], 60) is error


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        ([Cut("closed", 3), Died("SIGKILL")], "rank 1: SIGKILL"),
        (
            [Silent(), Cut("timed out", 3)],
            "rank 0 hangs: no sign of it for 60 s, while rank 1 waited in vain",
        ),
        (
            [Cut("reset", 3), Cut("reset", 3)],
            "between the ranks broke: rank 0 waited in vain in step 4: reset",
        ),
    ],
)
def test_processes_that_are_lost(outcomes: list[Outcome], text: str) -> None:
    failure = verdict(outcomes, 60)
    assert isinstance(failure, RanksLost)
    assert text in str(failure)


def test_a_rank_that_stopped_early_is_named() -> None:
    cut = Cut("timed out", 10, "Repeat the data")
    failure = verdict([cut, Answered(10, "returned from its function")], 60)
    assert isinstance(failure, ConfigError)
    told = "rank 1 returned from its function after 10 steps, and rank 0 waited in vain in step 11 for it: "
    assert str(failure).startswith(told)
    assert str(failure).endswith(". Repeat the data")
    assert str(verdict([cut, Answered()], 60)).startswith("rank 1 returned, and rank 0 waited")


def test_a_broken_connection_while_ranks_set_up_is_not_taken_for_an_error_of_this_rank() -> None:
    rank = Rank("rlplat.data_parallel.torch.program:TorchProgram", RankSettings(0, 2, 2, 0.0, False, 0, 10.0))

    class Broken(TrainingOperator):
        def setup(self, config: dict[str, Any]) -> None:
            raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")

    with pytest.raises(CollectiveFailed, match="closed by peer"):
        rank.call("set_up", Broken, {}, {}, {}, None)


def test_all_answered() -> None:
    assert verdict([Answered(), Answered()], 60) is None
