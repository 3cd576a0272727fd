"""Which folder a cluster of several machines is sent, and what is found in its copy there."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlplat
from rlplat.rl import user_code
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


def test_a_worker_finds_the_copy_where_the_file_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
