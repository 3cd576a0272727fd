"""Settings: defaults < YAML < flags, merged and validated into one typed model.

    layers = [load_yaml("configs/ppo/CartPole-v1.yaml"), layer_from_flags([("stop.env-steps", "200000")])]
    config = resolve(PPOConfig, layers)          # a PPOConfig, or one ConfigError with every complaint
    Path("config.yaml").write_text(dump(config)) # complete: every key, whether set or default

Complaints read like `unknown key 'learning_rte' in configs/ppo/Pong.yaml:7; did you mean 'learning_rate'?`
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rlplat.config_sources import (
    KeyPath,
    Layer,
    layer_from_arguments,
    layer_from_flags,
    load_yaml,
    merge,
    parse_scalar,
    parse_yaml,
)
from rlplat.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)

__all__ = [
    "Layer",
    "closest",
    "dump",
    "layer_from_arguments",
    "layer_from_flags",
    "load_yaml",
    "parse_scalar",
    "parse_yaml",
    "resolve",
]


def resolve(model: type[Model], layers: Sequence[Layer]) -> Model:
    """Merge the layers over the model's defaults and validate; all complaints come in one ConfigError."""
    from pydantic import ValidationError

    merged = merge([_with_field_names(model, layer) for layer in layers])
    complaints: list[tuple[KeyPath, str]] = []
    _drop_unknown(model, merged, merged.values, (), complaints)
    try:
        config = model.model_validate(merged.values)
    except ValidationError as error:
        complaints += _complaints_of(error, merged)
    else:
        if not complaints:
            return config
    raise ConfigError(
        "\n".join(text for _, text in sorted(complaints, key=lambda item: _order(item[0], merged)))
    )


def dump(config: BaseModel) -> str:
    """The complete config as YAML text, in the order of the model's fields."""
    import yaml

    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def closest(word: str, candidates: Iterable[str]) -> str:
    """`; did you mean 'learning_rate'?` for the candidate nearest to the word, or the empty string."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean '{by_lower[near[0]]}'?" if near else ""


def nested_model(annotation: Any) -> type[BaseModel] | None:
    """The pydantic model inside a field's annotation (`M` or `M | None`), if there is one."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            if found := nested_model(option):
                return found
    return None


def key_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted key that the model knows: `learning_rate`, `stop`, `stop.env_steps`, ..."""
    names: list[str] = []
    for name, info in model.model_fields.items():
        names.append(prefix + name)
        if inner := nested_model(info.annotation):
            names += key_names(inner, f"{prefix}{name}.")
    return names


def _fields_by_key(model: type[BaseModel]) -> dict[str, Any]:
    """Field infos by each name under which a value may be given (aliases included)."""
    fields: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        for key in (name, *_aliases(info)):
            fields[key] = info
    return fields


def _with_field_names(model: type[BaseModel], layer: Layer) -> Layer:
    """The layer with aliases replaced by the names of their fields: else a flag could not override what a file calls
    otherwise."""
    names: dict[KeyPath, str] = {}

    def rename(model: type[BaseModel], values: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
        by_alias = {alias: name for name, info in model.model_fields.items() for alias in _aliases(info)}
        renamed = {}
        for key, value in values.items():
            name = names[(*path, key)] = by_alias.get(key, key)
            info = model.model_fields.get(name)
            inner = nested_model(info.annotation) if info is not None else None
            renamed[name] = rename(inner, value, (*path, key)) if inner and isinstance(value, dict) else value
        return renamed

    values = rename(model, layer.values, ())
    origins = {
        tuple(names.get(path[: depth + 1], key) for depth, key in enumerate(path)): origin
        for path, origin in layer.origins.items()
    }
    return Layer(values, origins)


def _aliases(info: Any) -> list[str]:
    aliases = getattr(info.validation_alias, "choices", [info.validation_alias or info.alias])
    return [alias for alias in aliases if isinstance(alias, str)]


def _drop_unknown(
    model: type[BaseModel],
    merged: Layer,
    values: dict[str, Any],
    path: KeyPath,
    complaints: list[tuple[KeyPath, str]],
    root: type[BaseModel] | None = None,
) -> None:
    root = root or model
    fields = _fields_by_key(model)
    for key in list(values):
        here = (*path, key)
        if key not in fields:
            del values[key]
            hint = _hint(here, fields, root)
            complaints.append((here, f"unknown key '{'.'.join(here)}'{_where(here, merged)}{hint}"))
        elif (inner := nested_model(fields[key].annotation)) and isinstance(values[key], dict):
            _drop_unknown(inner, merged, values[key], here, complaints, root)


def _hint(path: KeyPath, siblings: Iterable[str], root: type[BaseModel]) -> str:
    """The nearest name among the siblings, else the same last name elsewhere (`encoder` -> `policy.encoder`)."""
    word, parent = path[-1], ".".join(path[:-1])
    everywhere = key_names(root)
    same_name = [name for name in everywhere if name.rsplit(".", 1)[-1] == word]
    if same_name:
        return f"; did you mean '{same_name[0]}'?"
    return closest(".".join(path), [f"{parent}.{name}" if parent else name for name in siblings]) or closest(
        ".".join(path), everywhere
    )


def _complaints_of(error: Any, merged: Layer) -> list[tuple[KeyPath, str]]:
    """pydantic's errors by key; the members of a union that all refused one value are joined by `or`."""
    wanted: dict[KeyPath, list[str]] = {}
    inputs: dict[KeyPath, Any] = {}
    for item in error.errors(include_url=False):
        path = _known_prefix(item["loc"], merged.values)
        if item["type"] == "missing":
            missing = tuple(str(part) for part in item["loc"])
            wanted[missing] = ["missing"]
            continue
        message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        message = message.replace("Input should be", "must be", 1)
        if message not in wanted.setdefault(path, []):
            wanted[path].append(message)
        inputs.setdefault(path, _value_at(merged.values, path))
    complaints = []
    for path, messages in wanted.items():
        name = ".".join(path)
        if messages == ["missing"]:
            complaints.append(
                (path, f"'{name}' is not set and has no default: give --{name.replace('_', '-')} VALUE")
            )
        elif not path:
            complaints.append((path, " or ".join(messages)))
        else:
            allowed = " or ".join(messages)
            complaints.append(
                (path, f"bad value for '{name}'{_where(path, merged)}: {_short(inputs[path])} ({allowed})")
            )
    return complaints


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _known_prefix(location: Sequence[Any], values: Any) -> KeyPath:
    """pydantic's location without the parts that are no keys (names of union members, list positions)."""
    path: list[str] = []
    for part in location:
        if not isinstance(values, Mapping) or part not in values:
            break
        path.append(str(part))
        values = values[part]
    return tuple(path)


def _value_at(values: Any, path: KeyPath) -> Any:
    for part in path:
        values = values[part]
    return values


def _where(path: KeyPath, merged: Layer) -> str:
    while path:
        if origin := merged.origins.get(path):
            return f" in {origin}" if ":" in origin else f" (from {origin})"
        path = path[:-1]
    return ""


def _order(path: KeyPath, merged: Layer) -> tuple[str, int]:
    """By file, then line, so that complaints come in the order in which one would fix them."""
    while path and path not in merged.origins:
        path = path[:-1]
    origin = merged.origins.get(path, "")
    file, _, line = origin.rpartition(":")
    return (file, int(line)) if line.isdigit() else (origin, 0)
