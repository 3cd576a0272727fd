"""Which folder holds the user's code that a run names: on a cluster of several machines it has to reach them all.

folder_of(["./my_env.py:MyEnv", "CartPole-v1"])       # the absolute path of the folder of my_env.py
found_in_copy(Path("/home/me/my_env.py"))             # in a worker: the copy in the folder that it was given
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import rlplat


def named_in(settings: Mapping[str, Any]) -> list[str]:
    """The names of code in an algorithm's settings: of its environment and what it is wrapped in, and of a network of
    the user's own."""
    policy, kwargs = settings.get("policy"), settings.get("env_kwargs")
    custom = policy.get("custom") if isinstance(policy, Mapping) else None
    wrappers = kwargs.get("wrappers", []) if isinstance(kwargs, Mapping) else []
    listed = wrappers if isinstance(wrappers, list) else [wrappers]
    names = [name for each in listed for name in (each if isinstance(each, Mapping) else [each])]
    return [str(name) for name in (settings.get("env"), custom, *names) if name]


def folder_of(names: Iterable[str]) -> str | None:
    """The folder with all files and modules of the user's that these names lead to; None where they name none.

    names: `./file.py:Class`, `pkg.mod:Class` (the user's where it lies below the current directory), or others.
    """
    folders = {folder for name in names if (folder := _folder(name)) is not None}
    return os.path.commonpath(folders) if folders else None


def _folder(name: str) -> str | None:
    module, colon, _ = name.rpartition(":")
    if not colon or name.startswith("<"):
        return None
    if module.endswith(".py"):
        return str(Path(module).expanduser().resolve().parent)
    top, here = module.partition(".")[0], os.getcwd()
    is_here = os.path.exists(os.path.join(here, top)) or os.path.exists(os.path.join(here, f"{top}.py"))
    return here if is_here and not _is_installed(top) else None


def _is_installed(top: str) -> bool:
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return False
    return spec is not None and "site-packages" in str(spec.origin)


def found_in_copy(path: Path) -> Path:
    """The file itself; in a worker on a machine that does not have it, the copy of it below the current directory."""
    if path.is_file() or not (rlplat.is_initialized() and rlplat.get_runtime_context().is_worker):
        return path
    copies = (Path.cwd().joinpath(*path.parts[start:]) for start in range(1, len(path.parts)))
    return next((copy for copy in copies if copy.is_file()), path)
