"""`ExperimentSpec`: one experiment, settled; what `tune.run(...)` and a file in YAML both become.

    spec = ExperimentSpec(trainable=train, config={"alpha": tune.uniform(0, 1)}, metric="accuracy").checked()

`checked()` finds what can be found wrong before anything is on the disk or runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PlainValidator, PrivateAttr, field_validator, model_validator

import rlplat
from rlplat.config import closest
from rlplat.errors import ConfigError, InfeasibleResources
from rlplat.paths import expanded, user_path
from rlplat.rl.user_code import finder, located, renamed_in_space
from rlplat.section import Count, CountOrZero, Seconds, Section
from rlplat.setting_types import Words
from rlplat.tune.address import problem_of, shown
from rlplat.tune.search import Searcher

if TYPE_CHECKING:
    from rlplat.tune.domains import Domain
    from rlplat.tune.space import Space


Mode = Literal["max", "min"]
Made = TypeVar("Made")

DEFAULT_METRIC = "episode_return_mean"
"""Of trainables that are algorithms."""
NUM_TRIED = 16
"""Configs that an algorithm is shown before anything starts."""
_RESOURCE_SPELLINGS = {
    **dict.fromkeys(("cpus", "num_cpu", "num_cpus"), "cpu"),
    **dict.fromkeys(("gpus", "num_gpu", "num_gpus"), "gpu"),
}


def searcher_of(value: Any) -> Searcher:
    """From a name, or a name with options."""
    if isinstance(value, Searcher):
        return value
    if isinstance(value, str):
        return Searcher(value)
    if not isinstance(value, Mapping):
        raise ValueError("searcher is a name, a dict with a name, or a tune.Searcher")
    options = dict(value)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ValueError("it has no name, as in {name: tpe, n_startup_trials: 5}")
    return Searcher(name, options)


def _several(value: Any) -> Any:
    return () if value is None else (value,) if isinstance(value, str) else value


def _directory(value: Any) -> Path:
    return user_path(value) if value == "." else expanded(value or "")


class ExperimentSpec(Section):
    trainable: Any
    """An algorithm's name ("ppo"), "./file.py:name", "pkg.mod:name", or the function, generator function or class."""
    config: dict[str, Any] = Field(default_factory=dict)
    """A trial's config: constants, and domains (`tune.uniform(0, 1)`, in YAML `{uniform: [0, 1]}`), at any depth."""
    metric: Annotated[tuple[str, ...], BeforeValidator(_several), Words("text, or a list of texts")] = ()
    """What is to be the largest or smallest, by name; several: several objectives. Algorithms: episode_return_mean."""
    mode: Annotated[tuple[Mode, ...], BeforeValidator(_several), Words("max or min, or a list of them")] = ()
    """"max" or "min", one for each metric; empty: all max."""
    num_samples: Count = 1
    """Trials; with grids: how often the whole grid."""
    searcher: Annotated[Searcher, PlainValidator(searcher_of)] = Searcher()
    """A name, or {"name": ..., options}."""
    scheduler: Any = "fifo"
    """A name, {"name": ..., settings}, or a `TrialScheduler`."""
    stop: dict[str, float] = Field(default_factory=dict)
    """A trial is complete when one of these metrics reaches this (`step`: reports; `wall_s`: seconds it ran)."""
    resources: dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Of one trial in all, its own actors included: {"cpu": 1, "gpu": 0}. None: one CPU; an algorithm's config says
    how many."""
    max_concurrent: Count | None = None
    """Trials at once; None: as many as the cluster has room for."""
    seed: CountOrZero = 0
    """The root of everything that is drawn."""
    seeds_per_trial: Count = 1
    """Each config runs so many times side by side in its trial, with different seeds; metrics are their means."""
    max_failures: CountOrZero = 2
    """How often a trial that crashed or hung restarts from its checkpoint before it counts as failed."""
    max_silence_s: Seconds | None = None
    """A trial that does not report for so long counts as hung; None: never."""
    checkpoint_period: Count | None = None
    """Reports between checkpoints of a trial; None: as often as costs at most a tenth of its time."""
    time_budget_s: Seconds | None = None
    """After so many seconds no trial begins, and those that run are ended at their next report."""
    name: str = ""
    """Empty: the trainable's."""
    out: Annotated[Path, PlainValidator(_directory)] = Path()
    """The experiment's directory; Path(): runs/<name>-<date>-<time>."""
    storage: str = ""
    """Empty: `<out>/study.journal`; postgresql://user@host/database."""
    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _is_checked: bool = PrivateAttr(default=False)

    @model_validator(mode="before")
    @classmethod
    def _locate_code(cls, values: Any) -> Any:
        """Trials and later resumes look for files of the user's where this program does."""
        return with_code_renamed(values, located) if isinstance(values, dict) else values

    @field_validator("stop", mode="before")
    @classmethod
    def _no_function(cls, value: Any) -> Any:
        if callable(value):
            raise ValueError(
                "stop is a dict of metrics and what is to be reached, {'step': 100}; a trial that is to decide by "
                "itself returns"
            )
        return {} if value is None else value

    @field_validator("resources")
    @classmethod
    def _known_resources(cls, resources: dict[str, float] | None) -> dict[str, float] | None:
        for key, value in (resources or {}).items():
            if right := _RESOURCE_SPELLINGS.get(key.lower(), key.lower() if key in ("CPU", "GPU") else ""):
                raise ValueError(f"unknown resource '{key}'; did you mean '{right}'?")
            if key == "gpu" and value > 1 and value != int(value):
                raise ValueError("gpu is a share of one GPU or a whole number")
        if resources is not None and not any(resources.values()):
            raise ValueError("a trial takes at least a share of a CPU, as in {cpu: 0.5}")
        return resources

    def __eq__(self, other: object) -> bool:
        """The same settings, wherever they were written."""
        return isinstance(other, ExperimentSpec) and dict(self) == dict(other)

    @property
    def origins(self) -> Mapping[str, str]:
        """Where a key was written, for complaints: {"config.alpha": "experiment.yaml:3"}."""
        return self._origins

    def written_at(self, origins: Mapping[str, str]) -> Self:
        """The same, with its `origins`."""
        spec = self.model_copy()
        spec._origins = dict(origins)
        return spec

    def origin(self, key: str) -> str:
        """`experiment.yaml:3` for a key of the experiment file (or the nearest key above it), or the empty string."""
        while key and key not in self._origins:
            key = key.rpartition(".")[0]
        return self._origins.get(key, "")

    def where(self, key: str) -> str:
        """The same as a part of a sentence, with a space before it."""
        origin = self.origin(key)
        return f" in {origin}" if ":" in origin else f" (from {origin})" if origin else ""

    def checked(self) -> ExperimentSpec:
        """The same with metric, mode, name and out settled; raises ConfigError or MissingExtra. Touches nothing, and
        does nothing the second time."""
        if self._is_checked:
            return self
        from rlplat.tune.schedulers import make_scheduler
        from rlplat.tune.search import number_of_trials
        from rlplat.tune.space import Space
        from rlplat.tune.trials.trainables import check_trainable

        _check_storage(self.storage, self.where("storage"))
        kind = check_trainable(self.trainable)
        spec = self.model_copy(update={**self._objectives(kind.is_algorithm), **self._place()})
        if kind.is_algorithm:  # a class that was given becomes its name
            settled = {"trainable": kind.name, "config": _with_stop(spec.config, spec.stop)}
            spec = spec.model_copy(update=settled)
        space = Space.parse(spec.config, lambda path: spec.origin(".".join(("config", *path))))
        number_of_trials(space, spec.num_samples)
        if kind.is_algorithm:
            _try_configs(spec, space)
        spec.placed("searcher", lambda: _try_searcher(spec, space))
        scheduler = spec.placed("scheduler", lambda: make_scheduler(spec.scheduler, kind.unit, spec.stop))
        if len(spec.metric) > 1 and scheduler.name != "fifo":
            raise ConfigError(
                f"scheduler {scheduler.name}{spec.where('scheduler')} judges by one metric, and there are "
                f"{len(spec.metric)} ({', '.join(spec.metric)}): take one of them, or scheduler fifo"
            )
        if scheduler.needs_checkpoints and kind.can_save is False:
            raise ConfigError(
                f"scheduler {scheduler.name}{spec.where('scheduler')} pauses trials or copies them, and "
                f"'{trainable_name(self.trainable)}' cannot be saved: give it save and load (a class), or "
                "report(..., checkpoint=state) (a function); or take asha or median, which only stop trials"
            )
        if kind.is_algorithm and hasattr(scheduler, "mutations"):
            from rlplat.tune.trials.rl_config import check_mutations

            scheduler.open(spec.seed, space)
            where = f"{scheduler.name}{spec.where('scheduler')}"
            check_mutations(kind.name, scheduler.mutations, where, spec.config)
        spec._is_checked = True
        return spec

    def sample_config(self) -> dict[str, Any]:
        """One of the configs that trials may get."""
        import numpy as np

        from rlplat.tune.space import Space

        rng = np.random.default_rng(self.seed)
        return Space.parse(self.config).draw(lambda name, domain: domain.sample(rng), rng).config

    def placed(self, key: str, make: Callable[[], Made]) -> Made:
        """make(), with the place of `key` in the experiment file before its complaint."""
        try:
            return make()
        except ConfigError as error:
            origin = self._origins.get(key, "")
            if ":" not in origin or origin in str(error):
                raise
            raise ConfigError(f"{origin}: {error}") from None

    def _objectives(self, is_algorithm: bool) -> dict[str, Any]:
        metric = self.metric or ((DEFAULT_METRIC,) if is_algorithm else ())
        mode = self.mode or ("max",) * len(metric)
        if not metric:
            raise ConfigError(
                "which metric is to be the best? Name one that the trainable reports: metric: accuracy in a file, "
                'metric="accuracy" in Python'
            )
        if twice := sorted({name for name in metric if metric.count(name) > 1}):
            raise ConfigError(f"metric{self.where('metric')}: '{twice[0]}' is there twice")
        if len(mode) != len(metric):
            raise ConfigError(
                f"mode{self.where('mode')}: {_counted(len(mode), 'mode')} ({', '.join(mode)}) for "
                f"{_counted(len(metric), 'metric')} ({', '.join(metric)}): give one for each, [max, min]"
            )
        return {"metric": metric, "mode": mode}

    def _place(self) -> dict[str, Any]:
        name = self.name or trainable_name(self.trainable)
        if not re.fullmatch(r"[\w.+=@-]+", name) or name.strip(".") == "":
            raise ConfigError(f"name{self.where('name')} becomes a directory: letters, digits and -_.+=@, not {name!r}")
        out = self.out
        if out == Path():
            stem = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
            if rlplat.is_initialized() and rlplat.get_current_placement_group() is not None:
                stem += f"-{os.getpid()}"  # other trials of the outer experiment may begin one at once
            out, number = Path("runs") / stem, 1
            while out.exists():
                number += 1
                out = Path("runs") / f"{stem}-{number}"
        return {"name": name, "out": out}


