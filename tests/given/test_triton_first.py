"""tensorflow and triton in one process: in the order that does not abort it, or without triton."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rlplat.given import triton_first


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A triton that can be imported, and nothing of tensorflow in this process."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ("tensorflow", "triton"):  # noted first, so that what the test imports does not stay
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()


def test_triton_comes_before_tensorflow(installed: None) -> None:
    triton_first.before_tensorflow()
    assert "triton" in sys.modules
    triton_first.guard()
    sys.modules["tensorflow"] = ModuleType("tensorflow")
    importlib.import_module("triton")  # it is there, and stays


def test_after_tensorflow_it_is_left_out_with_one_line(
    installed: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.meta_path[:] = [each for each in sys.meta_path if type(each).__module__ != triton_first.__name__]
    triton_first.guard()
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
    triton_first.before_tensorflow()
    for _ in range(2):
        with pytest.raises(ImportError, match="triton after tensorflow"):
            importlib.import_module("triton")
    assert capsys.readouterr().err.count("triton is left out") == 1


def test_without_tensorflow_it_is_imported_as_ever(installed: None) -> None:
    triton_first.guard()
    importlib.import_module("triton")
