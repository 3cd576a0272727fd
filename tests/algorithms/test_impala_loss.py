"""IMPALA's loss: known answers, its gradient, and APPO's clip."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from rlplat.algorithms.impala import LOSS_STATS, impala_loss


def columns(**values: list[float]) -> dict[str, Any]:
    given = {"log_probs": [-1.0, -1.0], "advantages": [2.0, -4.0], "targets": [1.0, 3.0], "rhos": [1.0, 0.5]}
    return {name: torch.tensor(each) for name, each in (given | values).items()}


def loss_of(log_probs: Any, values: Any = (0.0, 0.0), given: Any = None, **arguments: Any) -> tuple[Any, Any]:
    plain = {"rho_bar": 1.0, "clip_range": None, "value_coef": 0.5, "entropy_coef": 0.1}
    return impala_loss(
        torch.as_tensor(log_probs),
        torch.tensor([0.5, 1.5]),
        torch.as_tensor(values),
        columns() if given is None else given,
        **(plain | arguments),
    )


def test_by_hand() -> None:
    loss, stats = loss_of([-0.5, -2.0])
    # policy: -(1 * 2 * -0.5 + 0.5 * -4 * -2) / 2; value: (1 + 9) / 2 / 2; entropy: 1; one ratio of two is above 1
    assert stats.tolist() == pytest.approx([-1.5, 2.5, 1.0, 0.5, 0.0])
    assert float(loss) == pytest.approx(-1.5 + 0.5 * 2.5 - 0.1 * 1.0)
    assert len(stats) == len(LOSS_STATS)


def test_the_gradient_takes_importance_weights_for_constants() -> None:
    log_probs = torch.tensor([-0.5, -2.0], requires_grad=True)
    values = torch.zeros(2, requires_grad=True)
    loss_of(log_probs, values)[0].backward()
    # d/dlog pi of -rho * A * log pi, mean over two rows; d/dV of 0.5 * (V - v)^2 / 2
    assert log_probs.grad.tolist() == pytest.approx([-1.0, 1.0])
    assert values.grad.tolist() == pytest.approx([-0.25, -0.75])


def test_a_ratio_of_rounding_does_not_count_as_clipped() -> None:
    shares = [
        float(loss_of([-1.0 + d, -1.0], rho_bar=bar)[1][3])
        for d, bar in ((5e-4, 1.0), (2e-3, 1.0), (0.5, 2.0))
    ]
    assert shares == [0.0, 0.5, 0.0]


def test_with_a_clip_range_it_is_ppos_surrogate() -> None:
    from rlplat.algorithms.ppo import ppo_loss

    log_probs = torch.tensor([-0.5, -2.0], requires_grad=True)
    loss, stats = loss_of(log_probs, clip_range=0.2)
    ours = torch.autograd.grad(loss, log_probs)[0]
    given = columns()
    theirs = {**given, "returns": given["targets"], "values": torch.zeros(2)}
    expected, other = ppo_loss(
        log_probs,
        torch.tensor([0.5, 1.5]),
        torch.zeros(2),
        theirs,
        clip_range=0.2,
        value_coef=0.5,
        entropy_coef=0.1,
        clip_value_loss=False,
    )
    assert loss.item() == pytest.approx(expected.item()) and stats[4].item() == other[4].item() == 1.0
    torch.testing.assert_close(ours, torch.autograd.grad(expected, log_probs)[0])
    assert ours.tolist() == [0.0, 0.0], "both moved beyond the range in the direction of their advantages"
