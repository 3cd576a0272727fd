"""Which rank is to blame for what all of them show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

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
from rlplat.data_parallel.torch.context import Context
from rlplat.errors import CheckpointError, ConfigError, NonFiniteError


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


def context_of(precision: str, checkpoint: dict[str, Any] | None = None) -> Any:
    """Of one rank, in this process."""
    settings = RankSettings(0, 1, 1, 0.0, False, 0, 10.0, {"precision": precision})
    return Context(settings, torch.device("cpu"), lambda metrics, state: None, checkpoint)


def test_losses_that_float16s_scaler_omits_for_ever_are_named() -> None:
    ctx = context_of("float16")
    model = nn.Linear(2, 1)
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(30):
        ctx.backward(model(torch.full((1, 2), float("inf") if step else 1.0)).sum())
        optimizer.step()
        optimizer.zero_grad()
        if step == 15:
            ctx.report(step=step)  # a few are the scaler's way of finding its scale
    with pytest.raises(NonFiniteError, match=r"rank 0: the gradients of one step .* scale fell to 0\.00"):
        ctx.report(step=step)


@pytest.mark.parametrize(
    ("optimizer", "text"),
    [
        (lambda model: torch.optim.Adam(model.parameters()), "than Adam: it has no .*betas"),
        (
            lambda model: torch.optim.SGD([model.weight]),
            r"than SGD: it has groups of \[2\] parameters, .* \[1\]",
        ),
    ],
)
def test_a_checkpoint_of_another_optimizer_is_refused(optimizer: Any, text: str) -> None:
    model, ctx = nn.Linear(2, 1), context_of("float32")
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1)
    ctx.prepare(model, sgd, scheduler)
    saved = ctx.state({})
    context_of("float32", saved).prepare(model, sgd)
    with pytest.raises(CheckpointError, match=text):
        context_of("float32", saved).prepare(model, optimizer(model))


def test_all_answered() -> None:
    assert verdict([Answered(), Answered()], 60) is None
