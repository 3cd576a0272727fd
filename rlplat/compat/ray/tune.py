"""`ray.tune`: `run` and `run_experiments` of 2017 to 2022, `Tuner` of today, their search spaces and schedulers.

A trial sees what it saw there: its own directory is the current one, every result has `training_iteration` and
`time_total_s`, and `reporter`, `tune.track.log`, `tune.report` and `session.report` all report.
"""

from __future__ import annotations

import copy
import inspect
import os
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlplat import tune as ours
from rlplat.compat.ray.session import Checkpoint, current, get_checkpoint, get_context, report, running
from rlplat.compat.ray.train import CheckpointConfig, FailureConfig, RunConfig
from rlplat.errors import ConfigError, RlplatError
from rlplat.tune import choice, lograndint, loguniform, qloguniform, quniform, randint, uniform
from rlplat.tune.core.trial import TrialState
from rlplat.tune.results.lines import holding, read_reports
from rlplat.tune.space.domains import Domain
from rlplat.tune.trials.trainables import num_arguments

if TYPE_CHECKING:
    from pandas import DataFrame

__path__: list[str] = []  # its modules are found by the package's finder
__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "FailureConfig",
    "RunConfig",
    "Trainable",
    "choice",
    "get_checkpoint",
    "get_context",
    "lograndint",
    "loguniform",
    "qloguniform",
    "quniform",
    "randint",
    "report",
    "run",
    "uniform",
]

track = sys.modules[__name__]
log = report
qrandint = ours.quniform
randn = ours.normal
_REGISTERED: dict[str, Any] = {}
_OF_RAY = (
    "training_iteration",
    "time_total_s",
    "timesteps_total",
    "episodes_total",
    "time_this_iter_s",
    "done",
)


class TuneError(RlplatError):
    """A trial failed."""


def grid_search(values: Any) -> dict[str, Any]:
    return {"grid_search": list(values)}


def function(f: Callable[..., Any]) -> Any:
    """A function that is a value of the config itself."""
    return f


class _Spec(dict[str, Any]):
    """`spec.config.lr` and `spec["config"]["lr"]`."""

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"spec has no {name!r}; there are {', '.join(self)}") from None
        return _Spec(value) if isinstance(value, dict) else value


def sample_from(f: Callable[[Any], Any]) -> Any:
    """f(spec), with `spec.config`."""
    return ours.sample_from(lambda config: f(_Spec(config=config)))


def register_trainable(name: str, trainable: Any) -> None:
    _REGISTERED[name] = trainable


def register_env(name: str, creator: Any) -> None:
    raise ConfigError(
        f"register_env({name!r}): name the environment by its code, env='./file.py:make' (docs/custom-env.md)"
    )


def with_parameters(trainable: Any, **given: Any) -> Any:
    return partial(trainable, **given)


def with_resources(trainable: Any, resources: Mapping[str, float]) -> Any:
    return _WithResources(trainable, {name.lower(): amount for name, amount in dict(resources).items()})


@dataclass
class _WithResources:
    trainable: Any
    resources: dict[str, float]


# -------------------------------------------------------------------------------------------------- trials


class _TrialSession:
    def __init__(self, told: Any) -> None:
        self._told, self._began = told, time.monotonic()
        self.folder: Any = None
        """Of the checkpoint that goes with the next report."""

    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None) -> None:
        done = metrics.pop("done", False)
        folder = Path(checkpoint.path) if checkpoint is not None else self.folder
        if folder is not None and not folder.exists():
            raise ConfigError(f"the checkpoint {folder} is no longer there when it is reported")
        self.folder = None
        self._told(_result(metrics, self._told.step + 1, self._began), checkpoint=folder)
        if done:
            raise ours.TrialStopped

    @property
    def checkpoint(self) -> Checkpoint | None:
        state = self._told.checkpoint
        return None if state is None else Checkpoint(str(state))

    @property
    def trial_dir(self) -> str:
        return str(self._told.directory)

    def get_trial_id(self) -> str:
        return f"{self._told.number:05d}"

    get_trial_name = get_trial_id

    def get_trial_dir(self) -> str:
        return self.trial_dir


def _result(metrics: Mapping[str, Any], iteration: int, began: float) -> dict[str, Any]:
    return {"training_iteration": iteration, "time_total_s": time.monotonic() - began, **metrics}


