"""Our Adam and RMSProp against torch's, clipping included."""

from typing import Any

import numpy as np
import pytest
import torch

from rlplat.rl.learning import numpy_learning
from rlplat.rl.torch.optimizers import Adam, RAdam, RMSProp


def _network() -> torch.nn.Module:
    torch.manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 3))
    return network.to(memory_format=torch.channels_last)


def _backward(generator: torch.Generator, *networks: torch.nn.Module) -> None:
    """Equal gradients in all of them."""
    inputs = torch.randn(8, 2, 4, 4, generator=generator)
    for network in networks:
        network.zero_grad()
        network(inputs).pow(2).mean().backward()


@pytest.mark.parametrize("max_norm", [0.05, 1e6, float("inf")])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_equals_torch_optim_adam_with_clip_grad_norm(max_norm: float, weight_decay: float) -> None:
    ours, theirs = _network(), _network()
    adam = Adam(ours, epsilon=1e-5, weight_decay=weight_decay)
    reference = torch.optim.AdamW(theirs.parameters(), eps=1e-5, lr=1e-2, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        _backward(generator, ours, theirs)
        norms = adam.step(1e-2 / (1 + step), max_norm)
        expected = float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm))
        reference.param_groups[0]["lr"] = 1e-2 / (1 + step)
        reference.step()
        assert norms[-1].item() == pytest.approx(expected, rel=1e-6)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("max_norm", [0.05, float("inf")])
def test_radam_equals_torchs(max_norm: float) -> None:
    """Also the first five steps, which are not rectified. Their epsilon is in another place: it is left out."""
    ours, theirs = _network(), _network()
    radam, reference = RAdam(ours, epsilon=1e-20), torch.optim.RAdam(theirs.parameters(), eps=1e-20, lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        _backward(generator, ours, theirs)
        radam.step(1e-2, max_norm)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        reference.step()
        if step in (3, 8):  # as after a resume
            state = radam.get_state()
            radam = RAdam(ours, epsilon=1e-20)
            radam.set_state(state)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_the_critics_parameters_have_a_rate_of_their_own() -> None:
    def network() -> torch.nn.Module:
        torch.manual_seed(3)
        return torch.nn.ModuleDict({"critic_head": torch.nn.Linear(2, 1), "actor_head": torch.nn.Linear(2, 1)})

    ours, slow, fast = network(), network(), network()
    one, *others = (Adam(each, epsilon=1e-5) for each in (ours, slow, fast))
    for _ in range(3):
        for each in (ours, slow, fast):
            each.zero_grad()
            sum((head(torch.ones(4, 2)) - 3.0).square().mean() for head in each.values()).backward()
        one.step(1e-3, 0.5, 1e-2)
        for optimizer, rate in zip(others, (1e-3, 1e-2), strict=True):
            optimizer.step(rate, 0.5)
    torch.testing.assert_close(ours["actor_head"].weight[0], slow["actor_head"].weight[0])
    assert not torch.equal(slow["critic_head"].weight, fast["critic_head"].weight)
    # The clipping is by the norm of all gradients, which differ a little once the slow head lags behind.
    torch.testing.assert_close(ours["critic_head"].weight, fast["critic_head"].weight, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("inside_root", [False, True])
@pytest.mark.parametrize("max_norm", [0.05, float("inf")])
def test_rmsprop_equals_the_numpy_one_and_outside_the_root_torchs(inside_root: bool, max_norm: float) -> None:
    ours, theirs = _network(), _network()
    rmsprop = RMSProp(ours, decay=0.9, epsilon=1e-3, epsilon_inside_root=inside_root)
    numpys = numpy_learning.RMSProp(decay=0.9, epsilon=1e-3, epsilon_inside_root=inside_root)
    torchs = torch.optim.RMSprop(theirs.parameters(), lr=1e-2, alpha=0.9, eps=1e-3)
    weights = {name: np.array(p.detach().numpy(), order="C") for name, p in ours.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    for step in range(5):
        _backward(generator, ours, theirs)
        gradients = {name: np.array(p.grad.numpy(), order="C") for name, p in ours.named_parameters()}
        norm = float(rmsprop.step(1e-2, max_norm)[-1])
        assert numpy_learning.clip_by_global_norm(gradients, max_norm) == pytest.approx(norm, rel=1e-5)
        numpys.step(weights, gradients, 1e-2)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        torchs.step()
        if step == 2:  # as after a resume
            restored = RMSProp(ours, decay=0.9, epsilon=1e-3, epsilon_inside_root=inside_root)
            state: dict[str, Any] = rmsprop.get_state()
            if inside_root:  # of a version that did not count the steps
                state = {name: {"square_avg": each["square_avg"]} for name, each in state.items()}
            restored.set_state(state)
            rmsprop = restored
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), weights[name], rtol=1e-4, atol=1e-6)
        if not inside_root:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda network: Adam(network, epsilon=1e-5),
        lambda network: RMSProp(network, decay=0.9, epsilon=1e-5, epsilon_inside_root=False),
        lambda network: RAdam(network, epsilon=1e-5),
    ],
    ids=["adam", "rmsprop", "radam"],
)
def test_a_norm_that_is_not_finite_changes_nothing(make: Any) -> None:
    network = _network()
    optimizer = make(network)
    before = [p.detach().clone() for p in network.parameters()]
    (network(torch.ones(1, 2, 4, 4)).sum() * float("nan")).backward()
    kept = optimizer.get_state()
    assert not optimizer.step(0.1, 0.5)[-1].isfinite()
    for old, new in zip(before, network.parameters(), strict=True):
        assert torch.equal(old, new)
    for name, state in optimizer.get_state().items():
        for key, array in state.items():
            np.testing.assert_array_equal(array, kept[name][key] + (key == "calls"))


