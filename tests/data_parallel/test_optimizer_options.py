"""A checkpoint that is continued with another config, as PBT does it: the config's options, the checkpoint's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as lr
from torch.optim.lr_scheduler import LambdaLR, SequentialLR, StepLR

from rlplat.data_parallel.rank import RankSettings
from rlplat.data_parallel.settings import TorchOptions
from rlplat.data_parallel.torch.context import Context

SETTINGS = RankSettings(
    rank=0, world_size=1, full_size=1, num_cpus=1, use_gpu=False, seed=0, hang_timeout_s=1,
    options=TorchOptions().model_dump(),
)  # fmt: skip
CONFIG: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def halves(optimizer: Any) -> Any:
    return StepLR(optimizer, step_size=1, gamma=0.5)


def warms_up(optimizer: Any) -> Any:
    return LambdaLR(optimizer, lambda step: min(1.0, step / 4))


def both(optimizer: Any) -> Any:
    return SequentialLR(optimizer, [warms_up(optimizer), halves(optimizer)], [2])


class Rank:
    """A training function's parts, `step` by step."""

    def __init__(
        self,
        config: dict[str, Any],
        make_scheduler: Callable[[Any], Any] | None = None,
        checkpoint: dict[str, Any] | None = None,
        *,
        scheduler_first: bool = False,
    ) -> None:
        self.context = Context(SETTINGS, torch.device("cpu"), lambda *_: None, checkpoint)
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer: Any = torch.optim.SGD(model.parameters(), **config)
        made = make_scheduler(optimizer) if make_scheduler and scheduler_first else None
        if made is not None:
            made, self.model, self.optimizer = self.context.prepare(made, model, optimizer)
        else:
            self.model, self.optimizer = self.context.prepare(model, optimizer)
            made = self.context.prepare(make_scheduler(self.optimizer)) if make_scheduler else None
        self.scheduler: Any = made

    def step(self) -> None:
        self.context.backward(self.model(torch.ones(1, 2)).square().sum())
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.scheduler is not None:
            self.scheduler.step()

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


def test_a_copy_trains_with_its_own_options_and_the_state_of_the_other() -> None:
    source = Rank(CONFIG)
    source.step()
    copy = Rank({"lr": 0.012, "momentum": 0.5, "weight_decay": 0.01}, None, source.context.state({}))
    [group] = copy.optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.012, 0.5, 0.01)
    assert torch.equal(copy.model.weight, source.model.weight)
    buffers = [next(iter(one.optimizer.state.values()))["momentum_buffer"] for one in (copy, source)]
    assert torch.equal(*buffers)
    restarted = Rank(CONFIG | {"lr": 0.012, "momentum": 0.5}, None, copy.context.state({}))
    assert restarted.lr == 0.012


@pytest.mark.parametrize("scheduler_first", [True, False])
@pytest.mark.parametrize("make_scheduler", [halves, warms_up])
def test_a_copy_keeps_its_place_in_the_schedule(make_scheduler: Any, scheduler_first: bool) -> None:
    source = Rank(CONFIG, make_scheduler, scheduler_first=scheduler_first)
    for _ in range(3):
        source.step()
    state = source.context.state({})
    copy = Rank(CONFIG | {"lr": 0.02}, make_scheduler, state, scheduler_first=scheduler_first)
    for _ in range(3):
        source.step()
        copy.step()
        assert copy.lr == pytest.approx(0.2 * source.lr)
    assert copy.scheduler.get_last_lr() == [copy.lr]


def lr_of(optimizer: Any) -> float:
    return float(optimizer.param_groups[0]["lr"])


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "multi-step": lambda o: lr.MultiStepLR(o, [2, 5, 7], 0.5),
    "linear": lambda o: lr.LinearLR(o, 0.3, 1.0, 6),
    "polynomial": lambda o: lr.PolynomialLR(o, 12, 2.0),
    "cosine": lambda o: lr.CosineAnnealingLR(o, 8, eta_min=0.001),
    "cosine to a share": lambda o: lr.CosineAnnealingLR(o, 8, eta_min=lr_of(o) / 10),
    "warm restarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 3, 2, eta_min=0.001),
    "one cycle": lambda o: lr.OneCycleLR(o, 10 * lr_of(o), total_steps=20),
    "one cycle to a constant": lambda o: lr.OneCycleLR(o, 0.5, total_steps=20),
    "cyclic": lambda o: lr.CyclicLR(o, lr_of(o), 10 * lr_of(o), 3, cycle_momentum=False),
    "cyclic to a constant": lambda o: lr.CyclicLR(o, lr_of(o), 0.5, 3, cycle_momentum=False),
    "sequence": lambda o: SequentialLR(
        o, [lr.LinearLR(o, 0.1, 1.0, 3), lr.CosineAnnealingLR(o, 4, eta_min=0.001)], [3]
    ),
    "chain": lambda o: lr.ChainedScheduler([lr.ConstantLR(o, 0.1, 4), lr.ExponentialLR(o, 0.9)]),
}


@pytest.mark.parametrize("num_steps", [0, 2, 4, 9])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_copy_has_the_schedule_of_its_own_learning_rate(name: str, num_steps: int) -> None:
    """As if it had been its own from the start; also beyond the end of a cosine, where it rises again."""
    make_scheduler = SCHEDULES[name]
    source, expected = (Rank(CONFIG | {"lr": lr}, make_scheduler, scheduler_first=True) for lr in (0.1, 0.02))
    for _ in range(num_steps):
        source.step()
        expected.step()
    copy = Rank(CONFIG | {"lr": 0.02}, make_scheduler, source.context.state({}), scheduler_first=True)
    for _ in range(8):
        assert copy.lr == pytest.approx(expected.lr)
        assert copy.scheduler.get_last_lr() == pytest.approx([copy.lr])
        expected.step()
        copy.step()


@pytest.mark.parametrize("scheduler_first", [True, False])
@pytest.mark.parametrize("make_scheduler", [None, halves, warms_up, both, *SCHEDULES.values()])
def test_the_same_config_continues_as_if_nothing_had_been(make_scheduler: Any, scheduler_first: bool) -> None:
    source = Rank(CONFIG, make_scheduler, scheduler_first=scheduler_first)
    for _ in range(3):
        source.step()
    restarted = Rank(CONFIG, make_scheduler, source.context.state({}), scheduler_first=scheduler_first)
    for _ in range(3):
        assert restarted.lr == source.lr
        source.step()
        restarted.step()
    assert torch.equal(restarted.model.weight, source.model.weight)
