"""Tuning a ConvNet, 30 learning rates, ASHA, two trials at a time: `... data_parallel_tuning PEER ROW SIZE`.

Up to 10 epochs of MNIST-shaped data for each. ROW tune: a trial is a data-parallel trainer with one rank, that of
`TorchTrainer.as_trainable`, or Ray Train's inside of a trial of Ray Tune. ROW tune_loop: a trial is a plain loop in its
own process. SIZE: quick or full. Prints `figure <trials/s>`, from the start of the interpreter to the end of the
experiment: imports and cluster included.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.data_parallel_programs import STARTED

NUM_EPOCHS, BATCH, NUM_TRAIN = 10, 64, 512
RANGE = (1e-4, 1e-1)
"""Of the learning rate, drawn log-uniformly."""
REDUCTION_FACTOR = 3
"""Of ASHA: rungs at 1, 3 and 9 epochs."""


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


def accuracies(config: dict[str, Any]) -> Iterator[float]:
    """A plain loop: the accuracy of each epoch."""
    import torch

    torch.set_num_threads(1)
    train, validation = data_creator(config)
    model, criterion = model_creator(config), loss_creator(config)
    optimizer = optimizer_creator(model, config)
    for _ in range(NUM_EPOCHS):
        for images, labels in train:
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()
        with torch.no_grad():
            hits = [(model(images).argmax(1) == labels).float().mean().item() for images, labels in validation]
        yield sum(hits) / len(hits)


def loop_on_rlplat(config: dict[str, Any], report: Any) -> None:
    for accuracy in accuracies(config):
        report(val_accuracy=accuracy)


def with_rlplat(row: str, num_samples: int) -> None:
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
        loop_on_rlplat if row == "tune_loop" else trainable,
        {"lr": tune.loguniform(*RANGE)},
        metric="val_accuracy",
        num_samples=num_samples,
        scheduler={"name": "asha", "max_progress": NUM_EPOCHS, "reduction_factor": REDUCTION_FACTOR},
        stop={"step": NUM_EPOCHS},
        out=tempfile.mkdtemp(),
        progress=False,
    )
    rlplat.shutdown()


def with_ray(row: str, num_samples: int) -> None:
    """Trials in reused actors, Ray's table and loggers off."""
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1")
    import ray
    from ray import train as ray_train
    from ray import tune
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback
    from ray.tune.schedulers import ASHAScheduler

    folder = tempfile.mkdtemp()

    def loop(config: dict[str, Any]) -> None:
        for accuracy in accuracies(config):
            tune.report({"val_accuracy": accuracy})

    def loop_of_rank(config: dict[str, Any]) -> None:
        for accuracy in accuracies(config):
            ray_train.report({"val_accuracy": accuracy})

    def trainer(config: dict[str, Any]) -> None:
        run = ray_train.RunConfig(storage_path=folder, callbacks=[TuneReportCallback()])
        TorchTrainer(
            loop_of_rank,
            train_loop_config=config,
            scaling_config=ray_train.ScalingConfig(num_workers=1),
            run_config=run,
        ).fit()

    # A trial that only waits for its trainer has a CPU by Ray's book as well.
    ray.init(num_cpus=2 if row == "tune_loop" else 4, log_to_driver=False, include_dashboard=False)
    results = tune.Tuner(
        loop if row == "tune_loop" else trainer,
        param_space={"lr": tune.loguniform(*RANGE)},
        tune_config=tune.TuneConfig(
            metric="val_accuracy",
            mode="max",
            num_samples=num_samples,
            scheduler=ASHAScheduler(max_t=NUM_EPOCHS, reduction_factor=REDUCTION_FACTOR),
            max_concurrent_trials=2,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()
    if results.num_errors:
        raise RuntimeError(f"{results.num_errors} trials failed: {results.errors[0]}")
    ray.shutdown()


if __name__ == "__main__":
    peer, row, size = sys.argv[1:4]
    num_samples = 2 if size == "quick" else 30
    {"rlplat": with_rlplat, "ray": with_ray}[peer](row, num_samples)
    print(f"figure {num_samples / (time.time() - float(os.environ[STARTED]))}", flush=True)
