"""`load_class`: classes by "pkg.mod:Class" and "./file.py:Class", and what is said when there is none."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rlplat.errors import ConfigError
from rlplat.rl.class_path import load_class
from rlplat.rl.run import registry


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def forget(*names: str) -> None:
    for name in names:
        sys.modules.pop(name, None)


def test_a_class_in_an_installed_module() -> None:
    assert load_class("collections:OrderedDict").__name__ == "OrderedDict"


def test_a_class_in_a_package_of_the_current_directory(here: Path) -> None:
    package = here / "registry_specimen_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mod.py").write_text("class Mine: pass\n")
    try:
        assert load_class("registry_specimen_pkg.mod:Mine").__name__ == "Mine"
    finally:
        forget("registry_specimen_pkg", "registry_specimen_pkg.mod")


def test_a_class_in_a_file_is_the_same_class_each_time(here: Path) -> None:
    (here / "mine.py").write_text("class Mine: pass\n")
    first = load_class("./mine.py:Mine")
    assert load_class(f"{here}/mine.py:Mine") is first
    assert first.__module__ in sys.modules  # it can be pickled
    forget(first.__module__)


def test_two_files_of_one_name_are_two_modules(here: Path) -> None:
    for directory in ("a", "b"):
        (here / directory).mkdir()
        (here / directory / "mine.py").write_text(f"class Mine: place = '{directory}'\n")
    loaded = [load_class(f"./{directory}/mine.py:Mine") for directory in ("a", "b")]
    assert [each.place for each in loaded] == ["a", "b"]
    forget(*(each.__module__ for each in loaded))


@pytest.mark.parametrize(
    "path, said",
    [
        ("Mine", "'Mine' names no class: write pkg.module:Class or ./file.py:Class"),
        ("mod:", "'mod:' names no class"),
        ("no_such_module:Mine", "'no_such_module:Mine': there is no module 'no_such_module'"),
        ("collections.nothing:Mine", "there is no module 'collections.nothing'"),
        ("./nothing.py:Mine", r"there is no file nothing\.py \(looked from "),
        ("collections:OrderedDic", "'collections' has no 'OrderedDic'; did you mean 'OrderedDict'"),
    ],
)
def test_what_is_said_when_there_is_none(path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_class(path)


def test_what_a_module_lacks_is_not_taken_for_the_module(here: Path) -> None:
    (here / "registry_specimen_lacking.py").write_text("import a_package_that_nobody_has\n")
    with pytest.raises(ConfigError, match=r"ModuleNotFoundError: No module named 'a_package_that_nobody_has'"):
        load_class("registry_specimen_lacking:Mine")
    with pytest.raises(ConfigError, match=r"ModuleNotFoundError: No module named 'a_package_that_nobody_has'"):
        load_class("./registry_specimen_lacking.py:Mine")
    assert not any("registry_specimen" in name for name in sys.modules)


def test_a_plug_in_hides_no_algorithm_of_the_checkout(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(here))  # so the packages are asked again
    theirs = metadata.EntryPoint("mine", "their.algorithms:Mine", registry.GROUP)
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: [theirs] * (group == registry.GROUP))
    homes = registry.algorithm_homes()
    assert homes["mine"] == "their.algorithms:Mine" and homes["ppo"] == "rlplat.algorithms.ppo:PPO"


def test_packages_are_asked_once_until_something_is_installed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: [asked.append(group)][:0])
    monkeypatch.syspath_prepend(str(here))
    for _ in range(3):
        registry.algorithm_homes()
    assert asked == [registry.GROUP]
    (here / "new.dist-info").mkdir()
    os.utime(here, ns=(1, 1))  # the clock of a file system may tick in milliseconds
    registry.algorithm_homes()
    assert asked == [registry.GROUP] * 2
