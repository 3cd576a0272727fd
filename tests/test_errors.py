"""What errors say of themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlplat import errors


def test_a_missing_extra_names_the_command_of_this_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(errors.__file__).parents[1]
    monkeypatch.chdir(root)
    error = errors.MissingExtra("ale-py", "atari", "Pong")
    assert str(error) == "Pong needs ale-py: ./scripts/install atari"
    monkeypatch.chdir(root / "docs")
    assert str(error) == "Pong needs ale-py: ../scripts/install atari"
    assert os.access(root / "scripts" / "install", os.X_OK)


@pytest.mark.process
def test_elsewhere_a_missing_extra_names_pip(tmp_path: Path) -> None:
    (tmp_path / "rlplat").mkdir()
    (tmp_path / "rlplat" / "__init__.py").touch()
    shutil.copy(errors.__file__, tmp_path / "rlplat" / "errors.py")
    code = "from rlplat.errors import MissingExtra; print(MissingExtra('ale-py', 'atari', 'Pong'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "Pong needs ale-py: pip install 'rlplat[atari]'\n", done.stderr
