"""`tune.run` with ASHA, 2019; files in the trial's directory. (The images are drawn here: nothing is downloaded.)"""

import os

import torch
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

from rlplat.compat.ray import tune
from rlplat.compat.ray.tune.examples.mnist_pytorch import ConvNet, test, train
from rlplat.compat.ray.tune.schedulers import ASHAScheduler


def get_data_loaders():
    labels = torch.randint(10, (256,), generator=torch.Generator().manual_seed(0))
    images = torch.zeros(256, 1, 28, 28)
    images[torch.arange(256), 0, :, 2 * labels] = 3.0
    return [DataLoader(TensorDataset(images, labels), 32, shuffle=True) for _ in range(2)]


def train_mnist(config):
    train_loader, test_loader = get_data_loaders()
    model = ConvNet()
    optimizer = optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    for i in range(4):
        train(model, optimizer, train_loader)
        acc = test(model, test_loader)
        tune.track.log(mean_accuracy=acc)
        if i % 2 == 0:
            torch.save(model, "./model.pth")


analysis = tune.run(
    train_mnist,
    num_samples=4,
    scheduler=ASHAScheduler(metric="mean_accuracy", mode="max", grace_period=1),
    config={"lr": tune.choice([0.1, 0.01]), "momentum": tune.uniform(0.1, 0.9)},
    verbose=0,
)
best = analysis.get_best_config(metric="mean_accuracy")
assert set(best) == {"lr", "momentum"}
frame = analysis.dataframe(metric="mean_accuracy")
assert len(frame) == 4 and frame.mean_accuracy.max() == max(
    each.mean_accuracy.max() for each in analysis.trial_dataframes.values()
)
assert not os.path.exists("model.pth")
logdir = analysis.get_best_logdir(metric="mean_accuracy", mode="max")
assert isinstance(torch.load(os.path.join(logdir, "model.pth"), weights_only=False), ConvNet)
print("success!")
