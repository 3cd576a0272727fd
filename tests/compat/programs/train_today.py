"""Ray Train of today: a loop on each rank, checkpoints as directories."""

import os
import tempfile

import torch
from ray import train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def loop(config):
    x = torch.arange(32.0).reshape(32, 1) / 32
    loader = prepare_data_loader(DataLoader(TensorDataset(x, 2 * x), batch_size=4, shuffle=True))
    torch.manual_seed(0)
    model = prepare_model(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in range(2):
        if train.get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if train.get_context().get_world_rank() == 0:
                torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
                checkpoint = Checkpoint.from_directory(folder)
            weight = sum(one.sum().item() for one in model.parameters())
            train.report({"loss": loss.item(), "weight": weight, "batches": len(loader)}, checkpoint=checkpoint)


trainer = TorchTrainer(
    loop,
    train_loop_config={"lr": 0.1},
    scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
    run_config=RunConfig(name="line", storage_path=os.path.abspath("storage")),
)
result = trainer.fit()
with result.checkpoint.as_directory() as folder:
    saved = torch.load(os.path.join(folder, "model.pt"))
# The mean over the ranks is the saved model's: gradients were exchanged.
assert abs(sum(one.sum().item() for one in saved.values()) - result.metrics["weight"]) < 1e-5
print(result.metrics["batches"])