class _FunctionTrial:
    """f(config), f(config, reporter) or f(config, checkpoint_dir=None) as `f(config, report)`."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self._function = f
        inner = getattr(f, "func", f)
        self.__qualname__ = getattr(inner, "__qualname__", type(inner).__qualname__)
        names = list(inspect.signature(f).parameters)
        self._takes_folder = "checkpoint_dir" in names
        self._takes_reporter = (
            not self._takes_folder and num_arguments(f, self.__qualname__, "f(config)") == 2
        )

    def __call__(self, config: dict[str, Any], report: Any) -> Any:
        session = _TrialSession(report)
        with running(session), _inside(session.trial_dir):
            if self._takes_folder:
                begun = session.checkpoint
                return self._function(config, checkpoint_dir=begun.path if begun else None)
            if self._takes_reporter:
                return self._function(config, lambda **metrics: session.report(metrics, None))
            values: Any = self._function(config)
            if inspect.isgenerator(values):
                for each in values:
                    session.report({**each}, None)  # type: ignore[dict-item]
                return None
            return values


@contextmanager
def _inside(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def checkpoint_dir(step: int) -> Iterator[str]:
    """A directory whose files go with the next `tune.report`."""
    session = current()
    folder = Path(session.trial_dir) / f"checkpoint_{step:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    yield str(folder)
    session.folder = folder  # type: ignore[attr-defined]


def get_trial_dir() -> str:
    return current().trial_dir


trial_dir = get_trial_dir


class Trainable:
    """Ray's class: `setup`, `step`, `save_checkpoint`, `load_checkpoint`, `cleanup`; or, before 2020, with a line in
    front (`_setup`, `_train`, `_save`, `_restore`, `_stop`)."""

    OLD: ClassVar = {"setup": "_setup", "step": "_train", "save_checkpoint": "_save", "load_checkpoint": "_restore",
                     "cleanup": "_stop"}  # fmt: skip
    config: dict[str, Any]
    logdir: str
    trial_id: str
    iteration = 0

    @property
    def training_iteration(self) -> int:
        return self.iteration

    _iteration = training_iteration

    @property
    def trial_name(self) -> str:
        return self.trial_id

    @property
    def trial_dir(self) -> str:
        return self.logdir


def _hook(trial: Any, name: str) -> Any:
    """A method by its name of today or of then; None where the class has neither."""
    return getattr(trial, name, None) or getattr(trial, Trainable.OLD[name], None)


class _ClassTrial:
    """What `tune.run` of rlplat takes, around a `Trainable`."""

    of: ClassVar[Any]

    def __init__(self, config: dict[str, Any], context: Any) -> None:
        self._context, self._began, self._is_done = context, time.monotonic(), False
        trial = self._trial = self.of.__new__(self.of)
        trial.config, trial.logdir, trial.trial_id = config, str(context.directory), f"{context.number:05d}"
        context.directory.mkdir(parents=True, exist_ok=True)
        with _inside(trial.logdir):
            if type(trial).__init__ not in (object.__init__, Trainable.__init__):
                trial.__init__()
            if (setup := _hook(trial, "setup")) is not None:
                setup(config) if inspect.signature(setup).parameters else setup()

    def step(self) -> dict[str, Any] | None:
        if self._is_done:
            return None
        with _inside(self._trial.logdir):
            metrics = dict(_hook(self._trial, "step")())
        self._trial.iteration += 1
        self._is_done = bool(metrics.pop("done", False))
        return _result(metrics, self._trial.iteration, self._began)

    def close(self) -> None:
        if (cleanup := _hook(self._trial, "cleanup")) is not None:
            cleanup()


class _SavingTrial(_ClassTrial):
    def save(self) -> Any:
        folder = tempfile.mkdtemp(dir=self._trial.logdir, prefix="checkpoint_")
        with _inside(self._trial.logdir):
            made = _hook(self._trial, "save_checkpoint")(folder)
        state: dict[str, Any] = {"iteration": self._trial.iteration}
        if isinstance(made, dict):
            return {**state, "value": made}
        place = os.path.relpath(made, folder) if made and made != folder else "."
        return {**state, "folder": Path(folder), "place": place}

    def load(self, state: Any) -> None:
        self._trial.iteration = int(state["iteration"])
        given = (
            state["value"] if "value" in state else os.path.normpath(Path(state["folder"]) / state["place"])
        )
        with _inside(self._trial.logdir):
            _hook(self._trial, "load_checkpoint")(given)


def _as_trainable(given: Any) -> Any:
    if isinstance(given, str):
        if given not in _REGISTERED:
            raise ConfigError(
                f"run: no trainable {given!r} is registered (register_trainable); rlplat's own algorithms are tuned by "
                "rlplat.tune.run('ppo', ...), whose settings are not RLlib's"
            )
        given = _REGISTERED[given]
    if not isinstance(given, type):
        return _FunctionTrial(given)
    if not issubclass(given, Trainable):
        raise ConfigError(f"{given.__qualname__} is no tune.Trainable, and no function")
    if _hook(given, "step") is None:
        raise ConfigError(f"{given.__qualname__} has no step()")
    saves = _hook(given, "save_checkpoint") is not None and _hook(given, "load_checkpoint") is not None
    return type(
        given.__name__, (_SavingTrial if saves else _ClassTrial,), {"of": given, "__module__": __name__}
    )


# -------------------------------------------------------------------------------------------------- spaces


def _as_space(value: Any) -> Any:
    """Ray's forms of a config: {"grid_search": [...]}, `lambda spec: ...`; anything else as it is."""
    if isinstance(value, Mapping):
        if set(value) == {"grid_search"}:
            return ours.grid([_as_space(each) for each in value["grid_search"]])
        return {key: _as_space(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_space(each) for each in value]
    if isinstance(value, types.FunctionType) and list(inspect.signature(value).parameters) == ["spec"]:
        return sample_from(value)
    return value


# ---------------------------------------------------------------------------------------------- schedulers


class FIFOScheduler:
    def __init__(
        self,
        make: Callable[..., Any] = ours.FIFO,
        metric: str | None = None,
        mode: str | None = None,
        **settings: Any,
    ) -> None:
        self.make, self.metric, self.mode, self.settings = make, metric, mode, settings

    def made(self, config: dict[str, Any]) -> tuple[Any, dict[str, Any], list[dict[str, Any]]]:
        """(rlplat's scheduler, the config, the points to begin with)."""
        return self.make(**self.settings), config, []


class AsyncHyperBandScheduler(FIFOScheduler):
    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
        reward_attr: str | None = None,
    ) -> None:
        if brackets != 1:
            raise ConfigError(f"ASHAScheduler: brackets={brackets}: one bracket is what rlplat has")
        super().__init__(
            ours.ASHA,
            reward_attr or metric,
            mode,
            max_progress=max_t,
            min_progress=grace_period,
            reduction_factor=reduction_factor,
            unit=time_attr,
        )


