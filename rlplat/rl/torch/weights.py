"""Between torch modules, their optimizers, and `Weights` (plain numpy, float32, by dotted name)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from rlplat.errors import CheckpointError
from rlplat.rl.interfaces import Weights


def weights_of(module: nn.Module) -> Weights:
    """A copy of the parameters as float32 numpy arrays: never a view into a module that goes on training."""
    return {
        name: np.array(p.detach().float().cpu().numpy(), order="C") for name, p in module.named_parameters()
    }


def load_weights(module: nn.Module, weights: Weights) -> None:
    """Copy weights into the module's parameters, whatever their dtype, device and memory order.

    Further names (normaliser statistics) are not the module's business.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name not in weights:
                raise CheckpointError(
                    f"weights lack {name!r}: they belong to another network than the config describes"
                )
            array = weights[name]
            if array.shape != tuple(parameter.shape):
                raise CheckpointError(
                    f"weights {name!r} have shape {array.shape}, the network of the config {tuple(parameter.shape)}"
                )
            parameter.copy_(torch.from_numpy(np.array(array)))


def optimizer_state_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """Per parameter name what the optimizer keeps for it (Adam: `step`, `exp_avg`, `exp_avg_sq`), as numpy; empty
    before the first step."""
    return {
        name: {
            key: np.array(value.detach().cpu().numpy(), order="C")
            for key, value in optimizer.state[p].items()
        }
        for name, p in module.named_parameters()
        if p in optimizer.state
    }


def load_optimizer_state(
    module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, dict[str, Any]]
) -> None:
    """The inverse of `optimizer_state_of`."""
    for name, parameter in module.named_parameters():
        if name not in state:
            optimizer.state.pop(parameter, None)
            continue
        kept = {key: torch.from_numpy(np.array(value)) for key, value in state[name].items()}
        for key, value in kept.items():
            # Moments take the parameter's memory order and device; the step counter is a scalar of its own.
            kept[key] = (
                torch.empty_like(parameter).copy_(value)
                if value.shape == parameter.shape and key != "step"
                else value.to(parameter.device)
            )
        optimizer.state[parameter] = kept
