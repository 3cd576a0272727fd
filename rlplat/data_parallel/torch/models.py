"""`PreparedModel`: a module in its group: DistributedDataParallel or FSDP2, autocast, compiled."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from rlplat.data_parallel.settings import TorchOptions
from rlplat.data_parallel.torch.states import decode, encode
from rlplat.errors import CheckpointError, ConfigError

_AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class PreparedModel:
    def __init__(
        self,
        module: nn.Module,
        options: TorchOptions,
        device: torch.device,
        world_size: int,
        optimizers: Sequence[Optimizer] = (),
        saved: dict[str, Any] | None = None,
    ) -> None:
        """optimizers: made on this module's parameters. saved: what `state` returned."""
        self.module = module.to(device)
        self.is_sharded = options.sharding == "full" and world_size > 1
        self._sync = True
        self._has_checked = options.find_unused_parameters
        if saved is not None:
            self._load(decode(saved))
        if options.precision in _AUTOCAST:
            self._autocast(device, _AUTOCAST[options.precision])
        self.wrapped: Any = module
        """What the training function calls."""
        if self.is_sharded:
            _shard(module, device, world_size, optimizers)
        elif world_size > 1:
            self.wrapped = nn.parallel.DistributedDataParallel(
                module,
                device_ids=[device] if device.type == "cuda" else None,
                find_unused_parameters=options.find_unused_parameters,
                gradient_as_bucket_view=True,
            )
        self._synced = self.wrapped
        if options.compile:
            self.wrapped = torch.compile(self.wrapped)

    def set_sync(self, sync: bool) -> None:
        """Whether the next backward pass exchanges gradients."""
        if sync == self._sync:
            return
        self._sync = sync
        if self.is_sharded:
            self._synced.set_requires_gradient_sync(sync)
        elif self._synced is not self.module:
            self._synced.require_backward_grad_sync = sync

    def check_used(self, rank: int) -> None:
        """After the first whole step: every parameter has a gradient, or the exchange of them would stall."""
        if self._has_checked:
            return
        self._has_checked = True
        unused = [name for name, one in self.module.named_parameters() if one.requires_grad and one.grad is None]
        if unused and self._synced is not self.module and not self.is_sharded:
            names = ", ".join(unused[:5]) + (", ..." if len(unused) > 5 else "")
            raise ConfigError(
                f"rank {rank}: {len(unused)} parameters got no gradient in the first step: {names}. "
                "Use them in forward(), freeze them by requires_grad_(False), or set find_unused_parameters=True"
            )

    def _autocast(self, device: torch.device, dtype: torch.dtype) -> None:
        forward = self.module.forward

        @functools.wraps(forward)
        def in_precision(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device.type, dtype):
                result = forward(*args, **kwargs)
            return _as_float32(result)

        self.module.forward = in_precision

    def plain(self) -> nn.Module:
        """A copy on the CPU, as it was given."""
        if self.is_sharded:
            raise ConfigError("the model is divided among the ranks: build it again and load state_dict()")
        autocasting = self.module.__dict__.pop("forward", None)
        copied = copy.deepcopy(self.module).cpu()
        if autocasting is not None:
            self.module.forward = autocasting
        return copied

    def state(self) -> dict[str, Any]:
        """Encoded. Where it is sharded, a collective call, and empty but on rank 0."""
        if not self.is_sharded:
            return encode(self.module.state_dict())
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return encode(get_model_state_dict(self.module, options=whole))

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Of an optimizer of this model; as `state`."""
        if not self.is_sharded:
            return encode(optimizer.state_dict())
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return encode(get_optimizer_state_dict(self.module, optimizer, options=whole))

    def load_optimizer(self, optimizer: Optimizer, saved: dict[str, Any]) -> None:
        state = decode(saved)
        if not self.is_sharded:
            _check_kind(optimizer, state)
            optimizer.load_state_dict(state)
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

        whole = StateDictOptions(full_state_dict=True)
        set_optimizer_state_dict(self.module, optimizer, state, options=whole)

    def _load(self, state: dict[str, Any]) -> None:
        try:
            self.module.load_state_dict(state)
        except RuntimeError as error:
            lines = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
            raise CheckpointError(
                f"the checkpoint is of another model than {type(self.module).__name__}: {lines[0]}"
                + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else "")
                + ": build the same model, or begin again in another directory"
            ) from None


def _check_kind(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """CheckpointError for the state of an optimizer of another class or of other parameters, which torch loads in part,
    to fail in the first step."""
    there, saved = optimizer.param_groups, state["param_groups"]
    sizes = [[len(group["params"]) for group in groups] for groups in (saved, there)]
    if sizes[0] != sizes[1]:
        what = f"groups of {sizes[0]} parameters, and this one groups of {sizes[1]}"
    elif lacking := optimizer.defaults.keys() - saved[0].keys():
        if not saved[0].keys() - there[0].keys() - {"initial_lr"}:
            return  # of the same class in an older version of torch
        what = f"no {', '.join(sorted(lacking))}"
    else:
        return
    raise CheckpointError(
        f"the checkpoint is of another optimizer than {type(optimizer).__name__}: it has {what}: build the same "
        "optimizer, or begin again in another directory"
    )


def _as_float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _as_float32(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_as_float32(inner) for inner in value)
    return value


def _shard(module: nn.Module, device: torch.device, world_size: int, optimizers: Sequence[Optimizer]) -> None:
    """FSDP2 in place: each block of a ModuleList or Sequential by itself, then the rest; the optimizers get the new
    parameters."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    names = {id(parameter): name for name, parameter in module.named_parameters()}
    mesh = init_device_mesh(device.type, (world_size,))
    for parent in module.modules():
        if isinstance(parent, (nn.ModuleList, nn.Sequential)) and parent is not module:
            for block in parent:
                if any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    now = dict(module.named_parameters())
    for optimizer in optimizers:
        if optimizer.state:
            raise ConfigError("sharding='full': give the optimizer to ctx.prepare before its first step")
        for group in optimizer.param_groups:
            group["params"] = [now[names[id(one)]] if id(one) in names else one for one in group["params"]]
