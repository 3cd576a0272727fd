"""Creator functions and an operator for the tests; imported in the processes of the ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rlplat.data_parallel import TrainingOperator


def model_creator(config: dict[str, Any]) -> Any:
    return nn.Linear(4, 3)


def data_creator(config: dict[str, Any]) -> Any:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(45, 4, generator=generator)
    data = TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
    return DataLoader(data, config["batch"], shuffle=True), DataLoader(data, config["batch"])


def optimizer_creator(model: Any, config: dict[str, Any]) -> Any:
    return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)


def scheduler_creator(optimizer: Any, config: dict[str, Any]) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def returns_nothing(config: dict[str, Any]) -> None:
    nn.Linear(4, 3)


class Operator(TrainingOperator):
    """Everything in `setup`; counts what it has seen, and may kill its process on the way."""

    num_seen = 0

    def setup(self, config: dict[str, Any]) -> None:
        model = model_creator(config)
        self.model, self.optimizer, self.criterion = self.register(
            models=model, optimizers=optimizer_creator(model, config), criterion=nn.CrossEntropyLoss()
        )
        train, validation = data_creator(config)
        self.register_data(train_loader=train, validation_loader=validation)

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        self.num_seen += 1
        marker = Path(self.config["marker"])
        if self.world_rank == 1 and self.epoch == 1 and batch_info["batch_idx"] == 1 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_batch(batch, batch_info) | {"twice": 2.0}

    def state_dict(self) -> dict[str, Any]:
        return {"num_seen": self.num_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_seen = state["num_seen"]


ALL = {
    "model_creator": model_creator,
    "data_creator": data_creator,
    "optimizer_creator": optimizer_creator,
    "loss_creator": nn.CrossEntropyLoss,
    "scheduler_creator": scheduler_creator,
}
