"""Today's Ray: Tuner with PBT and checkpoints, Train, Serve."""

import json
import os
import random
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset

import rlplat.compat.ray as ray
from rlplat.compat.ray import serve, train, tune
from rlplat.compat.ray.train.torch import TorchTrainer
from rlplat.compat.ray.tune.schedulers import PopulationBasedTraining

ray.init(num_cpus=2)


def objective(config):
    step, score = 0, 0.0
    if begun := tune.get_checkpoint():
        with begun.as_directory() as folder:
            state = json.load(open(os.path.join(folder, "state.json")))
            step, score = state["step"], state["score"]
    while step < 6:
        step, score = step + 1, score + config["lr"]
        with tempfile.TemporaryDirectory() as folder:
            json.dump({"step": step, "score": score}, open(os.path.join(folder, "state.json"), "w"))
            tune.report({"score": score}, checkpoint=tune.Checkpoint.from_directory(folder))


results = tune.Tuner(
    objective,
    param_space={"lr": 0.1, "name": "a"},
    tune_config=tune.TuneConfig(
        metric="score",
        mode="max",
        num_samples=4,
        scheduler=PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=2,
            hyperparam_mutations={"lr": lambda: random.uniform(0.05, 0.5)},
        ),
    ),
    run_config=tune.RunConfig(name="pbt", storage_path="results", verbose=0),
).fit()
best = results.get_best_result()
assert len(results) == 4 and not results.errors and best.metrics["training_iteration"] >= 4
assert json.load(open(os.path.join(best.checkpoint.path, "state.json")))["step"] >= 4
assert best.metrics["score"] > 0.5


def loop(config):
    model = train.torch.prepare_model(torch.nn.Linear(4, 1))
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    loader = train.torch.prepare_data_loader(DataLoader(data, batch_size=8))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(2):
        seen = 0
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(x)
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
            train.report(
                {"loss": loss.item(), "seen": seen}, checkpoint=train.Checkpoint.from_directory(folder)
            )
    assert train.get_context().get_world_size() == 2


result = TorchTrainer(
    loop,
    train_loop_config={"lr": 0.1},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(storage_path="results", name="fit"),
).fit()
assert result.metrics["seen"] == 16 and os.path.exists(os.path.join(result.checkpoint.path, "model.pt"))


@serve.deployment(num_replicas=1, ray_actor_options={"num_cpus": 0})
class Doubler:
    def double(self, x):
        return 2 * x

    @serve.batch(max_batch_size=4)
    async def __call__(self, items):
        return [item + 1 for item in items]


handle = serve.run(Doubler.bind(), route_prefix=None)
assert handle.double.remote(3).result() == 6 and handle.remote(1).result() == 2
serve.shutdown()


print("success!")
