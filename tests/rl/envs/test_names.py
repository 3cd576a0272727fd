"""Names of environments, right and wrong."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from rlplat.errors import EnvError, EnvNotFound, MissingExtra
from rlplat.rl.envs import names as env_names
from rlplat.rl.envs.names import ATARI_ROMS, resolve_env


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`without("ale_py")`: the package cannot be found."""
    find = importlib.util.find_spec

    def hide(*names: str) -> None:
        monkeypatch.setattr(
            env_names.importlib.util, "find_spec", lambda name, *a: None if name in names else find(name, *a)
        )

    return hide


@pytest.mark.parametrize(
    "name",
    [
        "Pong",
        "pong",
        "Pong-v5",
        "Pong-v4",
        "ALE/Pong-v5",
        "ALE/Pong",
        "PongNoFrameskip-v4",
        "PongDeterministic-v4",
    ],
)
def test_every_spelling_of_a_game_is_the_same_environment(name: str) -> None:
    source = resolve_env(name)
    assert (source.kind, source.rom, source.name) == ("atari", "pong", "ALE/Pong-v5")
    assert source == resolve_env("Pong")


@pytest.mark.parametrize("name", ["MsPacman", "ms_pacman", "MsPacmanNoFrameskip-v4"])
def test_games_of_several_words(name: str) -> None:
    assert resolve_env(name).rom == "ms_pacman"


def test_the_list_of_games_is_that_of_ale_py() -> None:
    roms = pytest.importorskip("ale_py.roms")
    several_players_only = {"combat", "joust", "maze_craze", "warlords"}
    assert set(ATARI_ROMS) == set(roms.get_all_rom_ids()) - several_players_only


def test_the_name_is_registered_with_gymnasium_when_ale_py_is_loaded() -> None:
    pytest.importorskip("ale_py")
    assert resolve_env("ALE/Breakout-v5").kind == "atari"  # not the raw environment of that id


def test_registered_ids() -> None:
    source = resolve_env("CartPole-v1")
    assert (source.kind, source.spec.id) == ("registered", "CartPole-v1")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("CartPole", "CartPole-v1"),
        ("Cartpole-v1", "CartPole-v1"),
        ("CartPole-v9", "CartPole-v1"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("Pnog", "Pong"),
        ("Braekout", "Breakout"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_right_one(wrong: str, meant: str) -> None:
    with pytest.raises(EnvNotFound, match=f"no environment is called '{wrong}'; did you mean '{meant}'\\?"):
        resolve_env(wrong)


def test_a_name_like_no_other_is_answered_with_the_kinds_of_names() -> None:
    with pytest.raises(EnvNotFound, match=r"'qqqqqqqq'; a name is .*CartPole-v1.*Pong.*pkg\.mod:MakeEnv.*file\.py"):
        resolve_env("qqqqqqqq")


@pytest.mark.parametrize(
    ("hidden", "name", "extra"),
    [
        ("ale_py", "Pong", "atari"),
        ("ale_py", "ALE/Breakout-v5", "atari"),
        ("Box2D", "LunarLander-v3", "box2d"),
        ("mujoco", "HalfCheetah-v5", "mujoco"),
        ("imageio", "HalfCheetah-v5", "mujoco"),
    ],
)
def test_a_missing_extra_is_named(without: Any, hidden: str, name: str, extra: str) -> None:
    without(hidden)
    with pytest.raises(MissingExtra, match=rf"needs .*: .*scripts/install {extra}$") as caught:
        resolve_env(name)
    assert name in str(caught.value)


def test_a_class_of_a_module() -> None:
    source = resolve_env("tests.rl.fixture_envs:ScriptedEnv")
    assert source.kind == "factory"
    assert source.factory is not None and source.factory.__name__ == "ScriptedEnv"


def test_an_id_that_a_module_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gymnasium

    (tmp_path / "registering_module.py").write_text(
        "import gymnasium\ngymnasium.register('FromModule-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_env("registering_module:FromModule-v0").spec.id == "FromModule-v0"
    del gymnasium.registry["FromModule-v0"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.rl.fixture_envs:ScriptdEnv", "has no 'ScriptdEnv'; did you mean 'ScriptedEnv'?"),
        ("tests.rl.no_such_file:Env", "no module 'tests.rl.no_such_file'"),
        ("no_such_package.mod:Env", "no module 'no_such_package'"),
        ("tests.rl.fixture_envs:NUMBER", "is a int; give a class, or a function"),
        ("./no_such_file.py:Env", "no file "),
    ],
)
def test_imports_that_lead_nowhere(name: str, message: str) -> None:
    with pytest.raises(EnvNotFound) as caught:
        resolve_env(name)
    assert message in str(caught.value) and name in str(caught.value) + f" {name}"


def test_a_file_and_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_it.py").write_text("SIZE = 7\n")
    (tmp_path / "my_env.py").write_text("import beside_it\nclass Env:\n    size = beside_it.SIZE\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    relative = resolve_env("./my_env.py:Env")
    absolute = resolve_env(f"{tmp_path}/my_env.py:Env")
    assert relative == absolute  # the same class object: the file is loaded once
    assert relative.factory is not None and relative.factory.size == 7
    assert relative.name == f"{tmp_path}/my_env.py:Env"
    with pytest.raises(EnvNotFound, match=r"no file .*my_emv\.py; did you mean 'my_env\.py'\?"):
        resolve_env("./my_emv.py:Env")


def test_a_file_that_raises(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import numpy\nnumpy.no_such_thing\n")
    with pytest.raises(EnvError, match=r"broken\.py:Env.*AttributeError.*no_such_thing"):
        resolve_env(f"{tmp_path}/broken.py:Env")


def test_a_missing_import_within_a_module_is_not_mistaken_for_a_missing_module(tmp_path: Path) -> None:
    (tmp_path / "wants_more.py").write_text("import no_such_dependency\n")
    with pytest.raises(EnvError, match=r"ModuleNotFoundError.*no_such_dependency"):
        resolve_env(f"{tmp_path}/wants_more.py:Env")


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("rlplat.rl.diagnostic_envs:RememberCue", "rlplat.rl.envs.diagnostic:RememberCue"),
        ("rlplat.rl.diagnostic_multi_agent_envs:Nim", "rlplat.rl.envs.diagnostic_multi_agent:Nim"),
    ],
)
def test_environments_that_went_by_another_name_are_found_by_it(then: str, now: str) -> None:
    """Run directories have it in their config.yaml."""
    pytest.importorskip("pettingzoo")
    assert resolve_env(then).factory is resolve_env(now).factory
