"""Settings: defaults < YAML < flags, merged and validated into one typed model.

    layers = [load_yaml("configs/ppo/CartPole-v1.yaml"), layer_from_flags([("stop.env-steps", "200000")])]
    config = resolve(PPOConfig, layers)          # a PPOConfig, or one ConfigError with every complaint
    Path("config.yaml").write_text(dump(config)) # complete: every key, whether set or default

Complaints read like `unknown key 'learning_rte' in configs/ppo/Pong.yaml:7; did you mean 'learning_rate'?`
"""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rlplat.config_sources import (
    BARE,
    KeyPath,
    Layer,
    layer_from_arguments,
    layer_from_flags,
    load_yaml,
    merge,
    parse_scalar,
    parse_yaml,
    read_plain,
)
from rlplat.errors import ConfigError
from rlplat.setting_types import accepts_bool, member_type, takes

if TYPE_CHECKING:
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)

__all__ = [
    "Layer",
    "closest",
    "dump",
    "dump_values",
    "layer_from_arguments",
    "layer_from_flags",
    "load_yaml",
    "parse_scalar",
    "parse_yaml",
    "resolve",
]


def resolve(model: type[Model], layers: Sequence[Layer], owners: Callable[[str], str] = lambda key: "") -> Model:
    """Merge the layers over the model's defaults and validate; all complaints come in one ConfigError.

    owners: what to say about a key that is unknown here and known to another model, or the empty string."""
    from pydantic import ValidationError

    merged = merge([_with_field_names(model, layer) for layer in layers])
    complaints: list[tuple[KeyPath, str]] = []
    _check_keys(model, merged, merged.values, (), complaints, owners)
    try:
        config = model.model_validate(merged.values)
    except ValidationError as error:
        complaints += _complaints_of(error, merged, model)
    else:
        if not complaints:
            return config
    raise ConfigError("\n".join(text for _, text in sorted(complaints, key=lambda item: _order(item[0], merged))))


def with_origins(text: str, origins: Mapping[KeyPath, str]) -> str:
    """The message with the files and lines where the settings that it names (`policy.core=lstm`) were written."""
    keys = dict.fromkeys(tuple(name.split(".")) for name in re.findall(r"\b([a-z_][\w.]*)=", text))
    places = [f"{'.'.join(key)} is from {origins[key]}" for key in keys if ":" in origins.get(key, "")]
    return f"{text} ({', '.join(places)})" if places else text


def dump(config: BaseModel) -> str:
    """The complete config as YAML text, in the order of the model's fields."""
    return dump_values(config.model_dump(mode="json"))


def dump_values(values: Mapping[str, Any]) -> str:
    """Plain values as YAML text that `parse_yaml` reads back as they were: a text that it would read as a number
    ("1e-4", which YAML 1.1 does not) is quoted."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Any, value: str) -> Any:
        style = None if "\n" in value or read_plain(value) == value else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True)


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


def takes_value(model: type[BaseModel], key: str) -> bool:
    """Whether the flag of this dotted key needs a value after it: not so for true or false, nor for an unknown key."""
    _, info = owner_and_field(model, tuple(key.split(".")))
    if info is None:
        return False
    return info.annotation is Any or not accepts_bool(info.annotation)  # Any: an argument of the environment


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


def _check_keys(
    model: type[BaseModel],
    merged: Layer,
    values: dict[str, Any],
    path: KeyPath,
    complaints: list[tuple[KeyPath, str]],
    owners: Callable[[str], str],
    root: type[BaseModel] | None = None,
) -> None:
    """Take out unknown keys and flags that lack their value, with a complaint each; a switch alone means true."""
    root = root or model
    fields = _fields_by_key(model)
    for key in list(values):
        here = (*path, key)
        if key not in fields:
            del values[key]
            hint = _hint(here, fields, owners, root)
            complaints.append((here, f"unknown key '{'.'.join(here)}'{_where(here, merged)}{hint}"))
        elif values[key] is BARE and not accepts_bool(fields[key].annotation):
            del values[key]
            complaints.append((here, f"{merged.origins[here]} needs a value: {takes(fields[key])}"))
        elif (inner := nested_model(fields[key].annotation)) and isinstance(values[key], dict):
            _check_keys(inner, merged, values[key], here, complaints, owners, root)
        else:
            values[key] = _switched_on(values[key])


def _switched_on(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _switched_on(inner) for key, inner in value.items()}
    return True if value is BARE else value


def _hint(path: KeyPath, siblings: Iterable[str], owners: Callable[[str], str], root: type[BaseModel]) -> str:
    """What another library's name is called here, else the same last name elsewhere (`encoder` -> `policy.encoder`),
    else whose it is, else the nearest name among the siblings, else anywhere."""
    word, parent = path[-1], ".".join(path[:-1])
    everywhere = key_names(root)
    names, meaning = root.name_elsewhere(word.lower()) if hasattr(root, "name_elsewhere") else ("", "")
    # (a key of a free dict, such as env_kwargs, is listed nowhere)
    for name in names.split():
        if name in everywhere or name.partition(".")[0] in everywhere:
            return f"; did you mean '{name}'?" + (f" ({meaning})" if meaning else "")
    if same := [name for name in everywhere if name.rsplit(".", 1)[-1] == word]:
        return f"; did you mean '{same[0]}'?"
    if needless := getattr(root, "not_needed", {}).get(word.lower()):
        return f"; {needless}"
    if whose := owners(".".join(path)):
        return whose
    return closest(".".join(path), [f"{parent}.{name}" if parent else name for name in siblings]) or closest(
        ".".join(path), everywhere
    )


def _complaints_of(error: Any, merged: Layer, model: type[BaseModel]) -> list[tuple[KeyPath, str]]:
    """pydantic's errors, one complaint for each key; where a validator of ours speaks, its own words."""
    complaints: dict[KeyPath, str] = {}
    for item in error.errors(include_url=False):
        path = _known_prefix(item["loc"], merged.values)
        name = ".".join(path)
        said = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if item["type"] == "missing" and isinstance(item["loc"][-1], str):
            path = (*path, str(item["loc"][-1]))
            flag = ".".join(path).replace("_", "-")
            complaints[path] = f"'{'.'.join(path)}' is not set and has no default: give --{flag} VALUE"
        elif item["type"] == "extra_forbidden":
            hint = closest(path[-1], _fields_by_key(owner_and_field(model, path)[0]))
            complaints[path] = f"unknown key '{name}'{_where(path, merged)}{hint}"
        elif not path:
            complaints[path] = with_origins(said, merged.origins)
        else:
            is_ours = item["type"] in ("value_error", "assertion_error")
            info, value = owner_and_field(model, path)[1], _value_at(merged.values, path)
            if is_ours:
                allowed = said
            elif theirs := getattr(model, "values_elsewhere", {}).get(value if isinstance(value, str) else ""):
                allowed = theirs
            elif info is not None and (group := nested_model(info.annotation)):
                allowed = f"it takes settings by name: {_example(path, group, value, _origin(path, merged))}"
            else:
                allowed = f"must be {takes(info)}"
            complaints[path] = f"bad value for '{name}'{_where(path, merged)}: {_short(value)} ({allowed})"
    # Of a value with keys the union's other members complain as well, one level higher.
    return [
        (path, text)
        for path, text in complaints.items()
        if not any(len(other) > len(path) > 0 and other[: len(path)] == path for other in complaints)
    ]