ASHAScheduler = AsyncHyperBandScheduler


class HyperBandScheduler(FIFOScheduler):
    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
        reward_attr: str | None = None,
    ) -> None:
        super().__init__(
            ours.HyperBand,
            reward_attr or metric,
            mode,
            max_progress=max_t,
            reduction_factor=reduction_factor,
            unit=time_attr,
        )


HyperBandForBOHB = HyperBandScheduler


class MedianStoppingRule(FIFOScheduler):
    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
        reward_attr: str | None = None,
    ) -> None:
        if not hard_stop or min_time_slice:
            raise ConfigError("MedianStoppingRule: hard_stop=False and min_time_slice are not here")
        super().__init__(
            ours.MedianStopping,
            reward_attr or metric,
            mode,
            min_progress=grace_period,
            min_trials=min_samples_required,
            period=1 if time_attr == "training_iteration" else max(grace_period / 10, 1e-6),
            unit=time_attr,
        )


class PopulationBasedTraining(FIFOScheduler):
    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: tuple[float, float] = (1.2, 0.8),
        custom_explore_fn: Any = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        reward_attr: str | None = None,
    ) -> None:
        if custom_explore_fn is not None:
            raise ConfigError(
                "PopulationBasedTraining: custom_explore_fn is not here; a function in hyperparam_mutations is"
            )
        if not hyperparam_mutations:
            raise ConfigError("PopulationBasedTraining: hyperparam_mutations says which settings change")
        super().__init__(
            ours.PBT,
            reward_attr or metric,
            mode,
            unit=time_attr,
            perturbation_period=perturbation_interval,
            burn_in=burn_in_period,
            quantile=quantile_fraction,
            resample_probability=resample_probability,
            perturb_factors=tuple(perturbation_factors),
            synch=synch,
        )
        self._mutations = dict(hyperparam_mutations)

    def made(self, config: dict[str, Any]) -> tuple[Any, dict[str, Any], list[dict[str, Any]]]:
        """What changes becomes a parameter of the space; a constant of the config is where it begins."""
        config = copy.copy(config)
        start: dict[str, Any] = {}
        mutations: dict[str, Any] = {}
        settings = self.settings
        for name, how in self._mutations.items():
            if isinstance(how, Mapping):
                raise ConfigError(f"PopulationBasedTraining: mutations of {name!r}: nested ones are not here")
            given = config.get(name)
            is_constant = name in config and not isinstance(given, Domain) and not callable(given)
            if isinstance(how, Domain):
                config[name] = how
            elif callable(how):
                config[name], mutations[name] = _drawn_by(how, given if is_constant else None), _explored_by(
                    how, settings["resample_probability"], settings["perturb_factors"]
                )  # fmt: skip
            else:
                values = list(how)
                config[name] = choice([*values, *([given] if is_constant and given not in values else [])])
                if not is_constant or given in values:
                    mutations[name] = values
            if is_constant:
                start[name] = given
        named = {name: mutations.get(name, config[name]) for name in self._mutations}
        return self.make(**settings, mutations=named), config, [start] if start else []


