"""Ray Tune of today."""

import json
import os
import random
import tempfile

from ray import tune
from ray.tune import Checkpoint
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.search.optuna import OptunaSearch


def trainable(config):
    begun = tune.get_checkpoint()
    assert begun is None and tune.get_context().get_world_size() == 1
    for step in range(3):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "step"), "w") as f:
                f.write(str(step))
            tune.report({"score": config["a"] + step}, checkpoint=Checkpoint.from_directory(folder))


class Quadratic(tune.Trainable):
    def setup(self, config, offset=0):
        self.x, self.offset = config["a"], offset

    def step(self):
        return {"score": self.x**2 + self.offset, "done": self.iteration == 2}

    def save_checkpoint(self, checkpoint_dir):
        return {"x": self.x}

    def load_checkpoint(self, checkpoint):
        self.x = checkpoint["x"]


tuner = tune.Tuner(
    tune.with_resources(trainable, {"cpu": 1}),
    param_space={"a": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=3, search_alg=OptunaSearch()),
    run_config=tune.RunConfig(name="today", stop={"training_iteration": 2}, verbose=0),
)
results = tuner.fit()
best = results.get_best_result()
assert len(results) == 3 and results.num_errors == 0
assert best.metrics["score"] == max(result.metrics["score"] for result in results)
with best.checkpoint.as_directory() as folder:
    assert open(os.path.join(folder, "step")).read() == "1"


def resumable(config):
    step, score = 0, 0.0
    if begun := tune.get_checkpoint():
        with begun.as_directory() as folder:
            state = json.load(open(os.path.join(folder, "state.json")))
            step, score = state["step"], state["score"]
    while step < 4:
        step, score = step + 1, score + config["lr"]
        with tempfile.TemporaryDirectory() as folder:
            json.dump({"step": step, "score": score}, open(os.path.join(folder, "state.json"), "w"))
            tune.report({"score": score, "at": step}, checkpoint=tune.Checkpoint.from_directory(folder))


pbt = PopulationBasedTraining(
    time_attr="training_iteration",
    perturbation_interval=2,
    hyperparam_mutations={"lr": lambda: random.uniform(0.05, 0.5)},
)
results = tune.Tuner(
    resumable,
    param_space={"lr": 0.1, "name": "a"},
    tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=4, scheduler=pbt),
    run_config=tune.RunConfig(name="pbt", storage_path="results", verbose=0),
).fit()
best = results.get_best_result()
assert len(results) == 4 and not results.errors
assert all(result.metrics["at"] == result.metrics["training_iteration"] for result in results)
assert json.load(open(os.path.join(best.checkpoint.path, "state.json")))["step"] >= 4
tuner = tune.Tuner(
    tune.with_parameters(Quadratic, offset=5),
    param_space={"a": tune.grid_search([1, 2])},
    tune_config=tune.TuneConfig(metric="score", mode="min"),
    run_config=tune.RunConfig(verbose=0),
)
best = tuner.fit().get_best_result()
print(best.config, best.metrics["score"], best.metrics["training_iteration"])
