"""Between torch modules and `Weights` (plain numpy, float32, by dotted name)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from rlplat.rl.interfaces import Array, Weights
from rlplat.rl.policies.framework_check import weight_for


def weights_of(module: nn.Module) -> Weights:
    """A copy of the parameters as float32 numpy arrays: never a view into a module that goes on training."""
    return {name: np.array(p.detach().float().cpu().numpy(), order="C") for name, p in module.named_parameters()}


def load_weights(module: nn.Module, weights: Weights) -> None:
    """Copy weights into the module's parameters, whatever their dtype, device and memory order.

    Further names (normaliser statistics) are not the module's business.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(np.array(weight_for(weights, name, parameter.shape))))


def torch_state(own: nn.Module | torch.Generator) -> Weights | Array:
    """A module's weights, a generator's state as bytes."""
    return weights_of(own) if isinstance(own, nn.Module) else own.get_state().numpy().copy()


def load_torch_state(own: nn.Module | torch.Generator, state: Any) -> None:
    """The other way round."""
    if isinstance(own, nn.Module):
        load_weights(own, state)
    else:
        own.set_state(torch.from_numpy(np.array(state, np.uint8)))
