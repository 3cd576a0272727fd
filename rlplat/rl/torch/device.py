"""Where, in which precision and by whose kernels torch computes: `learner.device`, `learner.precision`, threads."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

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
    if precision == "float32" or (precision == "auto" and not spec.has_large_images):
        return torch.float32
    if precision == "bfloat16":
        if not spec.has_images:
            raise ConfigError("learner.precision=bfloat16 is for image encoders; use auto or float32 with an MLP")
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


LEAST_ONEDNN_PRODUCT = 1 << 20
"""Multiplications from which on a call of oneDNN pays."""


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x weight^T + bias: float32[N, in], [out, in], [out] -> float32[N, out], by the faster library.

    torch gives products of float32 to MKL, which on an AMD CPU does without AVX-512: half the rate of oneDNN's.
    """
    if (
        not torch.compiler.is_compiling()  # an exported program is of public operators
        and is_mkl_slow()
        and (x.device.type, x.dtype, x.dim()) == ("cpu", torch.float32, 2)
        and x.shape[0] * weight.numel() >= LEAST_ONEDNN_PRODUCT
    ):
        return _OneDNNLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """torch's layer, computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


@cache
def is_mkl_slow() -> bool:
    """Whether this is an AMD CPU with AVX-512, and torch has oneDNN's product of float32 (an operator without a public
    name: without it torch's own way is taken)."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


class _OneDNNLinear(torch.autograd.Function):
    """`linear` and its gradients, three products of oneDNN's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0]
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if of_x else None,
            _gradient_like(weight, gradient, x) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


def _gradient_like(weight: Tensor, gradient: Tensor, x: Tensor) -> Tensor:
    """gradient^T x, in the weight's order of memory: a copy into the other order takes a third as long."""
    if weight.is_contiguous():
        return _product(gradient.t(), x.t())
    return _product(x.t(), gradient.t()).t()


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias"""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
