"""Whose code a frame runs: by the folder of its file."""

from __future__ import annotations

import os
import sys

import rlplat
from rlplat.runtime.process import own_frames


def test_every_module_of_the_runtime_that_is_loaded_is_its_own() -> None:
    rlplat.is_initialized()  # loads the verbs, and what they need
    names = [name for name in sys.modules if name.startswith("rlplat.runtime.")]
    files = [sys.modules[name].__file__ or "" for name in names]
    assert len(files) > 5
    assert [file for file in files if not own_frames.is_own(file)] == []


def test_files_outside_are_not() -> None:
    assert not own_frames.is_own(__file__)
    assert not own_frames.is_own(rlplat.__file__)
    assert not own_frames.is_own(own_frames.FOLDER.rstrip(os.sep) + "_of_others/room.py")
    assert not own_frames.is_own("<string>")


def test_the_package_is_imported_from_the_root() -> None:
    assert os.path.samefile(os.path.join(own_frames.IMPORT_ROOT, "rlplat", "__init__.py"), rlplat.__file__)


def test_code_objects_bear_such_names() -> None:
    assert own_frames.is_own(own_frames.is_own.__code__.co_filename)
