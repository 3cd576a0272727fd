"""Tune of 2020: tune.run, ASHA, track.log, files in the trial's directory, the analysis."""

import os
from functools import partial

import numpy as np
import torch
import torch.optim as optim
from ray import tune
from ray.tune import CLIReporter
from ray.tune.examples.mnist_pytorch import ConvNet, get_data_loaders, test, train
from ray.tune.schedulers import ASHAScheduler


def train_mnist(config):
    train_loader, test_loader = get_data_loaders()
    model = ConvNet()
    optimizer = optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    for i in range(2):
        train(model, optimizer, train_loader)
        acc = test(model, test_loader)
        tune.track.log(mean_accuracy=acc)
        if i % 5 == 0:
            torch.save(model.state_dict(), "./model.pth")


analysis = tune.run(
    train_mnist,
    num_samples=3,
    scheduler=ASHAScheduler(metric="mean_accuracy", mode="max", grace_period=1),
    config={
        "lr": tune.sample_from(lambda spec: 10 ** (-3 * np.random.rand())),
        "momentum": tune.uniform(0.1, 0.9),
    },
)
print("Best config:", sorted(analysis.get_best_config(metric="mean_accuracy", mode="max")))
frame = analysis.dataframe(metric="mean_accuracy")
assert len(frame) == 3 and frame.mean_accuracy.max() == max(
    d.mean_accuracy.max() for d in analysis.trial_dataframes.values()
)
assert {"mean_accuracy", "config/momentum", "logdir"} <= set(analysis.dataframe())
dfs = analysis.trial_dataframes
assert len(dfs) == 3 and all(list(d.mean_accuracy) for d in dfs.values())
logdir = analysis.get_best_logdir("mean_accuracy", mode="max")
model = ConvNet()
model.load_state_dict(torch.load(logdir + "/model.pth"))
assert not os.path.exists("model.pth")


def objective(config, checkpoint_dir=None, data_dir=None):
    assert data_dir == "data"
    for step in range(3):
        with tune.checkpoint_dir(step) as folder:
            with open(os.path.join(folder, "checkpoint"), "w") as f:
                f.write(str(step))
        tune.report(loss=config["x"] ** 2 + step, done=step == 1)


analysis = tune.run(
    partial(objective, data_dir="data"),
    progress_reporter=CLIReporter(metric_columns=["loss", "training_iteration"]),
    name="quadratic",
    metric="loss",
    mode="min",
    config={"x": tune.choice([-1, 2]), "net": torch.nn.ReLU, "y": tune.grid_search([1, 2])},
    resources_per_trial={"gpu": 0},
    stop=lambda trial_id, result: result["training_iteration"] >= 3,
    local_dir="results",
    verbose=0,
)
best = analysis.best_trial
assert best.last_result["loss"] - 1 == analysis.best_config["x"] ** 2, best.last_result
with open(os.path.join(best.checkpoint.value, "checkpoint")) as f:
    assert f.read() == "1"
assert os.path.isdir("results/quadratic") and os.path.isabs(best.checkpoint.value)
