"""Whether the values of options are of the types that they are declared with: they may come from a serve.yaml."""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from rlplat.config import require_fields
from rlplat.errors import ConfigError

_KINDS: dict[str, tuple[type, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "a text"),
    "dict[str, float]": (dict, "numbers by name"),
}


def require_types(options: Any, where: str = "") -> None:
    """options: a dataclass; where: in front of a key, such as `autoscale.`. ConfigError that names the key, what was
    expected and what came."""
    for each in fields(options):
        kind, words = _KINDS.get(str(each.type), (object, ""))
        value = getattr(options, each.name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
            raise ConfigError(f"{where}{each.name} is {value!r:.80}; expected {words}")


def made(kind: type[Any], name: str, value: Any) -> Any:
    """The options of this kind that the option `name` is, or is a dict of; None stays."""
    if isinstance(value, dict):
        require_fields(kind, name, value)
        return kind(**value)
    if not isinstance(value, kind | None):
        raise ConfigError(f"{name} is serve.{kind.__name__}({fields(kind)[0].name}=...), not {value!r}")
    return value
