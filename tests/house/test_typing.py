"""What type checkers say to users of rlplat, who have no plugin of pydantic's."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlplat.rl.run.registry import algorithm_homes, load_algorithm
from tests.house.test_docs import BLOCK, PAGES
from tests.house.typed_settings import FILE, written

USAGE = Path(__file__).with_name("typed_usage.py")
CONFIG = """\
[mypy]
strict = true
ignore_missing_imports = true

[mypy-torch.*,tensorflow.*,ray.*,optuna.*,pandas.*,matplotlib.*,starlette.*,uvicorn.*,sklearn.*,scipy.*,PIL.*]
follow_imports = skip
follow_imports_for_stubs = true
"""
ON_PAGES = """\
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics
# mypy: allow-subclassing-any, no-warn-return-any
# mypy: no-check-untyped-defs, disable-error-code="name-defined,var-annotated,union-attr,operator,import-not-found"
"""
"""Blocks need not be annotated, go on where another ended, and import what a reader has installed."""
CLASS_DECORATOR = re.compile(r'"type\[\w+\]" has no attribute "(remote|options|bind)"')
"""mypy does not apply the decorators of classes: a known limit of it."""


def expected_errors() -> list[int]:
    lines = USAGE.read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# error")]


def test_the_settings_that_checkers_know_are_those_of_the_algorithms():
    current, wanted = (ast.dump(ast.parse(text)) for text in (FILE.read_text(), written()))
    assert current == wanted, "run: python -m tests.house.typed_settings"


@pytest.mark.parametrize("name", sorted(algorithm_homes()))
def test_a_config_is_made_of_them(name):
    config = load_algorithm(name).config_class
    settings = f"{config.__name__.removesuffix('Config')}Settings"
    assert f"**settings: Unpack[{settings}]) -> None" in inspect.getsource(config)


@pytest.mark.process
@pytest.mark.slow
def test_mypy_without_a_plugin_takes_what_pages_show_and_refuses_a_wrong_key(tmp_path):
    (tmp_path / "mypy.ini").write_text(CONFIG)
    shutil.copy(USAGE, tmp_path)
    (tmp_path / "pages").mkdir()
    for page in PAGES:
        for number, (language, text) in enumerate(BLOCK.findall(page.read_text())):
            if language == "python" and "rlplat" in text and _parses(text):
                name = re.sub(r"\W", "_", f"{page.parent.name}_{page.stem}_{number}")
                (tmp_path / "pages" / f"{name}.py").write_text(ON_PAGES + text)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--hide-error-context", "."]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert said.stdout, said.stderr
    errors = [line for line in said.stdout.splitlines() if ": error:" in line]
    of_usage = [int(line.split(":")[1]) for line in errors if line.startswith(USAGE.name)]
    of_pages = [line for line in errors if line.startswith("pages/") and not CLASS_DECORATOR.search(line)]
    assert not of_pages
    assert sorted(set(of_usage)) == expected_errors(), said.stdout


@pytest.mark.process
@pytest.mark.slow
def test_pyright_agrees(tmp_path):
    pyright = shutil.which("pyright") or shutil.which("basedpyright")
    if pyright is None:
        pytest.skip("pyright is not installed (pip install pyright; it needs node)")
    shutil.copy(USAGE, tmp_path)
    command = [pyright, "--pythonpath", sys.executable, USAGE.name]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    found = re.findall(r"typed_usage\.py:(\d+):\d+ - error", said.stdout)
    assert sorted({int(number) for number in found}) == expected_errors(), said.stdout + said.stderr


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
