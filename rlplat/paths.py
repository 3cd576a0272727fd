"""Paths as users write them: `~` is their home folder, `file:///runs/a` is a path, and a path means what it meant when
it was given, wherever the program (or an environment in it) goes later. Addresses of other places are refused here:
as a path s3://bucket would be a folder named `s3:`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from rlplat.errors import ConfigError

_given_in = ""
"""The folder that was current when a relative path was last given: what is shown starts there."""


def expanded(text: str | os.PathLike[str]) -> Path:
    """The path as it was written, with `~` and `~user` expanded: for what is read or written at once."""
    return Path(_here(text))


def user_path(text: str | os.PathLike[str]) -> Path:
    """The absolute path, with `~` and `~user` expanded; links stay as they were written.

    ConfigError where the path is relative and the current directory is not there any more.
    """
    global _given_in
    path = _here(text)
    if os.path.isabs(path):
        return Path(os.path.normpath(path))
    here = current_folder()
    if here is None:
        raise ConfigError(
            f"{text}: the current directory has been removed; change to another one, or give an absolute path"
        )
    _given_in = here
    return Path(os.path.normpath(os.path.join(here, path)))


GALLERY = Path(__file__).parent / "gallery"
"""Trained agents that come with rlplat, each in a folder as a run's."""


def run_path(text: str | os.PathLike[str]) -> Path:
    """Of a run: a path of the user's, or `gallery/NAME`, where the user has none of that name."""
    path = user_path(text)
    given, _, name = os.fspath(text).partition("/")
    if given != "gallery" or path.exists():
        return path
    there = sorted(each.name for each in GALLERY.iterdir() if each.is_dir())
    if name.partition("/")[0] not in there:
        raise ConfigError(f"there is no {text}; the agents that come with rlplat are gallery/... {', '.join(there)}")
    return GALLERY / name


def _here(text: str | os.PathLike[str]) -> str:
    """The path on this machine. ConfigError: the text is the address of another place."""
    path = os.fspath(text)
    address = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]+):(//.*|/.*)", path, re.DOTALL)
    if address is None or (address[1].lower() != "file" and not address[2].startswith("//")):
        return os.path.expanduser(path)
    if address[1].lower() != "file":
        raise ConfigError(
            f"{path} is not a path of this machine, and files are read and written there: mount it (s3fs, gcsfuse, "
            "`mounts` of a cluster file) and give the folder, or give a folder and copy it afterwards"
        )
    rest = re.sub(r"^//(localhost)?(?=/)", "", address[2])
    if rest.startswith("//"):
        raise ConfigError(f"{path} names the machine {rest[2:].partition('/')[0]!r}: of this one it is file:///...")
    return unquote(rest)


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
