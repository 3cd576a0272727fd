"""`python -m tests.house.typed_settings` writes `rlplat/rl/run/typed_settings.py`: the settings of every algorithm as
TypedDicts, for type checkers and editors. A test compares; run this where a setting was added or changed."""

from __future__ import annotations

import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.run.registry import algorithm_homes, load_algorithm
from rlplat.rl.schedules import CosineSchedule, LinearSchedule, PiecewiseSchedule, Schedule
from rlplat.section import Section

FILE = Path(__file__).parents[2] / "rlplat/rl/run/typed_settings.py"

EVALUATED = "EvaluatedSettings"
"""What algorithms have that `train` has a parameter for, or in another form."""
_ABOVE = ("rlplat.algorithms", "rlplat.rl.off_policy", "rlplat.rl.offline")

_HEAD = '''\
"""Settings as type checkers and editors know them. Written by `python -m tests.house.typed_settings`: do not edit.

A group of settings is a dict or an object of its config class; keys without a default (`env`, `data`) are parameters of
their own where a config is made. `AnySettings` are those of all algorithms together, for `rlplat.train`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict

'''


class _Writer:
    def __init__(self) -> None:
        self.imports: dict[str, set[str]] = {}
        self.groups: dict[str, dict[str, str]] = {}
        """Types by key, by the name of the group, in the order in which they are needed."""

    def text(self, annotation: Any) -> str:
        """The annotation of what is accepted: wider than what a config then holds."""
        origin, parts = get_origin(annotation), get_args(annotation)
        if origin is typing.Annotated:
            return self.text(parts[0])
        if annotation == Schedule:
            return "ScheduleSetting"
        if origin in (typing.Union, types.UnionType):
            return " | ".join(dict.fromkeys(self.text(part) for part in parts))
        if origin is Literal:
            return f"Literal[{', '.join(_quoted(choice) for choice in parts)}]"
        if origin is list:
            return f"Sequence[{self.text(parts[0])}]"
        if origin is tuple:
            return f"tuple[{', '.join(self.text(part) for part in parts)}] | list[float]"
        if origin is dict:
            return f"Mapping[{self.text(parts[0])}, {self.text(parts[1])}]"
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return f"{self.group(annotation)} | {self.public(annotation)}"
        if annotation is None or annotation is types.NoneType:
            return "None"
        return "Any" if annotation is Any else annotation.__name__

    def group(self, section: type[BaseModel]) -> str:
        settings = {}
        for key, info in section.model_fields.items():
            text = self.text(info.annotation)
            text = f"Required[{text}]" if info.is_required() or key == "schedule" else text
            settings |= dict.fromkeys((key, *_aliases(info)), text)
        for name, others in self.groups.items():
            if others == settings:
                return name
        self.groups[name := _settings_name(section)] = settings
        return name

    def any_of(self, texts: list[str]) -> str:
        """The union, with one group for the several that there are: a dict that fits two TypedDicts is ambiguous."""
        parts = list(dict.fromkeys(part for text in texts for part in text.split(" | ")))
        groups = [part for part in parts if part in self.groups]
        if len(groups) < 2:
            return " | ".join(parts)
        merged: dict[str, list[str]] = {}
        for name in groups:
            for key, text in self.groups[name].items():
                merged.setdefault(key, []).append(text)
        together = {key: self.any_of(each) for key, each in merged.items()}
        found = next((name for name, settings in self.groups.items() if settings == together), None)
        if found is None:
            self.groups[found := f"Any{min(groups, key=len)}"] = together
        return " | ".join([found, *(part for part in parts if part not in groups)])

    def public(self, section: type[BaseModel]) -> str:
        """The class itself, or that of its bases which lies below the module that is written."""
        base = next(each for each in section.__mro__ if not each.__module__.startswith(_ABOVE))
        if base is Section:
            self.imports.setdefault("rlplat.section", set()).add("Section")
            return "Section"
        self.imports.setdefault(base.__module__, set()).add(base.__name__)
        return base.__name__

    def settings(self, config: type[BaseModel]) -> dict[str, str]:
        """Type by key, of those that have a default."""
        return {
            key: self.text(info.annotation)
            for key, info in config.model_fields.items()
            if not info.is_required() and key != "env"
        }


