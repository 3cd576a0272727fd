"""Tuning a ConvNet with trials that are data-parallel trainers: `... data_parallel_tuning quick|full`.

30 samples of a learning rate, ASHA, up to 10 epochs each of MNIST-shaped data, two trials at a time. Prints
`figure <trials/s>`, from the start of the interpreter to the end of the experiment: imports and cluster included.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Any

from benchmarks.data_parallel_programs import STARTED

NUM_EPOCHS, BATCH, NUM_TRAIN = 10, 64, 512


def model_creator(config: dict[str, Any]) -> Any:
    from torch import nn

    layers = [nn.Conv2d(1, 3, 3), nn.MaxPool2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(192, 10)]
    return nn.Sequential(*layers)


def data_creator(config: dict[str, Any]) -> Any:
    """28x28, ten classes that a patch of the image gives away."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset, random_split

    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (NUM_TRAIN + 128,), generator=generator)
    images = torch.randn(len(labels), 1, 28, 28, generator=generator)
    images[torch.arange(len(labels)), 0, 2 * labels, 2 * labels] += 8.0
    train, validation = random_split(TensorDataset(images, labels), [NUM_TRAIN, 128], generator)
    return DataLoader(train, BATCH, shuffle=True), DataLoader(validation, BATCH)


def optimizer_creator(model: Any, config: dict[str, Any]) -> Any:
    import torch

    return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)


def loss_creator(config: dict[str, Any]) -> Any:
    from torch import nn

    return nn.CrossEntropyLoss()


def with_rlplat(num_samples: int) -> None:
    import rlplat
    from rlplat import tune
    from rlplat.data_parallel import TorchTrainer

    rlplat.init(num_cpus=2, preload=["rlplat.data_parallel.torch.program"], log_to_driver=False)
    trainable = TorchTrainer.as_trainable(
        model_creator=model_creator,
        data_creator=data_creator,
        optimizer_creator=optimizer_creator,
        loss_creator=loss_creator,
    )
    tune.run(
        trainable,
        {"lr": tune.loguniform(1e-4, 1e-1)},
        metric="val_accuracy",
        num_samples=num_samples,
        scheduler="asha",
        stop={"step": NUM_EPOCHS},
        out=tempfile.mkdtemp(),
        progress=False,
    )
    rlplat.shutdown()


if __name__ == "__main__":
    num_samples = 4 if sys.argv[1] == "quick" else 30
    with_rlplat(num_samples)
    print(f"figure {num_samples / (time.time() - float(os.environ[STARTED]))}", flush=True)
