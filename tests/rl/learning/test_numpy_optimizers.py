"""Our numpy optimizers against torch's and against the formulas; blocks and pieces change no number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rlplat.rl.learning import numpy_learning
from rlplat.rl.learning.numpy_learning import Adam, RMSProp, clip_by_global_norm

SHAPES = {"a.weight": (5, 3), "a.bias": (5,), "scale": ()}


def arrays(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: np.array(rng.normal(size=shape), np.float32) for name, shape in SHAPES.items()}


def descend(optimizer: Any, num_steps: int = 20) -> dict[str, np.ndarray]:
    weights = arrays(0)
    for step in range(num_steps):
        optimizer.step(weights, arrays(1 + step), 1e-2 / (1 + step))
    return weights


def descend_in_torch(make: Any, num_steps: int = 20) -> dict[str, np.ndarray]:
    torch = pytest.importorskip("torch")
    parameters = {name: torch.nn.Parameter(torch.from_numpy(array)) for name, array in arrays(0).items()}
    optimizer = make(torch, list(parameters.values()))
    for step in range(num_steps):
        for name, gradient in arrays(1 + step).items():
            parameters[name].grad = torch.from_numpy(gradient)
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step)
        optimizer.step()
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


def assert_close(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    for name in SHAPES:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-5, atol=1e-6, err_msg=name)


def test_adam_equals_torch() -> None:
    theirs = descend_in_torch(lambda torch, p: torch.optim.Adam(p, eps=1e-5, betas=(0.8, 0.99)))
    assert_close(descend(Adam(epsilon=1e-5, betas=(0.8, 0.99))), theirs)


def test_adam_with_weight_decay_is_torchs_adamw() -> None:
    theirs = descend_in_torch(lambda torch, p: torch.optim.AdamW(p, eps=1e-5, weight_decay=0.3))
    assert_close(descend(Adam(epsilon=1e-5, weight_decay=0.3)), theirs)


def test_rmsprop_equals_torch_where_epsilon_is_nothing() -> None:
    """torch adds epsilon to the root, the paper puts it under it."""
    theirs = descend_in_torch(lambda torch, p: torch.optim.RMSprop(p, alpha=0.9, eps=0.0))
    assert_close(descend(RMSProp(decay=0.9, epsilon=1e-30)), theirs)


def test_rmsprop_equals_torch_with_epsilon_outside_the_root() -> None:
    theirs = descend_in_torch(lambda torch, p: torch.optim.RMSprop(p, alpha=0.9, eps=0.1))
    assert_close(descend(RMSProp(decay=0.9, epsilon=0.1, epsilon_inside_root=False)), theirs)


def test_rmsprop_is_the_papers_with_epsilon_under_the_root() -> None:
    expected = {name: array.astype(np.float64) for name, array in arrays(0).items()}
    squares = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(20):
        for name, gradient in arrays(1 + step).items():
            squares[name] = 0.95 * squares[name] + 0.05 * gradient.astype(np.float64) ** 2
            expected[name] -= 1e-2 / (1 + step) * gradient / np.sqrt(squares[name] + 0.1)
    assert_close(descend(RMSProp(decay=0.95, epsilon=0.1)), expected)


@pytest.mark.parametrize("make", [Adam, lambda: RMSProp(decay=0.9)], ids=["adam", "rmsprop"])
def test_statistics_of_what_is_silent_become_zero_and_no_denormals(make: Any) -> None:
    optimizer, weights = make(), arrays(0)
    optimizer.step(weights, arrays(1), 1e-2)
    for _ in range(1_200):
        optimizer.step(weights, {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}, 1e-2)
    for slot in optimizer.get_state()["slots"].values():
        for name, array in slot.items():
            assert ((array == 0) | (np.abs(array) >= np.finfo(np.float32).tiny)).all(), (name, array)


@pytest.mark.parametrize("make", [Adam, RMSProp])
def test_blocks_change_no_number(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = descend(make())
    monkeypatch.setattr(numpy_learning, "BLOCK", 4)
    for name, array in descend(make()).items():
        np.testing.assert_array_equal(array, whole[name])


@pytest.mark.parametrize("make", [Adam, RMSProp])
def test_a_restored_one_goes_on_alike(make: Any) -> None:
    optimizer, restored = make(), make()
    weights = arrays(0)
    optimizer.step(weights, arrays(1), 0.1)
    state, twin = optimizer.get_state(), {name: array.copy() for name, array in weights.items()}
    restored.set_state(state)
    optimizer.step(weights, arrays(2), 0.1)
    optimizer.step(weights, arrays(3), 0.1)
    restored.step(twin, arrays(2), 0.1)  # the state is a copy: the other one's steps did not change it
    restored.step(twin, arrays(3), 0.1)
    for name in SHAPES:
        np.testing.assert_array_equal(weights[name], twin[name])


def test_weights_change_in_place_and_gradients_do_not() -> None:
    weights, gradients = arrays(0), arrays(1)
    before = weights["a.weight"]
    RMSProp().step(weights, gradients, 0.1)
    assert weights["a.weight"] is before and (before != arrays(0)["a.weight"]).all()
    np.testing.assert_array_equal(gradients["a.weight"], arrays(1)["a.weight"])


def test_arrays_that_do_not_match_are_refused() -> None:
    gradients = arrays(1)
    gradients["a.weight"] = gradients["a.weight"].T
    with pytest.raises(AssertionError):
        RMSProp().step(arrays(0), gradients, 0.1)


@pytest.mark.parametrize("max_norm", [0.1, 100.0, math.inf])
def test_clipping(max_norm: float) -> None:
    gradients, before = arrays(1), arrays(1)
    expected = math.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in before.values()))
    assert clip_by_global_norm(gradients, max_norm) == pytest.approx(expected, rel=1e-5)
    scale = min(1.0, max_norm / expected)
    for name in SHAPES:
        np.testing.assert_allclose(gradients[name], before[name] * scale, rtol=1e-5)


def test_a_norm_that_is_not_finite_changes_nothing() -> None:
    gradients = arrays(1)
    gradients["scale"][...] = np.nan
    assert math.isnan(clip_by_global_norm(gradients, 0.1))
    np.testing.assert_array_equal(gradients["a.bias"], arrays(1)["a.bias"])
