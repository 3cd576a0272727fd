"""Which folder a cluster of several machines is sent, and what is found in its copy there."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlplat
from rlplat.errors import ConfigError
from rlplat.rl import user_code
from rlplat.rl.class_path import forget_changed, load_class, require_class
from rlplat.rl.user_code import folder_of, found_in_copy, names_in


def test_the_folder_of_what_a_run_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_games").mkdir()
    assert folder_of(["CartPole-v1", "ALE/Pong-v5", "gymnasium.envs:Env", "ppo", "<a Env object>"]) is None
    assert folder_of(["./games/my_env.py:Env"]) == str(tmp_path / "games")
    assert folder_of(["./games/my_env.py:Env", "./nets/my_net.py:Net"]) == str(tmp_path)
    assert folder_of(["my_games.pong:Env"]) == str(tmp_path)  # it lies here
    assert folder_of(["my_other_games.pong:Env"]) is None


def test_what_settings_name() -> None:
    assert names_in({"env": "./a.py:A", "policy": {"custom": "./b.py:B"}}) == ["./a.py:A", "./b.py:B"]
    assert names_in({"env": "", "policy": "x"}) == []


class _Context:
    is_worker = True


def test_a_worker_finds_the_copy_where_the_file_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "games").mkdir()
    copy = tmp_path / "games" / "my_env.py"
    copy.write_text("")
    missing = Path("/home/nobody-has-this/project/games/my_env.py")
    assert found_in_copy(missing) == missing  # the driver has what its user names, or nothing
    monkeypatch.setattr(rlplat, "is_initialized", lambda: True)
    monkeypatch.setattr(rlplat, "get_runtime_context", _Context)
    assert user_code.found_in_copy(missing) == copy
    assert found_in_copy(copy) == copy
    assert found_in_copy(missing.with_name("other.py")) == missing.with_name("other.py")


def test_relative_imports_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As part of its package; under another name where the package's is taken or is no name; with the cure where it
    cannot be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "nothing"))
    for folder, source in {
        "up/__init__.py": "", "up/common.py": "V = 1", "up/in/__init__.py": "", "up/in/e.py": "from ..common import V",
        "no_init/e.py": "from .base import V", "no_init/base.py": "V = 1",
        "my-agents/__init__.py": "", "my-agents/e.py": "from .base import V", "my-agents/base.py": "V = 1",
        "json/__init__.py": "", "json/e.py": "from .base import V", "json/base.py": "V = 1",
        "plain/__init__.py": "raise SystemExit('of no use here')", "plain/e.py": "V = 1",
        "top/e.py": f"from {'.' * 40}base import V",
    }.items():  # fmt: skip
        path = tmp_path / folder
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    for name in ("up/in", "no_init", "my-agents", "json", "plain"):
        assert load_class(f"./{name}/e.py:V") == 1
    import json

    assert json.loads("1") == 1
    with pytest.raises(ConfigError, match=r"from the folder above that: top\.e:V"):
        load_class("./top/e.py:V")


def test_a_file_stays_what_it_was_within_a_run_and_is_read_again_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edited.py").write_text("V = 1")
    assert load_class("./edited.py:V") == 1
    (tmp_path / "edited.py").write_text("V = 22")  # of another size: Python compares sizes and whole seconds
    assert load_class("./edited.py:V") == 1
    forget_changed()
    assert load_class("./edited.py:V") == 22


@pytest.mark.parametrize(
    ("source", "is_there"),
    [
        ("class Net: ...", True),
        ("if True:\n    from os import path as Net", True),
        ("from os import *", True),
        ("globals()['Net'] = 1", True),
        ("def __getattr__(name): return 1", True),
        ("class Nets: ...", False),
        ("import torch_is_not_needed", False),
    ],
)
def test_a_class_is_looked_for_without_running_its_file(tmp_path: Path, source: str, is_there: bool) -> None:
    (tmp_path / "net.py").write_text(f"raise_if_run = 1\n{source}\n")
    if is_there:
        require_class(f"{tmp_path}/net.py:Net")
    else:
        with pytest.raises(ConfigError, match="has no 'Net'"):
            require_class(f"{tmp_path}/net.py:Net")
