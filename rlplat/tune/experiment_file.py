"""Experiment files: YAML -> `ExperimentSpec`s (docs/tuning-reference.md).

With `runs`, one file holds several experiments: the other keys are what they share, each run says what it changes
(nested, or dotted as in --set), and `repeats: 3` makes three of it with different seeds.
"""

from __future__ import annotations

import difflib
import logging
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from rlplat.config import Layer, closest, load_yaml, parse_yaml, resolve
from rlplat.config_sources import KeyPath, put
from rlplat.errors import ConfigError
from rlplat.paths import expanded
from rlplat.rl.user_code import home_of, is_file, record_code
from rlplat.tune.address import shown
from rlplat.tune.search import Searcher
from rlplat.tune.space import as_yaml, is_domain, plain
from rlplat.tune.spec import ExperimentSpec, names_of_code, with_code_found

SAVED_AS = "experiment.yaml"
"""In an experiment's directory: the settled experiment, as a file of this form (saved_experiment.py)."""
MAX_EXPERIMENTS = 1_000
"""More runs and repeats than this in one file are a mistake."""


KEYS = tuple(ExperimentSpec.model_fields)


def load_experiments(
    path: str | Path, settings: Sequence[Layer] = (), only: Iterable[str] = ()
) -> list[ExperimentSpec]:
    """The experiments of a file, not checked yet, in the order in which they are to run.

    settings: later layers that win over the file (flags), in every experiment of it.
    only: names of runs (`large`, or one repeat of it: `large-2`); empty: all.
    """
    layer = load_yaml(path)
    if "code" in layer.values and Path(path).name == SAVED_AS:
        layer.values, notes = with_code_found(layer.values, Path(path).parent)
        for note in notes:
            logging.getLogger("rlplat.code").warning("warning: %s", note)
    _refuse_other_forms(layer, str(path))
    settings = [aimed(setting, _config_keys(layer.values)) for setting in settings]
    stem = expanded(path).stem
    if "runs" not in layer.values:
        if only := list(only):
            raise ConfigError(f"--only {only[0]}: {path} has no `runs`, it is one experiment")
        merged = overlay([layer, *settings])
        merged.values.setdefault("name", stem)
        merged.values.setdefault("out", f"runs/{merged.values['name']}")
        return [experiment_of(merged)]
    return _several(layer, settings, list(only), str(path), stem)


def experiment_of(layer: Layer) -> ExperimentSpec:
    """One experiment from a layer of its keys; every complaint says where its key was written."""
    if layer.values.get("trainable") is None and layer.values.keys() <= set(KEYS):
        raise ConfigError(
            "which trainable? Write `trainable: ppo`, or ./my_trial.py:train, or pkg.module:Class; "
            "on the command line: --algo NAME"
        )
    for key in ("stop", "resources"):  # null takes a key away that the base has
        if isinstance(given := layer.values.get(key), dict):
            layer.values[key] = {name: value for name, value in given.items() if value is not None}
    if layer.values.get("config", 0) is None:  # `config:` with nothing below it
        layer.values["config"] = {}
    layer.values.setdefault("trainable", "")  # misspelt: the complaint is about the key that is not known
    if str(layer.values["trainable"]).startswith("__main__:"):
        raise ConfigError(
            f"the trainable {layer.values['trainable']} was defined in a Python program: go on there, with "
            "tune.run(..., out=..., resume=True)"
        )
    spec = resolve(ExperimentSpec, [layer])
    return spec.written_at({".".join(key): origin for key, origin in layer.origins.items()})


def overlay(layers: Sequence[Layer]) -> Layer:
    """Later layers win, key by key; what is one thing is replaced as a whole: a domain of the search space, and a
    searcher or a scheduler with the settings of another one."""
    merged = Layer()
    for layer in layers:
        _lay_over(merged.values, layer.values, ())
        merged.origins.update(layer.origins)
    return merged


def aimed(settings: Layer, config_keys: Iterable[str] = ()) -> Layer:
    """A layer of flags as one of an experiment's keys: `num_samples` is the experiment's, and what the experiment does
    not have (`learning_rate`) belongs to the config of its trials; `config.seed` is there for sure.

    config_keys: those that the config has already. A new one that looks like a key of the experiment is refused.
    """
    layer, known = Layer(), {*config_keys}
    for key, value in settings.values.items():
        is_ours = key in KEYS
        origin = settings.origins.get((key,), key)
        near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.8)
        if not is_ours and key not in known and near:
            raise ConfigError(
                f"unknown key '{key}' (from {origin}); did you mean '{near[0]}'? For a new key of the trials' config: "
                f"--set config.{key}=..."
            )
        _lay_over(layer.values if is_ours else layer.values.setdefault("config", {}), {key: value}, ())
        for place, written in settings.origins.items():
            if place[:1] == (key,):
                layer.origins[place if is_ours else ("config", *place)] = written
    return layer


