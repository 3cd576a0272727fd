"""Python's own values in arguments that a config hands on (env_kwargs, of wrappers, of callbacks): as YAML and back.

    as_plain({"shape": (3, 4)}, "env_kwargs")     # {"shape": {"python/tuple": [3, 4]}}
    as_given({"shape": {"python/tuple": [3, 4]}})   # {"shape": (3, 4)}

Numbers of numpy become Python's, which are equal; arrays, tuples, sets, paths, dicts with other keys than texts, and
what has a name in a module (classes, functions, members of an Enum) are written with a key that says what they are.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from rlplat.errors import ConfigError
from rlplat.rl.class_path import load_class

MOST_NUMBERS = 5_000
"""Of an array in a config."""
_TUPLE, _SET, _FROZEN, _DICT = "python/tuple", "python/set", "python/frozenset", "python/dict"
_PATH, _NAME, _ARRAY = "python/path", "python/name", "python/array"


def as_plain(value: Any, key: str) -> Any:
    """A value that a config file can hold, and that `as_given` makes equal to this one; ConfigError names the key of
    what cannot be written."""
    if value is None or (isinstance(value, bool | int | float | str) and type(value) in (bool, int, float, str)):
        return value
    if isinstance(value, enum.Enum):
        return {_NAME: _name_of(value, f"{type(value).__qualname__}.{value.name}", type(value).__module__, key)}
    if isinstance(value, Mapping):
        if all(isinstance(name, str) and not name.startswith("python/") for name in value):
            return {str(name): as_plain(inner, f"{key}.{name}") for name, inner in value.items()}
        return {_DICT: [[as_plain(name, key), as_plain(inner, f"{key}.{name}")] for name, inner in value.items()]}
    if type(value) is list:
        return [as_plain(inner, f"{key}[{index}]") for index, inner in enumerate(value)]
    if type(value) is tuple:
        return {_TUPLE: [as_plain(inner, f"{key}[{index}]") for index, inner in enumerate(value)]}
    if type(value) in (set, frozenset):
        members = [as_plain(inner, key) for inner in sorted(value, key=repr)]
        return {_SET if isinstance(value, set) else _FROZEN: members}
    if isinstance(value, PurePath):
        return {_PATH: str(value)}
    numpy: Any = sys.modules.get("numpy")  # without it there are no values of its
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return _number(value, key) if isinstance(value, numpy.generic) else _array(value, key)
    if isinstance(value, type) or callable(value):
        name = getattr(value, "__qualname__", "")
        return {_NAME: _name_of(value, name, getattr(value, "__module__", None) or "", key)}
    raise _refused(value, key, "give a number, a text, a list, an array, or what has a name in a module")


def as_given(value: Any) -> Any:
    """What `as_plain` was given, or its equal; a value of a config file as it is."""
    if isinstance(value, list):
        return [as_given(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if value and all(isinstance(name, str) for name in value):
        kind = next(iter(value))
        held = value[kind]
        if kind == _ARRAY and set(value) == {_ARRAY, "dtype", "shape"}:
            import numpy

            return numpy.array(held, numpy.dtype(value["dtype"])).reshape(value["shape"])
        if len(value) == 1 and isinstance(held, list) and kind in (_TUPLE, _SET, _FROZEN, _DICT):
            members = [as_given(inner) for inner in held]
            made: Any = {_TUPLE: tuple, _SET: set, _FROZEN: frozenset, _DICT: dict}[kind](members)
            return made
        if len(value) == 1 and isinstance(held, str) and kind == _PATH:
            return Path(held)
        if len(value) == 1 and isinstance(held, str) and kind == _NAME:
            return load_class(held)
    return {name: as_given(inner) for name, inner in value.items()}


def _number(value: Any, key: str) -> Any:
    if value.dtype.kind not in "biufU":
        raise _refused(value, key, "give a number or a text")
    return value.item()


def _array(value: Any, key: str) -> dict[str, Any]:
    if value.dtype.kind not in "biufU":
        raise _refused(value, key, f"its dtype is {value.dtype}: give numbers")
    if value.size > MOST_NUMBERS:
        raise _refused(
            value,
            key,
            f"its {value.size:,} numbers are too many ({MOST_NUMBERS:,}): give the name of a file with them",
        )
    return {_ARRAY: value.ravel().tolist(), "dtype": value.dtype.str, "shape": list(value.shape)}


def _name_of(value: Any, qualname: str, module: str, key: str) -> str:
    if not qualname or "<" in qualname or not module or module == "__main__":
        raise _refused(value, key, "put it into a module, where it has a name, or give a text that your code looks up")
    file = getattr(sys.modules.get(module), "__file__", None)
    home = file if module.startswith("rlplat_file_") and file else module
    try:
        found = load_class(f"{home}:{qualname}")
    except ConfigError:
        found = None
    if found is not value:
        raise _refused(value, key, f"{home}:{qualname} does not lead to it")
    return f"{home}:{qualname}"


def _refused(value: Any, key: str, fix: str) -> ConfigError:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return ConfigError(f"{key} is {value!r:.60} ({name}), which config.yaml cannot hold: {fix}")