def _drawn_by(draw: Callable[[], Any], start: Any) -> Any:
    """A domain that holds what the function draws, and what perturbing leads to."""
    values = [draw() for _ in range(100)] + ([] if start is None else [start])
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return choice(sorted(set(values), key=str))
    low, high = min(values), max(values)
    if all(isinstance(value, int) for value in values):
        return randint(low // 100 if low > 0 else 100 * low, 100 * max(high, 1) + 1)
    return uniform(low / 100 if low > 0 else 100 * low, 100 * high if high > 0 else high / 100 or 1.0)


def _explored_by(draw: Callable[[], Any], probability: float, factors: Any) -> Callable[[Any, Any], Any]:
    def explore(value: Any, rng: Any) -> Any:
        if rng.random() < probability or isinstance(value, str | bool):
            return draw()
        return type(value)(value * rng.choice(list(factors)))

    return explore


def _searcher(name: str, **fixed: Any) -> Any:
    class OfRay:
        def __init__(
            self, space: Any = None, metric: str | None = None, mode: str | None = None, **options: Any
        ) -> None:
            if space is not None:
                raise ConfigError("the search space is tune.run's config here, not the searcher's argument")
            self.metric, self.mode, self.points = metric, mode, options.pop("points_to_evaluate", None)
            for key in (
                "random_state_seed",
                "seed",
                "random_search_steps",
                "max_concurrent",
                "n_initial_points",
            ):
                if options.pop(key, None) is not None:
                    print(f"rlplat: {key} of a searcher: nothing to set here", file=sys.stderr)
            if options:
                raise ConfigError(f"a searcher has no {', '.join(options)} here; it is rlplat's {name!r}")
            self.name = name

    return OfRay


OptunaSearch, HyperOptSearch, BayesOptSearch = _searcher("tpe"), _searcher("tpe"), _searcher("gp")


class BasicVariantGenerator:
    name, metric, mode, points = "random", None, None, None

    def __init__(self, points_to_evaluate: Any = None, max_concurrent: int = 0) -> None:
        self.points, self.max_concurrent = points_to_evaluate, max_concurrent


def ConcurrencyLimiter(searcher: Any, max_concurrent: int, batch: bool = False) -> Any:  # noqa: N802
    searcher.max_concurrent = max_concurrent
    return searcher


# ------------------------------------------------------------------------------------------------- running

_CHANGES_NO_RESULT = frozenset(
    "callbacks checkpoint_at_end checkpoint_freq checkpoint_score_attr keep_checkpoints_num global_checkpoint_period "
    "log_to_file loggers progress_reporter queue_trials reuse_actors server_port sync_config trial_name_creator "
    "trial_dirname_creator with_server ray_auto_init raise_on_failed_trial sync_on_checkpoint chdir_to_trial_dir "
    "max_report_frequency return_trials upload_dir".split()
)
_SAID: set[str] = set()


def run(
    run_or_experiment: Any,
    name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    stop: Mapping[str, float] | None = None,
    time_budget_s: float | None = None,
    config: Mapping[str, Any] | None = None,
    resources_per_trial: Mapping[str, float] | None = None,
    num_samples: int = 1,
    local_dir: str | os.PathLike[str] | None = None,
    search_alg: Any = None,
    scheduler: Any = None,
    verbose: int | None = None,
    max_failures: int = 0,
    fail_fast: bool = False,
    resume: bool | str = False,
    max_concurrent_trials: int | None = None,
    storage_path: str | os.PathLike[str] | None = None,
    raise_on_failed_trial: bool = True,
    **others: Any,
) -> ExperimentAnalysis:
    """`ray.tune.run`, by `rlplat.tune.run`."""
    for key in [key for key, value in others.items() if not value or key in _CHANGES_NO_RESULT]:
        if others.pop(key) and key not in _SAID:
            _SAID.add(key)
            print(f"rlplat: tune.run({key}=...) says nothing here: docs/from-ray.md", file=sys.stderr)
    if others:
        raise ConfigError(f"tune.run of rlplat.compat.ray has no {', '.join(others)}")
    if stop is not None and not isinstance(stop, Mapping):
        raise ConfigError("stop is a dict of results and limits here; a function ends its trial by returning")
    scheduler = scheduler or FIFOScheduler()
    resources = dict(resources_per_trial or {})
    if isinstance(run_or_experiment, _WithResources):
        run_or_experiment, resources = run_or_experiment.trainable, run_or_experiment.resources
    made, space, points = scheduler.made(_as_space(dict(config or {})))
    points = [*(getattr(search_alg, "points", None) or []), *(num_samples * points)]
    given = {metric, scheduler.metric, getattr(search_alg, "metric", None)} - {None}
    if len(given) > 1:
        raise ConfigError(f"metric is {' and '.join(sorted(map(str, given)))}: give one")
    by_stop = [key for key in stop or {} if key not in _OF_RAY]
    chosen = next(iter(given), by_stop[0] if by_stop else "training_iteration")
    modes = {mode, scheduler.mode, getattr(search_alg, "mode", None)} - {None}
    if len(modes) > 1:
        raise ConfigError("mode is max and min: give one")
    searcher: dict[str, Any] = {"name": getattr(search_alg, "name", "random")}
    if points:
        searcher["points"] = points
    analysis = ours.run(
        _as_trainable(run_or_experiment),
        space,
        metric=chosen,
        mode=next(iter(modes), "max"),
        num_samples=num_samples,
        stop=dict(stop or {}),
        resources={key: value for key, value in resources.items() if value} or None,
        searcher=searcher,
        scheduler=made,
        max_concurrent=max_concurrent_trials or getattr(search_alg, "max_concurrent", 0) or None,
        max_failures=max(0, max_failures),
        time_budget_s=time_budget_s,
        out=_place(storage_path or local_dir, name, resume),
        resume="auto" if resume else False,
        progress=verbose != 0,
    )
    found = ExperimentAnalysis(analysis, chosen if given else None, next(iter(modes), None))
    failed = [trial for trial in found.trials if trial.status == "ERROR"]
    if failed and raise_on_failed_trial:
        raise TuneError(f"Trials did not complete: {[trial.trial_id for trial in failed]}: {failed[0].error}")
    return found


def _place(parent: Any, name: str | None, resume: Any) -> Path | None:
    """Ray adds trials to an experiment's directory; here each experiment has its own."""
    if parent is None and name is None:
        return None
    place = Path(parent or "runs").expanduser() / (name or f"experiment-{datetime.now():%Y%m%d-%H%M%S}")
    if resume or not place.exists() or not any(place.iterdir()):
        return place
    number = next(number for number in range(2, 100_000) if not Path(f"{place}-{number}").exists())
    print(
        f"rlplat: {place} holds an earlier experiment; this one is in {place.name}-{number}", file=sys.stderr
    )
    return Path(f"{place}-{number}")


def run_experiments(
    experiments: Any, scheduler: Any = None, search_alg: Any = None, verbose: int | None = None, **others: Any
) -> list[Any]:
    """`{name: {"run": ..., "stop": ..., "config": ..., "resources": ...}}`, one after the other: their trials."""
    if isinstance(experiments, Experiment):
        experiments = {experiments.name: experiments.spec}
    if isinstance(experiments, list | tuple):
        experiments = {one.name: one.spec for one in experiments}
    trials: list[Any] = []
    for name, spec in experiments.items():
        spec = dict(spec)
        for old, new in (("resources", "resources_per_trial"), ("trial_resources", "resources_per_trial"),
                         ("repeat", "num_samples")):  # fmt: skip
            if old in spec:
                spec[new] = spec.pop(old)
        if "run" not in spec:
            raise ConfigError(f"experiment {name!r} has no 'run'; it has {', '.join(spec)}")
        trainable = spec.pop("run")
        found = run(
            trainable, name, scheduler=scheduler, search_alg=search_alg, verbose=verbose, **spec, **others
        )
        trials += found.trials
    return trials


class Experiment:
    def __init__(self, name: str, run: Any, **spec: Any) -> None:
        self.name, self.spec = name, {"run": run, **spec}


# ------------------------------------------------------------------------------------------------- results

_STATUS = {TrialState.COMPLETE: "TERMINATED", TrialState.STOPPED: "TERMINATED", TrialState.FAILED: "ERROR"}


class _Trial:
    def __init__(self, analysis: Any, trial: Any, rows: list[dict[str, Any]]) -> None:
        self.config, self.last_result, self.error = (
            trial.config,
            {**trial.last, "config": trial.config},
            trial.error,
        )
        self.logdir = self.local_path = str(analysis.directory / "trials" / trial.directory_name)
        self.trial_id = self.trial_name = trial.directory_name
        self.status = _STATUS.get(trial.state, str(trial.state).upper())
        place = analysis.checkpoint_of(trial)
        self._rows = rows
        self.checkpoint = _folder_of(place) if place else None

    def values(self, metric: str) -> list[float]:
        """Of all reports."""
        return [row[metric] for row in self._rows if isinstance(row.get(metric), int | float)]

    def __repr__(self) -> str:
        return f"<Trial {self.trial_id} {self.status}>"


def _folder_of(place: Path) -> Checkpoint:
    """The directory that the trial gave, where its checkpoint is one."""
    given = sorted((place / "files" / "0").glob("*")) if (place / "files").is_dir() else []
    folder = given[0] if len(given) == 1 and given[0].is_dir() else place / "files" / "0" if given else place
    return Checkpoint(str(folder))


class ExperimentAnalysis:
    """`ray.tune.ExperimentAnalysis`; `.rlplat` is rlplat's own (`tune.load`)."""

    def __init__(self, analysis: Any, metric: str | None, mode: str | None) -> None:
        self.rlplat, self.default_metric, self.default_mode = analysis, metric, mode
        rows: dict[int, list[dict[str, Any]]] = {}
        for line in holding(read_reports(analysis.directory / "results.jsonl")):
            rows.setdefault(line["trial"], []).append(line["metrics"])
        self.trials = [_Trial(analysis, trial, rows.get(trial.number, [])) for trial in analysis.trials]

    def get_best_trial(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> Any:
        """scope: "last", "avg" or "all" (the best report of each)."""
        metric, mode = metric or self.default_metric, mode or self.default_mode or "max"
        if metric is None:
            raise ConfigError("which metric? get_best_config(metric=..., mode=...), or tune.run(metric=...)")
        if mode not in ("max", "min") or scope not in ("last", "avg", "all"):
            raise ConfigError(f"mode is max or min, scope last, avg or all; not {mode!r}, {scope!r}")
        best = max if mode == "max" else min
        scores: dict[Any, float] = {}
        for trial in self.trials:
            if values := trial.values(metric):
                scores[trial] = {"last": values[-1], "avg": sum(values) / len(values), "all": best(values)}[
                    scope
                ]
        if not scores:
            raise ConfigError(f"no trial reported {metric!r}")
        return best(scores, key=lambda trial: scores[trial])

    def get_best_config(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> Any:
        return self.get_best_trial(metric, mode, scope).config

    def get_best_logdir(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> str:
        return str(self.get_best_trial(metric, mode, scope).logdir)

    def get_best_checkpoint(
        self, trial: Any = None, metric: str | None = None, mode: str | None = None
    ) -> Any:
        return (trial or self.get_best_trial(metric, mode)).checkpoint

    @property
    def best_trial(self) -> Any:
        return self.get_best_trial()

    @property
    def best_config(self) -> dict[str, Any]:
        return dict(self.best_trial.config)

    @property
    def best_result(self) -> dict[str, Any]:
        return dict(self.best_trial.last_result)

    @property
    def best_logdir(self) -> str:
        return str(self.best_trial.logdir)

    @property
    def best_checkpoint(self) -> Any:
        return self.best_trial.checkpoint

    @property
    def results(self) -> dict[str, Any]:
        return {trial.trial_id: trial.last_result for trial in self.trials}

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> DataFrame:
        """A row per trial, its last report (or its best, by a metric)."""
        import pandas

        rows = []
        for trial in self.trials:
            reports = [
                row for row in trial._rows if metric is None or isinstance(row.get(metric), int | float)
            ]
            if reports:
                row = (
                    reports[-1]
                    if metric is None
                    else (min if mode == "min" else max)(reports, key=lambda r: r[metric])
                )
                settings = {f"config/{key}": value for key, value in trial.config.items()}
                rows.append({**row, "trial_id": trial.trial_id, "logdir": trial.logdir, **settings})
        return pandas.DataFrame(rows)

    @property
    def results_df(self) -> DataFrame:
        return self.dataframe()

    @property
    def trial_dataframes(self) -> dict[str, DataFrame]:
        import pandas

        return {trial.logdir: pandas.DataFrame(trial._rows) for trial in self.trials}


Analysis = ExperimentAnalysis


# --------------------------------------------------------------------------------------------------- Tuner


@dataclass
class TuneConfig:
    metric: str | None = None
    mode: str | None = None
    search_alg: Any = None
    scheduler: Any = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: float | None = None
    reuse_actors: bool = False


class ResultGrid:
    """One `Result` a trial."""

    def __init__(self, analysis: ExperimentAnalysis) -> None:
        self._analysis = analysis
        self.experiment_path = str(analysis.rlplat.directory)

    def _result(self, trial: Any) -> Any:
        from rlplat.compat.ray.train import Result

        return Result(
            trial.last_result,
            trial.checkpoint,
            trial.logdir,
            TuneError(trial.error) if trial.error else None,
            trial.config,
        )

    def get_best_result(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> Any:
        return self._result(self._analysis.get_best_trial(metric, mode, scope))

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: str | None = None) -> DataFrame:
        return self._analysis.dataframe(filter_metric, filter_mode)

    @property
    def errors(self) -> list[Any]:
        return [each.error for each in self if each.error]

    @property
    def num_errors(self) -> int:
        return len(self.errors)

    @property
    def num_terminated(self) -> int:
        return len(self) - self.num_errors

    def __len__(self) -> int:
        return len(self._analysis.trials)

    def __getitem__(self, index: int) -> Any:
        return self._result(self._analysis.trials[index])

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


class Tuner:
    def __init__(
        self,
        trainable: Any,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        self._trainable, self._space = trainable, param_space
        self._tune, self._run = tune_config or TuneConfig(), run_config or RunConfig()

    def fit(self) -> ResultGrid:
        """A failed trial is in the results (`errors`)."""
        config, how = self._tune, self._run
        return ResultGrid(
            run(
                self._trainable,
                how.name,
                config.metric,
                config.mode,
                how.stop,
                config.time_budget_s,
                self._space,
                num_samples=config.num_samples,
                search_alg=config.search_alg,
                scheduler=config.scheduler,
                max_concurrent_trials=config.max_concurrent_trials,
                storage_path=how.storage_path,
                max_failures=how.failure_config.max_failures if how.failure_config else 0,
                verbose=how.verbose,
                raise_on_failed_trial=False,
            )
        )

    @classmethod
    def restore(cls, path: str, trainable: Any, **_: Any) -> Any:
        raise ConfigError(
            f"Tuner.restore({path!r}): tune.run(..., name=, resume=True) continues an experiment here"
        )


class CLIReporter:
    """rlplat shows its own table."""

    def __init__(self, **_: Any) -> None: ...

    def add_metric_column(self, *_: Any, **__: Any) -> None: ...


JupyterNotebookReporter = CLIReporter


def __getattr__(name: str) -> Any:
    raise AttributeError(f"rlplat.compat.ray.tune has no {name!r}; rlplat's own is in docs/tuning.md")
