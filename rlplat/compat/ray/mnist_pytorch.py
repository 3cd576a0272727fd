"""`ray.tune.examples.mnist_pytorch`: what the article's program takes from there. The images come by torchvision."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rlplat.errors import UsageError

__path__: list[str] = []  # its modules are found by the package's finder
__all__ = ["ConvNet", "get_data_loaders", "test", "train"]

EPOCH_SIZE, TEST_SIZE = 512, 256


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 3, kernel_size=3)
        self.fc = nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 3))
        return F.log_softmax(self.fc(x.view(-1, 192)), dim=1)


def train(model: nn.Module, optimizer: Any, train_loader: Any, device: Any = None) -> None:
    """One pass over at most EPOCH_SIZE images."""
    device = device or torch.device("cpu")
    model.train()
    for index, (data, target) in enumerate(train_loader):
        if index * len(data) > EPOCH_SIZE:
            return
        optimizer.zero_grad()
        loss = F.nll_loss(model(data.to(device)), target.to(device))
        loss.backward()
        optimizer.step()


def test(model: nn.Module, data_loader: Any, device: Any = None) -> float:
    """The share of right answers on at most TEST_SIZE images."""
    device = device or torch.device("cpu")
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for index, (data, target) in enumerate(data_loader):
            if index * len(data) > TEST_SIZE:
                break
            predicted = model(data.to(device)).argmax(1)
            total += len(target)
            correct += int((predicted == target.to(device)).sum())
    return correct / total


def get_data_loaders(batch_size: int = 64) -> tuple[Any, Any]:
    """MNIST in ~/data, downloaded where it is not there."""
    try:
        from torchvision import datasets, transforms  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise UsageError("get_data_loaders reads MNIST by torchvision: pip install torchvision") from None
    scaled = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    folder = os.path.expanduser("~/data")
    return tuple(  # type: ignore[return-value]
        torch.utils.data.DataLoader(
            datasets.MNIST(folder, train=is_train, download=True, transform=scaled), batch_size, shuffle=True
        )
        for is_train in (True, False)
    )


def __getattr__(name: str) -> Any:
    if name == "mnist_pytorch":
        import sys

        return sys.modules[__name__]
    raise AttributeError(f"rlplat.compat.ray.tune.examples has no {name!r}")
