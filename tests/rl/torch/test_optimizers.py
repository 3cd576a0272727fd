"""Our Adam against torch's, clipping included."""

import numpy as np
import pytest
import torch

from rlplat.rl.torch.optimizers import Adam


def _network() -> torch.nn.Module:
    torch.manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 3))
    return network.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("max_norm", [0.05, 1e6, float("inf")])
def test_equals_torch_optim_adam_with_clip_grad_norm(max_norm: float) -> None:
    ours, theirs = _network(), _network()
    adam = Adam(ours, epsilon=1e-5)
    reference = torch.optim.Adam(theirs.parameters(), eps=1e-5, lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        inputs = torch.randn(8, 2, 4, 4, generator=generator)
        for network in (ours, theirs):
            network.zero_grad()
            network(inputs).pow(2).mean().backward()
        norm = adam.step(1e-2 / (1 + step), max_norm)
        expected = float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm))
        reference.param_groups[0]["lr"] = 1e-2 / (1 + step)
        reference.step()
        assert norm == pytest.approx(expected, rel=1e-6)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_a_norm_that_is_not_finite_changes_nothing() -> None:
    network = _network()
    adam = Adam(network, epsilon=1e-5)
    before = [p.detach().clone() for p in network.parameters()]
    (network(torch.ones(1, 2, 4, 4)).sum() * float("nan")).backward()
    assert not np.isfinite(adam.step(0.1, 0.5))
    for old, new in zip(before, network.parameters(), strict=True):
        assert torch.equal(old, new)
    assert all(float(state["step"]) == 0 for state in adam.get_state().values())


def test_a_restored_one_goes_on_alike() -> None:
    first, second = _network(), _network()
    adam, restored = Adam(first, epsilon=1e-5), Adam(second, epsilon=1e-5)

    def descend(network: torch.nn.Module, optimizer: Adam) -> None:
        optimizer.zero_grad()
        network(torch.ones(2, 2, 4, 4)).pow(2).sum().backward()
        optimizer.step(0.01, 0.5)

    for _ in range(3):
        descend(first, adam)
    second.load_state_dict(first.state_dict())
    restored.set_state(adam.get_state())
    for _ in range(3):
        descend(first, adam)
        descend(second, restored)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