def owner_and_field(model: type[BaseModel], path: KeyPath) -> tuple[type[BaseModel], Any]:
    """The innermost model on a path of keys, and the field there, or the member of a field that is a dict."""
    from pydantic.fields import FieldInfo

    info: Any = None
    keys = iter(path)
    for key in keys:
        found = _fields_by_key(model).get(key)
        if found is None:
            break
        info, inner = found, nested_model(found.annotation)
        if inner is None and (member := member_type(found.annotation)) is not None and next(keys, None):
            info, inner = FieldInfo.from_annotation(member), nested_model(member)
        if inner is None:
            break
        model = inner
    return model, info


def _short(value: Any) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _known_prefix(location: Sequence[Any], values: Any) -> KeyPath:
    """pydantic's location without the parts that are no keys (names of union members, list positions)."""
    path: list[str] = []
    for part in location:
        if isinstance(values, Mapping) and part in values:
            path.append(str(part))
            values = values[part]
    return tuple(path)


def _value_at(values: Any, path: KeyPath) -> Any:
    for part in path:
        values = values[part]
    return values


def _example(path: KeyPath, group: type[BaseModel], value: Any, origin: str) -> str:
    """Settings of a group as they are written there: an argument, a flag, a line of a file; with the number that was
    given, where the first of them is one."""
    settings: Mapping[str, Any] = getattr(group, "example", {}) or {
        name: "..." if info.is_required() else info.get_default(call_default_factory=True)
        for name, info in list(group.model_fields.items())[:1]
    }
    key, shown = next(iter(settings.items()))
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    are_numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (number, shown))
    if are_numbers and math.isfinite(number):
        shown = type(shown)(number)
    if origin.startswith("argument "):
        outer = "".join(f"{each}={{" if not depth else f'"{each}": {{' for depth, each in enumerate(path))
        return f"{outer}{json.dumps(key)}: {_in_python(shown)}{'}' * len(path)}"
    text = json.dumps(shown, default=str) if not isinstance(shown, str) else shown
    if origin.startswith("--"):
        flag = ".".join([*path, key]).replace("_", "-")
        return f"--{flag} {shlex.quote(text)}"
    return f"{path[-1]}: {{{key}: {text}}}"


def _in_python(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _origin(path: KeyPath, merged: Layer) -> str:
    while path:
        if origin := merged.origins.get(path):
            return origin
        path = path[:-1]
    return ""


def _where(path: KeyPath, merged: Layer) -> str:
    origin = _origin(path, merged)
    return "" if not origin else f" in {origin}" if ":" in origin else f" (from {origin})"


def _order(path: KeyPath, merged: Layer) -> tuple[str, int]:
    """By file, then line, so that complaints come in the order in which one would fix them."""
    while path and path not in merged.origins:
        path = path[:-1]
    origin = merged.origins.get(path, "")
    match = re.match(r"(.*):(\d+)( \(merged in line \d+\))?$", origin)
    return (match[1], int(match[2])) if match else (origin, 0)
