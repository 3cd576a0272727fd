"""What an experiment remembers is JSON: texts of it, and in words what is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlplat.errors import ConfigError


def as_json(value: Any, name: str) -> str:
    """ConfigError names what in it is not JSON."""
    try:
        return json.dumps(value, default=_number)
    except (TypeError, ValueError):
        raise ConfigError(_what_is_notas_json(value, name)) from None


def as_plain(value: Any, name: str) -> Any:
    return json.loads(as_json(value, name))


def _number(value: Any) -> Any:
    """A numpy scalar is a number to everybody but `json`."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")


def key_that_is_no_text(value: Any, name: str) -> str:
    """JSON would make a text of it without a word."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                return f"{name} has the key {key!r}, which is not a text"
            if wrong := key_that_is_no_text(part, f"{name}.{key}"):
                return wrong
    return ""


def _what_is_notas_json(value: Any, name: str) -> str:
    parts: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        parts = [(f"{name}.{key}", part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{name}[{index}]", part) for index, part in enumerate(value)]
    for place, part in parts:
        try:
            json.dumps(part, default=_number)
        except (TypeError, ValueError):
            return _what_is_notas_json(part, place)
    return (
        f"{name} is {value!r}, a {type(value).__name__}: what an experiment remembers is kept as JSON, so it must be a "
        "number, a text, true, false, null, or a list or a mapping of them"
    )
