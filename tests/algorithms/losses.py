"""Losses of on-policy algorithms on numbers that a test makes up: a network that gives these, a minibatch of these."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlplat.rl.sampling.rollout import Minibatch


class Fixed:
    """A network that gives these log-probabilities, entropies and values, whatever the observations."""

    def __init__(self, log_probs: Any, entropies: Any, values: Any) -> None:
        self._values = values
        self._distribution = SimpleNamespace(log_prob=lambda _: log_probs, entropy=lambda: entropies)

    def __call__(self, obs: Any, state: Any, starts: Any) -> tuple[Any, Any, Any]:
        return self._distribution, self._values, None


def loss_of(loss: Any, given: Any, columns: Mapping[str, Any], **settings: Any) -> tuple[Any, dict[str, float]]:
    """(the loss, its numbers by name); given: log_probs, entropies, values of the network that is trained; columns: of
    the minibatch."""
    found, stats = loss(Fixed(*given), Minibatch(None, None, **columns), SimpleNamespace(**settings))
    return found, {name: number.item() for name, number in stats.items()}


class Unrolled:
    """IMPALA's minibatch: one step in N environments, all of which count; log_probs: of the weights that acted."""

    def __init__(self, given: Any, log_probs: Any) -> None:
        self.given, self.log_probs = given, log_probs
        behaviour = log_probs.detach().numpy()[None]
        batch = SimpleNamespace(log_probs=behaviour, valid=np.ones(behaviour.shape, np.bool_))
        self.rollout = SimpleNamespace(batch=batch, steps={})

    def unroll(self, network: Any) -> Any:
        return *self.given, self.log_probs

    def host(self, column: Any) -> Any:
        return column.detach().numpy()[None]

    def rows(self, column: Any) -> Any:
        return self.log_probs.new_tensor(column[0]) if isinstance(column, np.ndarray) else column
