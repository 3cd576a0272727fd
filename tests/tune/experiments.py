"""Experiments on the disk for tests of what looks at them: written as the tuner writes them, without running any."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlplat.tune.directory import ExperimentDirectory
from rlplat.tune.domains import choice, loguniform, randint, uniform
from rlplat.tune.samplers import distributions
from rlplat.tune.space import Space
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.study import Study
from rlplat.tune.trial import Trial, TrialState

SPACE: dict[str, Any] = {
    "learning_rate": loguniform(1e-5, 1e-1),
    "policy": {
        "activation": choice(["tanh", "relu"]),
        "core": choice([{"name": "none"}, {"name": "lstm", "size": randint(16, 256)}]),
    },
    "num_envs": choice([4, 8, 16, 32]),
    "discount": uniform(0.9, 1),
    "seed": 7,
}


def write_experiment(
    path: Path,
    num_trials: int,
    *,
    space: Mapping[str, Any] = SPACE,
    metric: Sequence[str] = ("return",),
    mode: Sequence[Any] = ("max",),
    num_reports: int = 6,
    num_running: int = 0,
) -> list[Trial]:
    """The last `num_running` trials have not ended; of the others every seventh has failed, every third was stopped."""
    spec = ExperimentSpec(
        trainable="ppo",
        config=space,
        metric=tuple(metric),
        mode=tuple(mode),
        num_samples=max(num_trials, 1),
        name=path.name,
    )
    parsed, rng = Space.parse(space), np.random.default_rng(1)
    trials = []
    with ExperimentDirectory.open(path, spec, resume=False) as directory:
        study = Study.open(directory.storage, spec.name, list(spec.mode), resume=False)
        study.distributions = functools.partial(distributions, parsed)
        for number in range(num_trials):
            drawn = parsed.draw(lambda name, domain: domain.sample(rng), rng)
            trial = Trial(number, drawn.config, drawn.params, number, TrialState.RUNNING)
            study.create(trial)
            state = TrialState.RUNNING if number >= num_trials - num_running else _state(number)
            steps = num_reports // 2 if state is TrialState.STOPPED else num_reports
            for step in range(1, steps + 1):
                _report(trial, step, metric, mode[0])
                study.report(trial)
                directory.record(trial, trial.last)
            trial.state = state
            if state is TrialState.FAILED:
                trial.error = "Traceback (most recent call last):\nValueError: too hot"
            if state.has_ended:
                study.end(trial)
                directory.end(trial)
            trials.append(trial)
        ended = [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.STOPPED)]
        if ended:
            directory.best(max(ended, key=lambda trial: trial.history[-1][1]))
        study.sync()
        study.close()
    return trials


def _state(number: int) -> TrialState:
    if number % 7 == 5:
        return TrialState.FAILED
    return TrialState.STOPPED if number % 3 == 1 else TrialState.COMPLETE


def _report(trial: Trial, step: int, metric: Sequence[str], mode: str) -> None:
    top = math.exp(-((math.log10(trial.params.get("learning_rate", 1e-3)) + 3) ** 2))
    value = top * (1 - math.exp(-step / 2))
    trial.step, trial.progress, trial.run_s = step, step * 4096, 0.5 * step
    trial.last = dict.fromkeys(metric, value) | {"env_steps": step * 4096}
    if len(metric) > 1:
        trial.last[metric[1]] = trial.number % 5
    trial.values = tuple(float(trial.last[name]) for name in metric)
    trial.history.append((trial.progress, value if mode == "max" else -value))
