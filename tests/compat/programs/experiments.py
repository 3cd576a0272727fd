"""`run_experiments` of Ray Tune, 2018."""

import rlplat.compat.ray as ray
from rlplat.compat.ray.tune import grid_search, register_trainable, run_experiments

ray.init(num_cpus=2)


def my_func(config, reporter):
    import time

    import numpy as np

    i = 0
    while True:
        reporter(timesteps_total=i, mean_accuracy=i ** config["alpha"])
        i += config["beta"]
        time.sleep(0.001)


register_trainable("my_func", my_func)

trials = run_experiments(
    {
        "my_experiment": {
            "run": "my_func",
            "resources": {"cpu": 1, "gpu": 0},
            "stop": {"mean_accuracy": 100},
            "config": {"alpha": grid_search([0.6, 0.8, 1.0]), "beta": grid_search([10, 20])},
        }
    }
)
assert len(trials) == 6
assert all(trial.last_result["mean_accuracy"] >= 100 for trial in trials)
assert {(trial.config["alpha"], trial.config["beta"]) for trial in trials} == {
    (alpha, beta) for alpha in (0.6, 0.8, 1.0) for beta in (10, 20)
}
print("success!")
