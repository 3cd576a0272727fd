"""`ray.util.sgd.torch.resnet`: ResNets of basic blocks for CIFAR's images (He et al. 2015, arXiv 1512.03385, table 1),
float[N, 3, 32, 32] to logits[N, 10]."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

__all__ = ["BasicBlock", "ResNet", "ResNet18", "ResNet34"]


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        outputs = self.expansion * planes
        self.conv1, self.bn1 = _conv(inputs, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = _conv(planes, planes, 3), nn.BatchNorm2d(planes)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    def __init__(self, block: Any, num_blocks: list[int], num_classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(3, 64, 3), nn.BatchNorm2d(64)
        layers, inputs = [], 64
        for planes, number, stride in zip((64, 128, 256, 512), num_blocks, (1, 2, 2, 2), strict=True):
            blocks = []
            for index in range(number):
                blocks.append(block(inputs, planes, stride if index == 0 else 1))
                inputs = planes * block.expansion
            layers.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.linear = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        result: Tensor = self.linear(torch.flatten(F.avg_pool2d(out, 4), 1))
        return result


def ResNet18(_: Any = None) -> ResNet:  # noqa: N802
    """Takes and ignores a config, so that it is a `model_creator` by itself."""
    return ResNet(BasicBlock, [2, 2, 2, 2])


def ResNet34(_: Any = None) -> ResNet:  # noqa: N802
    return ResNet(BasicBlock, [3, 4, 6, 3])
