"""The user's code that an experiment names: of its trainable, and in the config of its trials (rl/user_code.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlplat.rl.user_code import finder, located, renamed_in_space


def with_code_renamed(settings: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """An experiment's settings with another name for every file of code: of the trainable, in the config."""
    values = dict(settings)
    if isinstance(trainable := values.get("trainable"), str):
        values["trainable"] = rename(trainable)
    if isinstance(config := values.get("config"), dict):
        values["config"] = renamed_in_space(config, rename)
    return values


def with_code_found(saved: Mapping[str, Any], directory: Path) -> tuple[dict[str, Any], list[str]]:
    """(the settings in an experiment.yaml with the files where they are now, a line each about what has changed)."""
    settings = {key: value for key, value in saved.items() if key != "code"}
    if (recorded := saved.get("code")) is None:  # an experiment of before: its names are from here
        return with_code_renamed(settings, located), []
    rename, notes = finder(names_of_code(settings), recorded, directory)
    return with_code_renamed(settings, rename), notes


def names_of_code(settings: Mapping[str, Any]) -> list[str]:
    names: list[str] = []

    def note(name: str) -> str:
        names.append(name)
        return name

    with_code_renamed(settings, note)
    return names