def check_demand(
    demand: Mapping[str, float],
    cluster: Mapping[str, float],
    spec: ExperimentSpec,
    *,
    is_inside: bool = False,
) -> None:
    """InfeasibleResources where one trial ({"CPU": 4}) asks for more than the whole cluster ({"CPU": 2.0}) has.
    is_inside: the experiment runs in a trial of another one, and `cluster` is what that holds."""
    for name, amount in demand.items():
        if amount <= cluster.get(name, 0):
            continue
        ours = name.lower() if name in ("CPU", "GPU") else name
        known = ", ".join(f"{key} {value:g}" for key, value in sorted(cluster.items()) if value)
        if name not in cluster and ours in (spec.resources or {}) and ours != "gpu":
            near = closest(ours, [key.lower() if key in ("CPU", "GPU") else key for key in cluster])
            lower = f"there is no '{ours}'{near or f': omit resources.{ours}'}"
        elif ours in (spec.resources or {}):
            lower = f"lower resources.{ours}"
        elif name == "CPU":
            lower = "lower config.num_rollout_workers"
        else:
            lower = "lower what the config asks for"
        holder = "the whole cluster has"
        if is_inside:
            holder = "the trial in which this experiment runs lends it"
            lower += f", or give the outer experiment resources={{'{ours}': {amount:g}}}" * (name != "GPU")
        raise InfeasibleResources(
            f"one trial needs {ours} {amount:g}{spec.where(f'resources.{ours}')}, and {holder} {known}; {lower}"
        )


