"""`app.py:app`: an application by where it is defined."""

from __future__ import annotations

from typing import Any

from rlplat.config import closest
from rlplat.errors import ConfigError
from rlplat.rl.class_path import forget_changed, load_module
from rlplat.serve.deployments import Application, Deployment


def load_application(where: str) -> Application:
    """`FILE.py:NAME` or `package.module:NAME`; the name is of what `bind()` returned, of a deployment that needs no
    arguments, or of a function that returns such. ConfigError otherwise."""
    home, _, name = where.rpartition(":")
    module = _module(home)
    if not hasattr(module, name):
        names = [key for key, value in vars(module).items() if isinstance(value, Application | Deployment)]
        raise ConfigError(
            f"{home} has no '{name}'{closest(name, names)}; applications in it: {', '.join(names) or 'none'}"
        )
    found: Any = getattr(module, name)
    if not isinstance(found, Application | Deployment) and callable(found):
        found = found()
    if isinstance(found, Deployment):
        found = found.bind()
    if not isinstance(found, Application):
        raise ConfigError(f"{where} is {type(found).__name__}; expected an application, what bind() returns")
    return found


def _module(home: str) -> Any:
    forget_changed()  # a server lives on while its files are edited
    try:
        return load_module(home)
    except ModuleNotFoundError as error:
        raise ConfigError(f"cannot import {home}: {error}") from None
