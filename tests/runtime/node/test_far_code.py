"""Folders and modules of the program on another machine, a process group of this one: it has them in its own folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.errors import OptionError
from rlplat.runtime.start import join_file

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A cluster of two machines, with `working_dir`, a module and a variable."""
    folder = tmp_path
    join, source = str(folder / "join.json"), folder / "source"
    join_file.make(join, "127.0.0.1", 0)
    (source / "package").mkdir(parents=True)
    (source / "package" / "__init__.py").write_text("NAME = 'package'")
    (source / "data.txt").write_text("data")
    (folder / "lone.py").write_text("NAME = 'lone'")
    command = [sys.executable, "-m", "rlplat.cli", "start", "--address", join, "--num-cpus", "2", "--resource", "far=2"]
    machine = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    env = {"working_dir": str(source), "py_modules": [str(folder / "lone.py")], "env_vars": {"COLOUR": "blue"}}
    rlplat.init(num_cpus=1, num_gpus=0, address=join, runtime_env=env)
    yield folder
    rlplat.shutdown()
    machine.terminate()
    machine.communicate(timeout=60)


@rlplat.remote(resources={"far": 1}, num_cpus=0)
def found_there(modules: list[str]) -> tuple[str, list[str], str, str]:
    import importlib

    names = [importlib.import_module(name).NAME for name in modules]
    return os.getcwd(), names, Path("data.txt").read_text(), os.environ["COLOUR"]


@rlplat.remote(num_cpus=1)
def found_here() -> str:
    return os.getcwd()


def test_workers_everywhere_have_the_folder_the_modules_and_the_variables(folder: Path) -> None:
    place, *found = rlplat.get(found_there.remote(["package", "lone"]), timeout=60)
    assert found == [["package", "lone"], "data", "blue"]
    here = rlplat.get(found_here.remote(), timeout=60)
    assert os.path.basename(place) == os.path.basename(here)  # one snapshot, ...
    assert place != here  # ... on each machine
    other = folder / "other"
    other.mkdir()
    (other / "data.txt").write_text("other data")
    task = found_there.options(runtime_env={"working_dir": str(other)})
    assert rlplat.get(task.remote([]), timeout=60)[2] == "other data"


def test_what_a_far_worker_submits_has_them_too(folder: Path) -> None:
    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    def nested(**env: Any) -> Any:
        task = found_there.options(runtime_env=env) if env else found_there
        return rlplat.get(task.remote(["package"]))

    assert rlplat.get(nested.remote(), timeout=60)[1:] == (["package"], "data", "blue")
    with pytest.raises(OptionError, match=r"name them in rlplat.init"):
        rlplat.get(nested.remote(working_dir=str(folder)), timeout=60)
    with pytest.raises(ModuleNotFoundError, match=r"n2 is another machine .* sends a folder to every machine"):
        rlplat.get(found_there.remote(["is_nowhere"]), timeout=60)
