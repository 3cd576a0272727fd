"""`ray.tune.examples.mnist_pytorch`: the network and the loops of Ray's example.

The images are MNIST's where torchvision has them, or drawn digits of the same shape (said on stderr)."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EPOCH_SIZE, TEST_SIZE = 512, 256
_GLYPHS = (
    "757557 262227 716747 716717 557711 747717 747757 711111 757757 757717"  # 3 x 6 pixels, a digit of a row each
).split()


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.fc = nn.Conv2d(1, 3, kernel_size=3), nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(functional.max_pool2d(self.conv1(x), 3))
        return functional.log_softmax(self.fc(x.view(-1, 192)), dim=1)


def train(model: Any, optimizer: Any, train_loader: Any, device: Any = None) -> None:
    model.train()
    for batch, (data, target) in enumerate(train_loader):
        if batch * len(data) > EPOCH_SIZE:
            return
        optimizer.zero_grad()
        functional.nll_loss(model(data.to(device)), target.to(device)).backward()
        optimizer.step()


def test(model: Any, data_loader: Any, device: Any = None) -> float:
    """-> accuracy."""
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for data, target in data_loader:
            if total > TEST_SIZE:
                break
            correct += int((model(data.to(device)).argmax(1) == target.to(device)).sum())
            total += len(target)
    return correct / total


def get_data_loaders(batch_size: int = 64) -> tuple[Any, Any]:
    try:
        from torchvision import datasets, transforms

        as_tensors = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
        root = os.path.expanduser("~/data")
        sets = [datasets.MNIST(root, train=is_train, download=True, transform=as_tensors) for is_train in (True, False)]
    except (ImportError, OSError, RuntimeError) as error:  # no torchvision, no network, no room
        print(f"rlplat: drawn digits in the place of MNIST: {error}", file=sys.stderr)
        sets = [drawn_digits(4096, 0), drawn_digits(512, 1)]
    return tuple(DataLoader(one, batch_size=batch_size, shuffle=True) for one in sets)  # type: ignore[return-value]


def drawn_digits(number: int, seed: int) -> Any:
    """images float32[N, 1, 28, 28], labels int64[N]: digits of pixels, shifted and with noise."""
    rng = np.random.default_rng(seed)
    bits = [[[int(row) >> shift & 1 for shift in (2, 1, 0)] for row in glyph] for glyph in _GLYPHS]
    glyphs = np.kron(np.array(bits, np.float32), np.ones((3, 4), np.float32))  # [10, 18, 12]
    labels = rng.integers(0, 10, number)
    images = rng.normal(0.0, 0.3, (number, 1, 28, 28)).astype(np.float32)
    for image, label, (top, left) in zip(images, labels, rng.integers(0, (11, 17), (number, 2)), strict=True):
        image[0, top : top + 18, left : left + 12] += glyphs[label]
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))


def train_mnist(config: dict[str, Any]) -> None:
    from rlplat.compat.ray import tune

    train_loader, test_loader = get_data_loaders()
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config.get("momentum", 0.9))
    while True:
        train(model, optimizer, train_loader)
        tune.report(mean_accuracy=test(model, test_loader))
