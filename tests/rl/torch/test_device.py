"""`linear` by oneDNN beside torch's own, on any CPU that has the operator."""

from __future__ import annotations

from itertools import product

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from rlplat.rl.torch import device  # noqa: E402

SIZES = [1, 2, 3, 15, 16, 17, 31, 64, 65, 256]


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch lacks the operator")
    monkeypatch.setattr(device, "is_mkl_slow", lambda: True)
    monkeypatch.setattr(device, "LEAST_ONEDNN_PRODUCT", 0)


@pytest.mark.parametrize("order", ["out, in", "in, out"])
@pytest.mark.parametrize("rows, num_in, num_out", [*product(SIZES, [1, 3, 17, 64, 256], [1, 6, 16, 65])])
def test_outputs_and_gradients_are_those_of_torch(
    onednn: None, rows: int, num_in: int, num_out: int, order: str
) -> None:
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(rows, num_in), torch.randn(num_in, num_out).t(), torch.randn(num_out)
    if order == "out, in":
        weight = weight.contiguous()
    parts = [part.requires_grad_() for part in (x, weight, bias)]
    outputs = device.linear(*parts)
    assert "OneDNN" in outputs.grad_fn.name()
    expected = F.linear(*parts)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-4)
    gradient = torch.randn(rows, num_out)
    gradients = torch.autograd.grad(outputs, parts, gradient)
    assert gradients[1].is_contiguous() if order == "out, in" else gradients[1].t().is_contiguous()
    torch.testing.assert_close(
        gradients,
        torch.autograd.grad(expected, parts, gradient),
        rtol=1e-5,
        atol=1e-4,
    )


def test_only_gradients_that_are_wanted(onednn: None) -> None:
    x, weight, bias = torch.randn(4, 3), torch.randn(2, 3, requires_grad=True), torch.zeros(2)
    (gradient,) = torch.autograd.grad(device.linear(x, weight, bias).sum(), [weight])
    torch.testing.assert_close(gradient, x.sum(0).expand(2, 3))


def test_rows_of_rows_are_torchs(onednn: None) -> None:
    x, weight, bias = torch.randn(5, 4, 3), torch.randn(2, 3, requires_grad=True), torch.zeros(2)
    device.linear(x, weight, bias).sum().backward()
    torch.testing.assert_close(weight.grad, x.sum((0, 1)).expand(2, 3))


def test_small_products_and_other_cpus_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = torch.randn(16, 256, requires_grad=True), torch.randn(256, 256), torch.zeros(256)
    monkeypatch.setattr(device, "is_mkl_slow", lambda: False)
    assert "OneDNN" not in device.linear(*parts).grad_fn.name()
    monkeypatch.setattr(device, "is_mkl_slow", lambda: True)
    assert "OneDNN" not in device.linear(parts[0][:15], *parts[1:]).grad_fn.name()
    assert "OneDNN" not in device.linear(*(part.double() for part in parts)).grad_fn.name()
