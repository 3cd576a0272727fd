"""`tune.run`: from settings to an analysis: everything is checked, opened, handed to a tuner, and closed again."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

import rlplat
from rlplat.errors import ConfigError, UsageError
from rlplat.rl.user_code import folder_of, names_in
from rlplat.tune.address import shown
from rlplat.tune.analysis import Analysis
from rlplat.tune.directory import ExperimentDirectory, can_resume, refuse_existing, take_back
from rlplat.tune.experiment import Experiment
from rlplat.tune.experiment_file import refuse_changes, settings_of
from rlplat.tune.roster import View
from rlplat.tune.samplers import distributions
from rlplat.tune.schedulers import make_scheduler
from rlplat.tune.search import Searcher, make_searcher
from rlplat.tune.slots import room
from rlplat.tune.space import Space
from rlplat.tune.spec import ExperimentSpec, check_demand, check_silence
from rlplat.tune.study import Study
from rlplat.tune.trials.trainables import TrainableKind, check_trainable
from rlplat.tune.tuner import Tuner
from rlplat.tune.view import open_view


def run(
    trainable: Any,
    space: Mapping[str, Any],
    *,
    metric: str | Sequence[str] | None = None,
    mode: str | Sequence[str] = "max",
    num_samples: int = 1,
    stop: Mapping[str, float] | None = None,
    resources: Mapping[str, float] | None = None,
    searcher: str | Mapping[str, Any] | Searcher = "random",
    scheduler: Any = "fifo",
    max_concurrent: int | None = None,
    seed: int = 0,
    seeds_per_trial: int = 1,
    max_failures: int = 2,
    max_silence_s: float | None = None,
    checkpoint_period: int | None = None,
    time_budget_s: float | None = None,
    name: str = "",
    out: str | os.PathLike[str] | None = None,
    storage: str = "",
    resume: bool | Literal["auto"] = False,
    progress: bool = True,
) -> Analysis:
    """Run trials of `trainable` with configs from `space`; returns when all have ended. Settings: `ExperimentSpec`.

    trainable: `f(config)`, `f(config, report)`, a generator function, a class with `step` (and `save`, `load`), an
    algorithm's name, or "./file.py:name". space: a config with domains in it, `{"lr": tune.loguniform(1e-5, 1e-1)}`.
    resume: resume the experiment in `out`; "auto": begin it if there is none yet. progress: show a table (on a
    terminal) or lines.
    Ctrl-C once saves what runs at its next report and raises `KeyboardInterrupt`; the experiment can be resumed.
    """
    settings = {key: value for key, value in locals().items() if key in ExperimentSpec.model_fields}
    spec = ExperimentSpec(config=space, **settings)
    return run_experiment(spec, resume=resume, progress=progress)


def run_experiment(spec: ExperimentSpec, *, resume: bool | Literal["auto"] = False, progress: bool = True) -> Analysis:
    """`run` on settings that are put together already."""
    if resume == "auto":
        if spec.out == Path():
            raise ConfigError("resume='auto' needs out=...: else each start has a directory of its own")
        resume = can_resume(spec.out, spec.storage)
    spec = spec.checked()
    if not resume:
        refuse_existing(spec.out)
    kind = check_trainable(spec.trainable)
    owns_runtime = not rlplat.is_initialized()
    view = open_view(progress)
    if owns_runtime:
        with view.taking_output():
            names = [str(spec.trainable), *names_in(spec.config)]
            rlplat.init(preload=("torch",) if kind.is_algorithm else (), user_code=folder_of(names))
    try:
        check_silence(spec, rlplat.get_runtime_context().is_one_process)
        is_inside = rlplat.get_current_placement_group() is not None
        check_demand(kind.demand(spec.resources, spec.sample_config()), room(), spec, is_inside=is_inside)
        return _run_on_cluster(spec, kind, resume, view)
    except UsageError:
        if not resume:
            take_back(spec.out)
        raise
    finally:
        if owns_runtime:
            rlplat.shutdown()
        view.finish()


def _run_on_cluster(spec: ExperimentSpec, kind: TrainableKind, resume: bool, view: View) -> Analysis:
    space = Space.parse(spec.config)
    scheduler = make_scheduler(spec.scheduler, kind.unit, stop=spec.stop)
    scheduler.open(spec.seed, space)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(ExperimentDirectory.open(spec.out, spec, resume=resume, say=view.say))
        require_shared(directory.trials)
        study = _open_study(spec, directory, resume, view)
        stack.callback(study.close)
        in_optunas_terms = distributions(space)
        study.distributions = lambda params: {name: in_optunas_terms[name] for name in params}
        searcher = make_searcher(spec.searcher, space, seed=spec.seed, num_samples=spec.num_samples, modes=spec.mode)
        for note in [*kind.notes(spec.sample_config()), *([searcher.notice] if searcher.notice else [])]:
            view.say(note)
            directory.log(note)
        experiment = Experiment(
            spec,
            searcher,
            scheduler,
            trial_seed=lambda number: trial_seed(spec.seed, number),
            is_algorithm=kind.is_algorithm,
        )
        return Tuner(spec, kind, experiment, study, directory, view).run(resume=resume)


def _open_study(spec: ExperimentSpec, directory: ExperimentDirectory, resume: bool, view: View) -> Study:
    """The study, new or with the same settings as before."""
    storage = directory.storage
    study = Study.open(storage, spec.name, list(spec.mode), resume=resume, say=view.say)
    try:
        if "experiment" in study.settings:
            refuse_changes(spec, study.settings["experiment"], shown(storage))
        elif directory.has_results:  # they follow from the study: without it they would be dropped
            raise ConfigError(
                f"{directory.path} has results of an experiment, and {shown(storage)} holds no {spec.name!r}: "
                "resume it with the storage and the name that it had, or begin a new one with --out"
            )
        else:
            study.name_metrics(spec.metric)
        study.settle({"experiment": settings_of(spec)})
        study.sync()  # before there can be results of it
    except BaseException:
        study.close()
        raise
    return study


def trial_seed(seed: int, number: int) -> int:
    """32 bits for trial `number` of an experiment with this seed."""
    return int(np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1)[0])


def require_shared(folder: Path) -> None:
    """ConfigError, naming the machines, where some do not see what this process writes into `folder`."""
    machines = [machine for machine in rlplat.nodes() if machine["Alive"]]
    if len(machines) == 1:
        return
    probe = folder / f".probe-{uuid.uuid4().hex}"
    probe.touch()
    try:
        answers = {
            machine["NodeManagerHostname"]: rlplat.remote(_sees)
            .options(
                num_cpus=0,
                scheduling_strategy=rlplat.NodeAffinitySchedulingStrategy(machine["NodeID"], soft=False),
            )
            .remote(str(probe))
            for machine in machines
        }
        blind = [name for name, sees in answers.items() if not rlplat.get(sees)]
    finally:
        probe.unlink()
    if blind:
        raise ConfigError(
            f"{folder} is not the same folder on {', '.join(blind)}: trials keep their checkpoints there, so that all "
            "machines of the cluster have to share it: give --out on a file system that they share"
        )


def _sees(path: str) -> bool:
    folder = os.path.dirname(path)
    return os.path.isdir(folder) and os.path.basename(path) in os.listdir(folder)