def check_silence(spec: ExperimentSpec, is_in_process: bool) -> None:
    """ConfigError where a limit is asked for that nobody can watch: the trial runs in the thread that would."""
    if is_in_process and spec.max_silence_s is not None:
        raise ConfigError(
            f"max_silence_s{spec.where('max_silence_s')} needs worker processes, because a trial that hangs is ended "
            "with its process: leave it out, or leave out rlplat.init(backend='inproc')"
        )


def _check_storage(storage: str, where: str) -> None:
    if not storage:
        return
    if problem := problem_of(storage):
        raise ConfigError(f"storage{where}: {problem}")
    if not urlsplit(storage).path.strip("/"):
        raise ConfigError(f"storage{where}: which database? postgresql://user@host/database, not {shown(storage)!r}")


def _with_stop(config: dict[str, Any], stop: Mapping[str, float]) -> dict[str, Any]:
    """The config of an algorithm ends where the experiment does: its schedules run to there, and best.yaml trains so
    long."""
    inner = config.get("stop", {})
    if "env_steps" not in stop or not isinstance(inner, Mapping) or "env_steps" in inner:
        return config
    return {**config, "stop": {**inner, "env_steps": int(stop["env_steps"])}}


def _try_searcher(spec: ExperimentSpec, space: Space) -> None:
    """Whether there is such a searcher, with such options, for this space; it looks at the study only when it is
    asked."""
    from rlplat.tune.search import make_searcher

    make_searcher(spec.searcher, space, seed=spec.seed, num_samples=spec.num_samples, modes=spec.mode)


