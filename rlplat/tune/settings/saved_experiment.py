"""What is kept of an experiment's settings, and whether one that goes on is still the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from rlplat.config import parse_yaml
from rlplat.errors import ConfigError
from rlplat.rl.user_code import home_of, is_file, record_code
from rlplat.tune.search.search import Searcher
from rlplat.tune.settings.experiment_file import KEYS, named
from rlplat.tune.settings.spec import ExperimentSpec, names_of_code, with_code_found
from rlplat.tune.space.parser import as_yaml, is_domain
from rlplat.tune.space.tree import plain
from rlplat.tune.storage.address import shown


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
    return {
        key: _plain(value) for key, value in {**settings, **options}.items() if value not in (None, (), [])
    }


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
