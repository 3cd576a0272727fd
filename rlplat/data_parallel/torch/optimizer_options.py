"""Options of an optimizer (learning rate, weight decay, ...) where a checkpoint is continued with another config.

fresh = options_of(optimizer)                           # as the function made it; saved beside its state
optimizer.load_state_dict(state)
factors = take_changed(optimizer, made_with, fresh)     # options that the config has changed since
restore_schedule(scheduler, state, factors)

A trial of PBT that copies another's checkpoint is such a case. With the same config nothing differs: all is as saved.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, CyclicLR, SequentialLR

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
        changed = {name: value for name, value in now.items() if name in before and not _is_same(value, before[name])}
        base = "initial_lr" if "initial_lr" in now and "initial_lr" in before else "lr"
        is_scaled = base in changed and float(before[base]) != 0.0
        factor = float(now[base]) / float(before[base]) if is_scaled else 1.0
        if is_scaled and not _is_same(group["lr"], before["lr"]):
            changed["lr"] = group["lr"] * factor
        group.update(changed)
        factors.append(factor)
    return factors


def restore_schedule(scheduler: Any, state: dict[str, Any], factors: list[float]) -> None:
    """Load its state. If a factor is not 1, the learning rates that it starts from change by that of their group, and
    its limits are those that it was made with; between these the optimizer's learning rate is where it was before."""
    if all(factor == 1.0 for factor in factors):
        scheduler.load_state_dict(state)
        return
    parts = _parts(scheduler)
    limits = [{name: getattr(part, name) for name in _limits(part) if hasattr(part, name)} for part in parts]
    scheduler.load_state_dict(state)
    active = _active(scheduler)
    was = list(zip(getattr(active, "base_lrs", ()), _ends(active), strict=False))
    for part, own in zip(parts, limits, strict=True):
        for name in ("base_lrs", "_last_lr"):
            if values := getattr(part, name, None):
                setattr(part, name, [value * factor for value, factor in zip(values, factors, strict=False)])
        for name, limit in own.items():
            setattr(part, name, limit)
    now = list(zip(getattr(active, "base_lrs", ()), _ends(active), strict=False))
    if not any(end for _, end in (*was, *now)):
        return
    groups = active.optimizer.param_groups
    for group, factor, (old_base, old_end), (base, end) in zip(groups, factors, was, now, strict=False):
        if factor and old_base != old_end:
            group["lr"] = end + (group["lr"] / factor - old_end) * (base - end) / (old_base - old_end)
    scheduler._last_lr = active._last_lr = [float(group["lr"]) for group in groups]


def _limits(scheduler: Any) -> tuple[str, ...]:
    """Learning rates that one of torch's is given: the config's, as that of the optimizer is."""
    return ("base_lrs", "max_lrs") if isinstance(scheduler, CyclicLR) else ("eta_min", "min_lrs")


def _parts(scheduler: Any) -> list[Any]:
    """Itself, and those within a SequentialLR or a ChainedScheduler."""
    return [scheduler, *(part for inner in getattr(scheduler, "_schedulers", ()) for part in _parts(inner))]


def _active(scheduler: Any) -> Any:
    """Of a SequentialLR the one whose turn it is; else itself."""
    if not isinstance(scheduler, SequentialLR):
        return scheduler
    return _active(scheduler._schedulers[bisect_right(scheduler._milestones, scheduler.last_epoch)])


def _ends(scheduler: Any) -> list[float]:
    """By group the learning rate at the other end of the schedule, to which it goes in proportion: 0 of most."""
    if isinstance(scheduler, CyclicLR):
        return [float(each) for each in scheduler.max_lrs]
    is_cosine = isinstance(scheduler, CosineAnnealingLR | CosineAnnealingWarmRestarts)
    return [float(scheduler.eta_min) if is_cosine else 0.0] * len(getattr(scheduler, "base_lrs", ()))


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return torch.equal(torch.as_tensor(one).cpu(), torch.as_tensor(other).cpu())
    return bool(one == other)