def _aliases(info: Any) -> list[str]:
    choices = getattr(info.validation_alias, "choices", [])
    return [each for each in choices if isinstance(each, str)][1:]


def _quoted(choice: Any) -> str:
    return f'"{choice}"' if isinstance(choice, str) else repr(choice)


def _settings_name(config: type[Any]) -> str:
    name = config.__name__.removesuffix("Config")
    return f"{name}Settings"


def _family_name(config: type[Any], is_announced: bool) -> str:
    if config is AlgorithmConfig:
        return "CommonSettings"
    return f"{'Any' if is_announced else ''}{_settings_name(config)}"


def written() -> str:
    writer = _Writer()
    schedules = " | ".join(writer.text(each) for each in (float, LinearSchedule, CosineSchedule, PiecewiseSchedule))
    configs = {
        found.config_class: writer.settings(found.config_class)
        for found in map(load_algorithm, sorted(algorithm_homes()))
        if found.__module__.startswith("rlplat.algorithms.")
    }
    union: dict[str, list[str]] = {}
    for settings in configs.values():
        for key, text in settings.items():
            union.setdefault(key, []).append(text)
    for each in map(load_algorithm, algorithm_homes()):
        for key, info in each.config_class.model_fields.items():
            if info.is_required() and key != "env":
                union.setdefault(key, []).append(writer.text(info.annotation))
    together = {key: writer.any_of(texts) for key, texts in union.items()}
    below: dict[type[Any], list[dict[str, str]]] = {}
    for config, settings in configs.items():
        for family in config.__mro__[: config.__mro__.index(AlgorithmConfig) + 1]:
            below.setdefault(family, []).append(settings)
    # What a family's algorithms have in common is a class, of which theirs are subclasses; `AnySettings` too, so that
    # what differs there (`train` takes objects as callbacks, and has a parameter for them) is left to the algorithms.
    families = {
        _family_name(family, family in configs): {
            key: text
            for key, text in each[0].items()
            if key != "callbacks" and together[key] == text and all(other.get(key) == text for other in each)
        }
        for family, each in below.items()
        if len(each) > 1 and not any(above in configs for above in family.__mro__[1:])
    }
    del together["callbacks"]
    all_of_them = families | {_settings_name(config): settings for config, settings in configs.items()}
    first = next(iter(configs.values()))
    evaluated = {key: first[key] for key in ("evaluation", "callbacks")}
    classes = {EVALUATED: evaluated}
    texts = [_class(EVALUATED, "TypedDict", evaluated)]
    for name, settings in sorted(all_of_them.items(), key=lambda each: len(each[1])):
        texts.append(_subclass(name, settings, classes, most=1))
        classes[name] = settings
    texts.append(_subclass("AnySettings", together, classes, most=len(classes)))
    above: dict[str, dict[str, str]] = {}
    groups: list[str] = []
    for name, settings in writer.groups.items():
        groups.append(_subclass(name, settings, above, most=1))
        above[name] = settings
    groups.insert(3, f"ScheduleSetting = {schedules}")
    imports = "".join(
        f"from {module} import {', '.join(sorted(names))}\n" for module, names in sorted(writer.imports.items())
    )
    return _HEAD + imports + "\n\n" + "\n\n\n".join([*groups, *texts]) + "\n"


def _subclass(name: str, settings: dict[str, str], classes: dict[str, dict[str, str]], *, most: int) -> str:
    """Of at most so many of the classes, the largest first, that have nothing which it has not; EVALUATED beside."""
    bases: list[str] = []
    rest = dict(settings)
    for base, its in sorted(classes.items(), key=lambda each: -len(each[1])):
        is_free = len(bases) < most or base == EVALUATED
        if is_free and its.items() <= settings.items() and its.keys() & rest.keys():
            bases.append(base)
            rest = {key: text for key, text in rest.items() if key not in its}
    return _class(name, ", ".join(bases) or "TypedDict", rest)


def _class(name: str, base: str, settings: dict[str, str]) -> str:
    lines = [f"    {key}: {text}" for key, text in settings.items()]
    return f"class {name}({base}, total=False):\n" + ("\n".join(lines) or "    pass")


if __name__ == "__main__":
    FILE.write_text(written())
    subprocess.run([Path(sys.executable).with_name("ruff"), "format", FILE], check=True)
