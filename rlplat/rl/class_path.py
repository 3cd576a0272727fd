"""Classes by name: "pkg.mod:Class" or "./file.py:Class"."""

from __future__ import annotations

import importlib.util
import os
import sys
import zlib
from pathlib import Path
from typing import Any

import cloudpickle

from rlplat.config import closest
from rlplat.errors import ConfigError
from rlplat.rl.user_code import found_in_copy


def load_class(path: str) -> Any:
    """What "pkg.mod:Class" or "./file.py:Class" names; ConfigError where there is none.

    Modules are also looked for in the current directory: worker processes have the driver's.
    """
    module_name, colon, attribute = path.rpartition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"'{path}' names no class: write pkg.module:Class or ./file.py:Class")
    if module_name.endswith(".py"):
        module = _module_from_file(Path(module_name))
    else:
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and not module_name.startswith(error.name):
                raise  # the module is there, something that it imports is not
            raise ConfigError(f"'{path}': there is no module '{module_name}'") from None
    if not hasattr(module, attribute):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ConfigError(f"'{path}': '{module_name}' has no '{attribute}'{closest(attribute, known)}")
    return getattr(module, attribute)


def _module_from_file(path: Path) -> Any:
    """The module of a .py file, imported once per process."""
    file = found_in_copy(path.resolve())
    if not file.is_file():
        raise ConfigError(f"there is no file {path} (looked from {os.getcwd()})")
    name = f"rlplat_file_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):x}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        cloudpickle.register_pickle_by_value(module)  # no other process can import it by this name
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def made_of(named: Any, setting: str, *arguments: Any) -> tuple[str, Any]:
    """(name, object) of `./file.py:Class`, or of {`./file.py:Class`: {keyword: value}}, which is made with them.

    arguments: positional ones, before those. What the class itself raises is a ConfigError that names `setting`.
    """
    name, keywords = next(iter(named.items())) if isinstance(named, dict) and len(named) == 1 else (named, {})
    if not isinstance(name, str) or not isinstance(keywords, dict):
        raise ConfigError(
            f"{setting}: {named!r} is neither pkg.module:Class or ./file.py:Class nor "
            "{./file.py:Class: {argument: value}}"
        )
    try:
        return name, load_class(name)(*arguments, **keywords)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None
    except Exception as error:
        given = f"with {keywords}" if keywords else "without arguments"
        raise ConfigError(
            f"{setting}: making {name} ({given}) raised {type(error).__name__}: {error}"
        ) from error
