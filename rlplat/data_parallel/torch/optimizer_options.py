"""Options of an optimizer (learning rate, weight decay, ...) where a checkpoint is continued with another config.

fresh = options_of(optimizer)                           # as the function made it; saved beside its state
optimizer.load_state_dict(state)
factors = take_changed(optimizer, made_with, fresh)     # options that the config has changed since
scale_schedule(scheduler, factors)

A trial of PBT that copies another's checkpoint is such a case. With the same config nothing differs: all is as saved.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.optim import Optimizer

Options = list[dict[str, Any]]
"""By group of parameters."""


def options_of(optimizer: Optimizer) -> Options:
    return [
        {name: copy.deepcopy(value) for name, value in group.items() if name not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]


def take_changed(optimizer: Optimizer, made_with: Options, fresh: Options) -> list[float]:
    """Give the restored optimizer the fresh value of every option that was another when the checkpoint's optimizer was
    made -> by what each group's learning rate has changed.

    A learning rate that has moved since it was made keeps its place in its schedule: it changes in proportion.
    """
    factors = []
    for group, before, now in zip(optimizer.param_groups, made_with, fresh, strict=False):
        changed = {
            name: value for name, value in now.items() if name in before and not _is_same(value, before[name])
        }
        base = "initial_lr" if "initial_lr" in now and "initial_lr" in before else "lr"
        is_scaled = base in changed and float(before[base]) != 0.0
        factor = float(now[base]) / float(before[base]) if is_scaled else 1.0
        if is_scaled and not _is_same(group["lr"], before["lr"]):
            changed["lr"] = group["lr"] * factor
        group.update(changed)
        factors.append(factor)
    return factors


def scale_schedule(scheduler: Any, factors: list[float]) -> None:
    """The learning rates that a restored scheduler starts from, and its last ones, times the factor of their group."""
    for name in ("base_lrs", "_last_lr"):
        if values := getattr(scheduler, name, None):
            setattr(scheduler, name, [value * factor for value, factor in zip(values, factors, strict=False)])
    for inner in getattr(scheduler, "_schedulers", ()):  # of a SequentialLR, a ChainedScheduler
        scale_schedule(inner, factors)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return torch.equal(torch.as_tensor(one).cpu(), torch.as_tensor(other).cpu())
    return bool(one == other)
