"""`GradientGroup`: processes with the same network sum their gradients before every step (torch.distributed)."""

from __future__ import annotations

import socket

import torch
import torch.distributed as dist
from torch import Tensor, nn


def free_address() -> str:
    """`tcp://127.0.0.1:<port>` that nobody listens on; for the group's members on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class GradientGroup:
    """One member. gloo on CPUs, NCCL on GPUs.

    group = GradientGroup(address, rank=0, num_members=2, device=torch.device("cpu"))
    (loss * share).backward()                      # share: this member's part of the minibatch's rows
    stats = group.sum_gradients(network, stats * share)
    """

    def __init__(self, address: str, rank: int, num_members: int, device: torch.device) -> None:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=address, rank=rank, world_size=num_members)

    def sum_gradients(self, module: nn.Module, stats: Tensor) -> Tensor:
        """Replace every member's gradients by their sum; returns the sum of `stats` (one message for both)."""
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), stats.detach()])
        dist.all_reduce(flat)
        sizes = [gradient.numel() for gradient in gradients]
        parts = flat.split([*sizes, len(stats)])
        for gradient, part in zip(gradients, parts[:-1], strict=True):
            gradient.copy_(part.view_as(gradient))
        return parts[-1]

    def close(self) -> None:
        dist.destroy_process_group()