def overrides_layer(values: Mapping[str, Any], origins: Mapping[KeyPath, str], at: KeyPath) -> Layer:
    """A run's overrides (at `at` in the file) as a layer of an experiment's keys; dotted keys reach into sections."""
    layer = Layer()
    for key, value in values.items():
        path = tuple(key.split("."))
        origin = origins.get((*at, key), ".".join((*at, key)))
        put(layer, path, value, origin)
        for place, written in origins.items():
            if place[: len(at) + 1] == (*at, key):
                layer.origins[(*path, *place[len(at) + 1 :])] = written
    return layer


def _several(layer: Layer, settings: Sequence[Layer], only: list[str], path: str, stem: str) -> list[ExperimentSpec]:
    runs = layer.values.pop("runs")
    at_runs = layer.origins.get(("runs",), path)
    if not isinstance(runs, dict) or not runs:
        raise ConfigError(f"'runs' in {at_runs} holds experiments by name: runs: {{small: {{...}}, large: {{...}}}}")
    found: list[tuple[str, str, ExperimentSpec]] = []
    complaints: list[str] = []
    for run_name, overrides in runs.items():
        at = ("runs", run_name)
        origin = layer.origins[at]
        try:
            for name, experiment in _repeated(run_name, overrides, layer, settings, stem, origin):
                found.append((run_name, name, experiment))
        except ConfigError as error:
            complaints.append(f"run '{run_name}': {error}")
        if len(found) > MAX_EXPERIMENTS:
            raise ConfigError(f"{at_runs}: more than {MAX_EXPERIMENTS:,} experiments in one file, repeats included")
    if complaints:
        raise ConfigError("\n".join(complaints))
    names = [name for _, name, _ in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{at_runs}: two experiments would be called '{twice[0]}' (a repeat, and a run)")
    wanted = set(only)
    for name in only:
        known = [*runs, *names]
        if name not in known:
            raise ConfigError(f"--only {name}: {path} has no such run{closest(name, known)}\nruns: {', '.join(runs)}")
    return [spec for run_name, name, spec in found if not wanted or wanted & {run_name, name}]


def _repeated(
    run_name: str, overrides: Any, layer: Layer, settings: Sequence[Layer], stem: str, origin: str
) -> Iterable[tuple[str, ExperimentSpec]]:
    overrides = {} if overrides is None else overrides
    if not isinstance(overrides, dict):
        raise ConfigError(f"{origin}: a run holds the keys that it changes, not {overrides!r}")
    if "runs" in overrides:
        raise ConfigError(f"{layer.origins[('runs', run_name, 'runs')]}: runs do not nest")
    own = dict(overrides)
    repeats = own.pop("repeats", 1)
    if isinstance(repeats, bool) or not isinstance(repeats, int) or not 1 <= repeats <= MAX_EXPERIMENTS:
        at = layer.origins[("runs", run_name, "repeats")]
        raise ConfigError(f"'repeats' in {at} is a whole number from 1 to {MAX_EXPERIMENTS:,}, not {repeats!r}")
    for key in ("name", "out"):
        if key in own:
            at = layer.origins[("runs", run_name, key)]
            raise ConfigError(f"'{key}' in {at}: a run is called by its key, '{run_name}', below the file's `out`")
    base = Layer(dict(layer.values), layer.origins)
    out = base.values.pop("out", None)
    base_name = base.values.pop("name", stem)
    changes = overrides_layer(own, layer.origins, ("runs", run_name))
    merged = overlay([base, changes, *settings])
    root = expanded(str(merged.values.pop("out", None) or out or f"runs/{base_name}"))
    for number in range(repeats):
        name = run_name if repeats == 1 else f"{run_name}-{number + 1}"
        seed = merged.values.get("seed", 0)
        values = {**merged.values, "name": name, "out": str(root / name)}
        if repeats > 1 and isinstance(seed, int):
            values["seed"] = seed + number
        yield name, experiment_of(Layer(values, merged.origins))


def _lay_over(target: dict[str, Any], source: Mapping[str, Any], path: KeyPath) -> None:
    for key, value in source.items():
        here, old = (*path, key), target.get(key)
        if key in ("searcher", "scheduler") and not path:
            old, value = named(old), named(value)
            if _name_of(value) not in (None, _name_of(old)):
                old = None  # another one: the settings of the old one are not for it
        if isinstance(value, dict):
            merges = isinstance(old, dict) and not is_domain(old) and not is_domain(value)
            target[key] = inner = dict(old) if isinstance(old, dict) and merges else {}
            _lay_over(inner, value, here)
        else:
            target[key] = value


def _config_keys(values: Mapping[str, Any]) -> set[str]:
    """Top-level keys of `config`, and of what the runs say of it."""
    keys: set[str] = set()
    runs = values.get("runs")
    for section in (values, *(runs.values() if isinstance(runs, dict) else ())):
        if not isinstance(section, dict):
            continue
        keys |= {key.split(".")[1] for key in section if key.startswith("config.")}
        if isinstance(config := section.get("config"), dict):
            keys |= config.keys()
    return keys


def named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _name_of(value: Any) -> Any:
    return value.get("name") if isinstance(value, dict) else None


def _refuse_other_forms(layer: Layer, path: str) -> None:
    """A training config, a `best.yaml`, and RLlib's old form each get their own advice."""
    values = layer.values
    if "trainable" in values or "runs" in values:
        return
    if "algo" in values or "env" in values:
        raise ConfigError(
            f"{path} is the config of one training run, not an experiment: rlplat train {shlex.quote(str(path))}"
        )
    sections = [value for value in values.values() if isinstance(value, dict)]
    if sections and len(sections) == len(values) and all("run" in section for section in sections):
        name = next(iter(values))
        raise ConfigError(
            f"{path} is in the form of RLlib's files: put '{name}' and its siblings below `runs:`, and write "
            "`trainable: ppo` for `run: PPO`, `config: {env: ...}` for `env: ...` (docs/tuning-reference.md)"
        )


# -------------------------------------------------------------------------------- what is kept of it


def dump_experiment(spec: ExperimentSpec) -> str:
    """The experiment as the text of a file that `load_experiments` reads again; without `out`, which is where the file
    is, and without the storage's password."""
    settings: dict[str, Any] = {
        "trainable": _home_of(spec.trainable),
        "config": _plain(spec.config),
        "metric": _one_or_list(spec.metric),
        "mode": _one_or_list(spec.mode),
        "searcher": _searcher_settings(spec.searcher),
        "scheduler": _plain(named(spec.scheduler)),
        "storage": shown(spec.storage),
    }
    for key in KEYS:
        if key not in settings and key != "out":
            settings[key] = _plain(getattr(spec, key))
    ordered = {key: settings[key] for key in KEYS if settings.get(key) not in (None, "")}
    return yaml.safe_dump(ordered, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)


def code_of(spec: ExperimentSpec) -> str:
    """The section of experiment.yaml by which the user's files are found again."""
    recorded = record_code(names_of_code(settings_of(spec)), spec.out)
    return yaml.safe_dump({"code": recorded}, sort_keys=False, allow_unicode=True) if recorded else ""


FIXED = ("trainable", "config", "metric", "mode", "stop", "searcher", "scheduler", "seed", "seeds_per_trial")
"""Keys that a resumed experiment must have as it had them: else its trials could not be compared."""


def settings_of(spec: ExperimentSpec) -> dict[str, Any]:
    """What `dump_experiment` writes, as plain values."""
    return parse_yaml(dump_experiment(spec), "").values


def refuse_changes(spec: ExperimentSpec, before: Mapping[str, Any], place: str) -> None:
    """ConfigError where a resumed experiment is not the one that was begun. before: `settings_of` that one, found in
    `place`."""
    now, (before, _) = settings_of(spec), with_code_found(before, spec.out)
    for key in FIXED:
        if (change := _change(before.get(key), now.get(key), key)) is not None:
            which, old, new = change
            raise ConfigError(
                f"this is not the experiment in {place}: '{which}' was {old}, and is {new} now"
                f"{spec.where(which)}; keep what it was, or start a new one: --out DIR (in Python out=...)"
            )


def _change(old: Any, new: Any, place: str) -> tuple[str, str, str] | None:
    """The first place where two settings differ, and what is there."""
    if old == new or _has_moved(old, new):
        return None
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = zip(old, new, strict=True)
        changes = [_change(was, now, f"{place}[{index}]") for index, (was, now) in enumerate(pairs)]
        if not any(changes):
            return None
    if isinstance(old, dict) and isinstance(new, dict) and not is_domain(old) and not is_domain(new):
        for key in [*old, *new]:
            if (change := _change(old.get(key), new.get(key), f"{place}.{key}")) is not None:
                return change
        return None
    return place, _written(old), _written(new)


def _has_moved(old: Any, new: Any) -> bool:
    """Whether a name leads to the same file of a project that is in another place now (or on another machine). What
    is in the file is compared where experiment.yaml is read."""
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    homes = home_of(old), home_of(new)
    return all(map(is_file, homes)) and Path(old).name == Path(new).name and not Path(homes[0]).exists()


def _written(value: Any) -> str:
    return "not set" if value is None else repr(value)


def _searcher_settings(searcher: Searcher) -> dict[str, Any]:
    """One mapping, as it is written in a file: the name, the sampler's options, and what every searcher may be told."""
    settings = {item.name: getattr(searcher, item.name) for item in fields(searcher)}
    options = settings.pop("options")
    return {key: _plain(value) for key, value in {**settings, **options}.items() if value not in (None, (), [])}


def _home_of(trainable: Any) -> str:
    """ "module:name" of a function or a class, what the user wrote of the rest."""
    if isinstance(trainable, str):
        return trainable
    return f"{getattr(trainable, '__module__', '?')}:{getattr(trainable, '__qualname__', type(trainable).__name__)}"


def _plain(value: Any) -> Any:
    """As YAML can write it; of objects that it does not know, what they look like."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if is_domain(value):
        return _plain(as_yaml(value))
    with suppress(TypeError):
        return plain(value)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # the same in the next process


def _one_or_list(words: Sequence[str]) -> str | list[str] | None:
    return list(words) if len(words) > 1 else words[0] if words else None