def _try_configs(spec: ExperimentSpec, space: Space) -> None:
    """Whether the algorithm accepts what the space gives: its lowest and highest values, and some in between."""
    import numpy as np

    from rlplat.tune.domains import Options, Range
    from rlplat.tune.trials.rl_config import check_configs, check_seeds
    from rlplat.tune.trials.trainables import check_trainable

    rng = np.random.default_rng(spec.seed)
    origins = {tuple(key.split(".")[1:]): origin for key, origin in spec.origins.items() if key.startswith("config.")}
    algo = check_trainable(spec.trainable).name

    def lowest(name: str, domain: Domain) -> Any:
        return domain.clip(domain.usual_ends[0]) if isinstance(domain, Range) else domain.sample(rng)

    def highest(name: str, domain: Domain) -> Any:
        return domain.clip(domain.usual_ends[1]) if isinstance(domain, Range) else domain.sample(rng)

    def turn(number: int) -> Callable[[str, Domain], Any]:
        """Of options the next one each time, so that every branch is seen."""

        def choose(name: str, domain: Domain) -> Any:
            if isinstance(domain, Options):
                return domain.labels[number % len(domain.labels)]
            return domain.sample(rng)

        return choose

    ways = (lowest, highest, *map(turn, range(NUM_TRIED)))
    configs = [space.draw(choose, rng).config for choose in ways]
    check_seeds(algo, configs[0], spec.seeds_per_trial)
    check_configs(algo, configs, origins)


def trainable_name(trainable: Any) -> str:
    """`ppo`, `train` for ./my_trial.py:train, a function's or a class's name; safe as a directory's name."""
    if isinstance(trainable, str):
        text = trainable.rpartition(":")[2]
    else:
        text = getattr(trainable, "__name__", type(trainable).__name__)
    return re.sub(r"[^\w.-]+", "-", text).strip("-.").lower() or "experiment"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def with_code_renamed(settings: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """An experiment's settings with another name for every file of code: of the trainable, in the config."""
    values = dict(settings)
    if isinstance(trainable := values.get("trainable"), str):
        values["trainable"] = rename(trainable)
    if isinstance(config := values.get("config"), dict):
        values["config"] = renamed_in_space(config, rename)
    return values


def with_code_found(saved: Mapping[str, Any], directory: Path) -> tuple[dict[str, Any], list[str]]:
    """(the settings in an experiment.yaml with the files where they are now, a line each about what has changed)."""
    settings = {key: value for key, value in saved.items() if key != "code"}
    if (recorded := saved.get("code")) is None:  # an experiment of before: its names are from here
        return with_code_renamed(settings, located), []
    rename, notes = finder(names_of_code(settings), recorded, directory)
    return with_code_renamed(settings, rename), notes


def names_of_code(settings: Mapping[str, Any]) -> list[str]:
    names: list[str] = []

    def note(name: str) -> str:
        names.append(name)
        return name

    with_code_renamed(settings, note)
    return names
