"""`PreparedOptimizer`: an optimizer that steps once per step of the group: accumulation, loss scaling, clipping."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.optim import Optimizer


class Steps(Protocol):
    """What an optimizer has to know of the training around it."""

    max_gradient_norm: float | None
    scaler: torch.amp.GradScaler | None

    @property
    def sync_gradients(self) -> bool:
        """Whether this batch is the last one of its step."""
        ...

    @property
    def may_clear_gradients(self) -> bool: ...

    def stepped(self) -> None: ...


class PreparedOptimizer(Optimizer):
    """Delegates to the given one; `step` waits for the last batch of a step, and `zero_grad` for that."""

    def __init__(self, inner: Optimizer, steps: Steps) -> None:
        self.inner, self._steps = inner, steps

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.inner.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.inner.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._steps.may_clear_gradients:
            self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("a prepared optimizer takes no closure: loss, ctx.backward(loss), optimizer.step()")
        if not self._steps.sync_gradients:
            return
        scaler = self._steps.scaler
        if scaler is not None:
            scaler.unscale_(self.inner)
        if self._steps.max_gradient_norm is not None:
            parameters = [parameter for group in self.param_groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self._steps.max_gradient_norm)
        if scaler is None:
            self.inner.step()
        else:
            scaler.step(self.inner)
        self._steps.stepped()

    def __repr__(self) -> str:
        return f"PreparedOptimizer({self.inner!r})"

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a prepared optimizer belongs to its rank: send its state_dict()")