@pytest.mark.parametrize("make", [Adam, RAdam])
def test_a_restored_one_goes_on_alike(make: Any) -> None:
    first, second = _network(), _network()
    adam, restored = make(first, epsilon=1e-5), make(second, epsilon=1e-5)

    def descend(network: torch.nn.Module, optimizer: Adam) -> None:
        optimizer.zero_grad()
        network(torch.ones(2, 2, 4, 4)).pow(2).sum().backward()
        optimizer.step(0.01, 0.5)

    for _ in range(3):
        descend(first, adam)
    (first(torch.ones(1, 2, 4, 4)).sum() * float("nan")).backward()
    adam.step(0.01, 0.5)  # changes nothing
    second.load_state_dict(first.state_dict())
    restored.set_state(adam.get_state())
    for _ in range(3):
        descend(first, adam)
        descend(second, restored)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_moments_decay_to_zero_and_not_to_denormals(optimizer: str, num_threads: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        network = torch.nn.Linear(200, 200)  # so large that torch shares it out
        rmsprop = {"decay": 0.9, "epsilon": 1e-5, "epsilon_inside_root": False}
        optimize = Adam(network, epsilon=1e-8) if optimizer == "adam" else RMSProp(network, **rmsprop)  # type: ignore[arg-type]
        gradient = 1e-32 if optimizer == "adam" else 1e-16  # whose moment is 1e-33
        for step in range(115):  # it is small enough at step 100, and would be a denormal from step 108 on
            for parameter in network.parameters():
                parameter.grad = torch.full_like(parameter, 0.0 if step else gradient)
            optimize.step(1e-3)
            moment = optimize.get_state()["weight"]["exp_avg" if optimizer == "adam" else "square_avg"]
            assert not np.any((moment != 0.0) & (np.abs(moment) < np.finfo(np.float32).tiny)), step
            assert step or np.all(moment)
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(moment, np.zeros((200, 200)))
    assert float(torch.full((64,), 1e-38).mul(0.1).sum()) > 0.0  # elsewhere such numbers are what they were
