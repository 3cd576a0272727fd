"""`ray.util.sgd.torch.resnet`: the ResNets for CIFAR of He et al. 2016, with 3x3 first convolutions."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or before != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.residual(x) + self.shortcut(x)
        return out.relu()


class ResNet(nn.Module):
    def __init__(self, num_blocks: list[int], num_classes: int = 10) -> None:
        super().__init__()
        channels, stages = 64, list[nn.Module]()
        for width, count, stride in zip((64, 128, 256, 512), num_blocks, (1, 2, 2, 2), strict=True):
            for index in range(count):
                stages.append(Block(channels, width, stride if index == 0 else 1))
                channels = width
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.stages, self.linear = nn.Sequential(*stages), nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: float[B, 3, H, W] -> float[B, num_classes]."""
        out: Tensor = self.linear(self.stages(self.stem(x)).mean((2, 3)))
        return out


def ResNet18(config: Any = None) -> ResNet:
    """config: of a model_creator; not used."""
    return ResNet([2, 2, 2, 2])


def ResNet34(config: Any = None) -> ResNet:
    return ResNet([3, 4, 6, 3])
