"""RaySGD's article, 2020: ResNet-18 on CIFAR's shape, with random images."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rlplat.compat.ray as ray
from rlplat.compat.ray.util.sgd.torch import TorchTrainer
from rlplat.compat.ray.util.sgd.torch.resnet import ResNet18


def model_creator(config):
    return ResNet18(config)


def data_creator(config):
    data = TensorDataset(torch.randn(16, 3, 32, 32), torch.randint(10, (16,)))
    return DataLoader(data, batch_size=8), DataLoader(data, batch_size=8)


def optimizer_creator(model, config):
    return torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1))


ray.init(num_cpus=2)
trainer = TorchTrainer(
    model_creator=model_creator,
    data_creator=data_creator,
    optimizer_creator=optimizer_creator,
    loss_creator=nn.CrossEntropyLoss,
    config={"lr": 0.001},
    num_workers=2,
    use_gpu=torch.cuda.is_available(),
    use_tqdm=True,
)
stats = trainer.train()
assert stats["num_samples"] == 16 and stats["train_loss"] > 0
assert "val_loss" in trainer.validate()
torch.save(trainer.state_dict(), "checkpoint.pt")
trainer.shutdown()
print("success!")
