"""Tune of 2017 and 2018: registered functions and classes, a reporter, PBT with constants."""

import json
import os
import random

import ray
from ray.tune import Trainable, grid_search, register_trainable, run_experiments
from ray.tune.async_hyperband import AsyncHyperBandScheduler
from ray.tune.hyperband import HyperBandScheduler
from ray.tune.pbt import PopulationBasedTraining


def my_func(config, reporter):
    for i in range(5):
        reporter(timesteps_total=i, mean_accuracy=i + config["alpha"], beta_=config["beta"])


class MyTrainable(Trainable):
    def _setup(self, config):
        self.timestep, self.value = 0, 0.0

    def _train(self):
        self.timestep += 1
        self.value += self.config["factor_1"] * self.config["factor_2"]
        assert self._iteration == self.timestep - 1
        return {"episode_reward_mean": self.value, "timesteps_this_iter": 10}

    def _save(self, checkpoint_dir):
        path = os.path.join(checkpoint_dir, "checkpoint")
        with open(path, "w") as f:
            f.write(json.dumps({"timestep": self.timestep, "value": self.value}))
        return path

    def _restore(self, checkpoint_path):
        with open(checkpoint_path) as f:
            found = json.loads(f.read())
        self.timestep, self.value = found["timestep"], found["value"]


ray.init()
register_trainable("my_func", my_func)
trials = run_experiments(
    {
        "my_experiment": {
            "run": "my_func",
            "repeat": 2,
            "resources": {"cpu": 1, "gpu": 0},
            "stop": {"mean_accuracy": 3},
            "config": {"alpha": grid_search([0.2, 0.4, 0.6]), "beta": lambda spec: spec.config.alpha * 2},
        }
    }
)
assert len(trials) == 6 and {trial.last_result["mean_accuracy"] // 1 for trial in trials} == {3}
assert {trial.last_result["beta_"] for trial in trials} == {0.4, 0.8, 1.2}

pbt = PopulationBasedTraining(
    time_attr="training_iteration",
    reward_attr="episode_reward_mean",
    perturbation_interval=2,
    hyperparam_mutations={"factor_1": lambda: random.uniform(0.0, 20.0), "factor_2": [1, 2]},
)
spec = {
    "run": MyTrainable,
    "stop": {"training_iteration": 4, "timesteps_total": 1000},
    "num_samples": 4,
    "trial_resources": {"cpu": 1, "gpu": 0},
    "config": {"factor_1": 4.0, "factor_2": 1.0},
}
population = run_experiments({"pbt_test": spec}, scheduler=pbt, verbose=False)
assert [trial.last_result["training_iteration"] for trial in population] == [4] * 4
assert len({trial.config["factor_1"] for trial in population}) > 1
assert all(trial.last_result["timesteps_total"] >= 10 for trial in population)

for scheduler in (
    AsyncHyperBandScheduler(time_attr="timesteps_total", reward_attr="episode_reward_mean", max_t=30, grace_period=10),
    HyperBandScheduler(time_attr="training_iteration", reward_attr="episode_reward_mean", max_t=3),
):
    spec["stop"] = {"training_iteration": 3}
    spec["config"] = {"factor_1": grid_search([1.0, 2.0, 3.0]), "factor_2": 1.0}
    spec["num_samples"] = 1
    assert len(run_experiments({"asha_test": spec}, scheduler=scheduler, verbose=False)) == 3


def fails(config, reporter):
    reporter(ok=1)
    if config["index"] == 1:
        raise ValueError("boom")


try:
    run_experiments({"fails": {"run": fails, "config": {"index": grid_search([0, 1])}}}, verbose=False)
except ray.tune.TuneError as error:
    print(error)
assert len(run_experiments({"lambda": {"run": lambda config, reporter: reporter(ok=1)}}, verbose=False)) == 1
print("done")
