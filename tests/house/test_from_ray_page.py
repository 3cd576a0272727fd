"""docs/from-ray.md names what exists: our verbs, options, errors and flags, and Ray's own."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import rlplat
from rlplat import errors
from rlplat.cli import COMMANDS
from rlplat.runtime.options import Options
from rlplat.runtime.wire.values import CallOptions
from tests.house.test_docs import ROOT, blocks, run_block

PAGE = ROOT / "docs" / "from-ray.md"
TEXT = PAGE.read_text()


def rows(heading: str) -> list[list[str]]:
    """Cells of the table under a heading."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert section is not None, f"there is no section {heading!r}"
    lines = [line for line in section[1].splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def is_module(name: str) -> bool:
    return importlib.util.find_spec(f"rlplat.{name}") is not None


def test_every_verb_exists() -> None:
    names = set(re.findall(r"`rlplat\.([a-z_A-Z]+)", TEXT)) - {"errors", "X"}
    assert len(names) > 20
    assert [name for name in sorted(names) if not hasattr(rlplat, name) and not is_module(name)] == []


def test_every_option_is_ours_or_marked_as_missing() -> None:
    ours = {field.name for field in fields(Options)} | set(CallOptions.__struct_fields__)
    named: set[str] = set()
    for option, here in rows("Options"):
        missing = here.startswith("- :") or here == "-"
        names = code(option) if option != "-" else code(here)[:1]
        if option == "`_generator_backpressure_num_objects`":
            names = code(here)[:1]
        named |= set(names)
        assert [name for name in names if (name in ours) == missing] == [], option
    assert ours - named == set(), "options of ours that the page does not know"


def test_every_argument_of_init_is_there() -> None:
    ours = set(inspect.signature(rlplat.init).parameters)
    named = {name.split("=")[0] for row in rows("Init") for cell in row for name in code(cell)}
    assert ours - named == set(), "arguments of ours that the page does not know"


def test_every_error_exists() -> None:
    names = [name for _, ours, _ in rows("Exceptions") for name in code(ours)]
    assert len(names) > 12
    assert [name for name in names if not hasattr(errors, name)] == []


def test_every_command_exists() -> None:
    named = {name for _, ours in rows("Command line and environment") for name in code(ours)}
    commands = {name.split()[1] for name in named if name.startswith("rlplat ")}
    assert commands
    assert commands <= COMMANDS.keys()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own modules
def test_every_name_of_rays_exists() -> None:
    ray = pytest.importorskip("ray")
    for verb, *_ in rows("Verbs"):
        for name in code(verb):
            module, _, attribute = name.rpartition(".")
            try:
                home = ray if module == "ray" else importlib.import_module(module)
                if not hasattr(home, attribute):
                    importlib.import_module(name)
            except ModuleNotFoundError as error:  # of an extra of Ray's that is not installed, such as ray[serve]
                if (error.name or "ray").partition(".")[0] == "ray":
                    raise
    exceptions = importlib.import_module("ray.exceptions")
    for theirs, *_ in rows("Exceptions"):
        names = [name for name in code(theirs) if re.fullmatch(r"\w+", name)]
        homes = (exceptions, ray, builtins)
        assert [name for name in names if not any(hasattr(home, name) for home in homes)] == []


@pytest.mark.process
def test_the_examples_run(tmp_path: Path) -> None:
    verbs, whole = blocks(PAGE, "python")
    assert run_block(verbs, tmp_path).strip() == "[0, 1, 4, 9]"
    assert run_block(whole, tmp_path).strip() == "True"
