"""Paths as users write them: `~` is their home folder, and a path means what it meant when it was given, wherever the
program (or an environment in it) goes later."""

from __future__ import annotations

import os
from pathlib import Path

from rlplat.errors import ConfigError

_given_in = ""
"""The folder that was current when a relative path was last given: what is shown starts there."""


def expanded(text: str | os.PathLike[str]) -> Path:
    """The path as it was written, with `~` and `~user` expanded: for what is read or written at once."""
    return Path(os.path.expanduser(os.fspath(text)))


def user_path(text: str | os.PathLike[str]) -> Path:
    """The absolute path, with `~` and `~user` expanded; links stay as they were written.

    ConfigError where the path is relative and the current directory is not there any more.
    """
    global _given_in
    path = os.path.expanduser(os.fspath(text))
    if os.path.isabs(path):
        return Path(os.path.normpath(path))
    here = current_folder()
    if here is None:
        raise ConfigError(
            f"{text}: the current directory has been removed; change to another one, or give an absolute path"
        )
    _given_in = here
    return Path(os.path.normpath(os.path.join(here, path)))


def shown(path: str | os.PathLike[str]) -> Path:
    """The path for people: short where it lies below the folder that they gave paths in."""
    path = Path(path)
    is_below = bool(_given_in) and _given_in != os.sep and path.is_relative_to(_given_in)
    return path.relative_to(_given_in) if is_below else path


def current_folder() -> str | None:
    """The current directory; None where it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
