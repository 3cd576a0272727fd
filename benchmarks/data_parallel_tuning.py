"""Tuning a ConvNet with trials that are data-parallel trainers: `... data_parallel_tuning PEER quick|full`.

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


def with_ray(num_samples: int) -> None:
    """Ray Tune over Ray Train, as Ray documents it: the trial's function runs a trainer, a callback reports to it."""
    import ray
    from ray import train, tune
    from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
    from ray.tune.integration.ray_train import TuneReportCallback

    def loop(config: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(1)
        model = prepare_model(model_creator(config))
        optimizer, criterion = optimizer_creator(model, config), loss_creator(config)
        loader, validation = (prepare_data_loader(one) for one in data_creator(config))
        for _ in range(NUM_EPOCHS):
            model.train()
            for x, y in loader:
                loss = criterion(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                right = sum(int((model(x).argmax(1) == y).sum()) for x, y in validation)
            train.report({"val_accuracy": right / len(validation.dataset)})

    folder = tempfile.mkdtemp()

    def trial(config: dict[str, Any]) -> None:
        scaling = train.ScalingConfig(num_workers=1)
        run = train.RunConfig(storage_path=folder, callbacks=[TuneReportCallback()])
        TorchTrainer(loop, train_loop_config=config, scaling_config=scaling, run_config=run).fit()

    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    scheduler = tune.schedulers.ASHAScheduler(max_t=NUM_EPOCHS)
    settings = tune.TuneConfig(
        metric="val_accuracy",
        mode="max",
        num_samples=num_samples,
        scheduler=scheduler,
        max_concurrent_trials=2,
    )
    tune.Tuner(
        tune.with_resources(trial, {"CPU": 0.0}),  # the trainer's worker takes the CPU
        param_space={"lr": tune.loguniform(1e-4, 1e-1)},
        tune_config=settings,
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    peer, size = sys.argv[1:3]
    num_samples = 4 if size == "quick" else 30
    {"rlplat": with_rlplat, "ray": with_ray}[peer](num_samples)
    print(f"figure {num_samples / (time.time() - float(os.environ[STARTED]))}", flush=True)
