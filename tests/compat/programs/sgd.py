"""RaySGD of 2020: creator functions, ResNet18, an operator of one's own."""

import ray
import torch
from ray.util.sgd import TorchTrainer
from ray.util.sgd.torch import TrainingOperator
from ray.util.sgd.torch.resnet import ResNet18
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def data_creator(config):
    images, labels = torch.randn(16, 3, 8, 8), torch.randint(10, (16,))
    return DataLoader(TensorDataset(images, labels), batch_size=config["batch"]), DataLoader(
        TensorDataset(images, labels), batch_size=config["batch"]
    )


def optimizer_creator(model, config):
    return torch.optim.SGD(model.parameters(), lr=config.get("lr", 1e-4))


def scheduler_creator(optimizer, config):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[150, 250, 350], gamma=0.1)


class Operator(TrainingOperator):
    def train_batch(self, batch, batch_info):
        features, target = batch
        loss = self.criterion(self.model(features.to(self.device)), target.to(self.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"train_loss": loss.item(), "num_samples": len(target)}


ray.init(num_cpus=2)
trainer = TorchTrainer(
    model_creator=ResNet18,
    data_creator=data_creator,
    optimizer_creator=optimizer_creator,
    loss_creator=nn.CrossEntropyLoss,
    scheduler_creator=scheduler_creator,
    training_operator_cls=Operator,
    initialization_hook=lambda: print("initialized"),
    config={"lr": 0.01, "batch": 4},
    num_replicas=1,
    use_tqdm=True,
)
stats = trainer.train(num_steps=1, info={"note": 1})
assert stats["train_loss"] > 0 and stats["num_samples"] == 4, stats
assert "val_accuracy" in trainer.validate(num_steps=1)
trainer.save("model.pt")
trainer.load_state_dict(torch.load("model.pt"))
trainer.shutdown(force=True)
print("success!")
