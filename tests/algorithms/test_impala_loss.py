"""IMPALA's loss on given V-trace targets: known answers, its gradient, and APPO's clip."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplat.algorithms import impala
from rlplat.rl.sampling.returns import VTrace
from tests.algorithms.losses import Unrolled
from tests.algorithms.losses import loss_of as ppo_loss_of

TRACE = VTrace(*(np.array([each], np.float32) for each in ([1.0, 3.0], [2.0, -4.0], [1.0, 0.5])))
"""targets, advantages, rhos of two rows"""


BEHAVIOUR = torch.tensor([-1.0, -1.0])


@pytest.fixture(autouse=True)
def _given_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impala, "vtrace", lambda *_, **__: TRACE)


def loss_of(log_probs: Any, values: Any = (0.0, 0.0), **settings: Any) -> tuple[Any, dict[str, float]]:
    plain = {"rho_bar": 1.0, "clip_range": None, "value_coef": 0.5, "entropy_coef": 0.1}
    of_vtrace = {"discount": 0.99, "c_bar": 1.0, "trace_lambda": 1.0}
    config = SimpleNamespace(**(plain | of_vtrace | settings))
    given = (torch.as_tensor(log_probs), torch.tensor([0.5, 1.5]), torch.as_tensor(values))
    minibatch: Any = Unrolled(given, BEHAVIOUR)
    loss, stats = impala.impala_loss(None, minibatch, config)
    return loss, {name: number.item() for name, number in stats.items()}


def test_by_hand() -> None:
    loss, stats = loss_of([-0.5, -2.0])
    # policy: -(1 * 2 * -0.5 + 0.5 * -4 * -2) / 2; value: (1 + 9) / 2 / 2; entropy: 1; one ratio of two is above 1
    assert list(stats.values()) == pytest.approx([-1.5, 2.5, 1.0, 0.5, 0.0, 0.0])
    assert float(loss) == pytest.approx(-1.5 + 0.5 * 2.5 - 0.1 * 1.0)


def test_the_gradient_takes_importance_weights_for_constants() -> None:
    log_probs = torch.tensor([-0.5, -2.0], requires_grad=True)
    values = torch.zeros(2, requires_grad=True)
    loss_of(log_probs, values)[0].backward()
    # d/dlog pi of -rho * A * log pi, mean over two rows; d/dV of 0.5 * (V - v)^2 / 2
    assert log_probs.grad.tolist() == pytest.approx([-1.0, 1.0])
    assert values.grad.tolist() == pytest.approx([-0.25, -0.75])


def test_a_ratio_of_rounding_does_not_count_as_clipped() -> None:
    shares = [
        loss_of([-1.0 + d, -1.0], rho_bar=bar)[1]["rho_clipped"] for d, bar in ((5e-4, 1.0), (2e-3, 1.0), (0.5, 2.0))
    ]
    assert shares == [0.0, 0.5, 0.0]


def test_with_a_clip_range_it_is_ppos_surrogate() -> None:
    from rlplat.algorithms.ppo import ppo_loss

    log_probs = torch.tensor([-0.5, -2.0], requires_grad=True)
    loss, stats = loss_of(log_probs, clip_range=0.2)
    ours = torch.autograd.grad(loss, log_probs)[0]
    columns = {name: torch.from_numpy(each[0]) for name, each in TRACE._asdict().items() if name != "rhos"}
    columns |= {"returns": columns.pop("targets"), "log_probs": BEHAVIOUR, "values": None}
    expected, other = ppo_loss_of(
        ppo_loss,
        (log_probs, torch.tensor([0.5, 1.5]), torch.zeros(2)),
        columns,
        clip_range=0.2,
        value_coef=0.5,
        entropy_coef=0.1,
        clip_value_loss=False,
    )
    assert loss.item() == pytest.approx(expected.item())
    assert stats["clip_fraction"] == other["clip_fraction"] == 1.0
    torch.testing.assert_close(ours, torch.autograd.grad(expected, log_probs)[0])
    assert ours.tolist() == [0.0, 0.0], "both moved beyond the range in the direction of their advantages"
