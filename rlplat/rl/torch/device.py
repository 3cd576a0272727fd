"""Where and in which precision torch computes: `learner.device`, `learner.precision`, threads."""

from __future__ import annotations

import torch

from rlplat.errors import ConfigError
from rlplat.rl.policies.spec import PolicySpec, cpu_share


def resolve_device(device: str, spec: PolicySpec) -> torch.device:
    """`auto`: for image encoders the GPU that the runtime gave this process, if any; else the CPU."""
    if device == "auto":
        return torch.device("cuda" if spec.has_images and torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "learner.device=cuda, but torch sees no GPU in the learner's process; set learner.num_gpus=1 so that it is "
            "given one, or learner.device=auto"
        )
    return torch.device(device)


def resolve_precision(precision: str, spec: PolicySpec, device: torch.device) -> torch.dtype:
    """The dtype of an encoder's arithmetic (parameters, heads and losses are float32 always).

    `auto`: bfloat16 for convolutions where the hardware multiplies it natively, float32 for MLPs, which are too small
    to gain anything.
    """
    if precision == "float32" or (precision == "auto" and not spec.has_images):
        return torch.float32
    if precision == "bfloat16":
        if not spec.has_images:
            raise ConfigError(
                "learner.precision=bfloat16 is for image encoders; use auto or float32 with an MLP"
            )
        return torch.bfloat16
    return torch.bfloat16 if has_fast_bfloat16(device) else torch.float32


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 natively (CPU: AVX512_BF16 or AMX; GPU: Ampere and later)."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    if device.type != "cpu":
        return False
    # torch has no public name for these two yet; without them: the slower, always right answer.
    flags = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, flag, lambda: False)()) for flag in flags)


def use_threads(num_threads: int, spec: PolicySpec) -> None:
    """Threads of torch in this process; 0: one for an MLP (kernels are over before threads wake), else all CPUs."""
    if num_threads == 0:
        num_threads = 1 if not spec.has_images else cpu_share(1)
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)
