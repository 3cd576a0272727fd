"""Environments that Python gives as classes, functions and objects."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rlplat
from rlplat.algorithms.ppo import PPOConfig
from rlplat.config import Layer, dump, layer_from_arguments, parse_yaml, resolve
from rlplat.errors import ConfigError, EnvNotFound
from rlplat.rl.env_objects import EnvObject, env_name, is_marker, is_same_env
from rlplat.rl.envs.check import check_env
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.names import resolve_env
from rlplat.rl.multi_agent.games import is_multi_agent
from tests.rl.fixture_envs import ScriptedEnv, SeededEnv

ROOT = Path(__file__).resolve().parents[2]
COUNTING = "tests.cli.counting_algorithm:CountingAlgorithm"


def local_class() -> type[SeededEnv]:
    class Local(SeededEnv):
        pass

    return Local


def test_a_class_or_function_that_can_be_imported_becomes_its_name() -> None:
    assert PPOConfig(env=SeededEnv).env == "tests.rl.fixture_envs:SeededEnv"
    assert PPOConfig(env=local_class).env == f"{__name__}:local_class"
    assert not isinstance(PPOConfig(env=SeededEnv).env, EnvObject)


def test_a_class_out_of_a_file_becomes_the_name_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from tests.rl.fixture_envs import SeededEnv\nclass Mine(SeededEnv): ...\n")
    mine = resolve_env(f"{tmp_path}/mine.py:Mine").factory
    assert env_name(mine) == f"{tmp_path}/mine.py:Mine"


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (local_class(), "<Local of test_env_objects.py>"),
        (lambda: SeededEnv(), "<lambda of test_env_objects.py:LINE>"),
        (functools.partial(ScriptedEnv, ((1, True, False),)), "<partial of ScriptedEnv of fixture_envs.py>"),
        (SeededEnv(), "<a SeededEnv object>"),
        (gym.make("CartPole-v1"), "<a TimeLimit object>"),
    ],
)
def test_everything_else_travels_with_its_name(env: Any, name: str) -> None:
    config = PPOConfig(env=env)
    if "LINE" in name:
        name = name.replace("LINE", str(env.__code__.co_firstlineno))
    assert config.env == name and parse_yaml(dump(config), "config.yaml").values["env"] == name
    copies = [config.env, copy.deepcopy(config.env), pickle.loads(pickle.dumps(config.model_dump()))["env"]]
    for each in [*copies, PPOConfig.model_validate(config.model_dump()).env]:
        assert isinstance(each, EnvObject)
        with make_vector_env(each, 2, seed=1) as vector_env:
            assert len(vector_env.reset()) == 2
    assert not is_multi_agent(config.env, {})
    assert check_env(env, steps=20).is_sound


def test_several_agents_are_seen_in_an_object_too() -> None:
    diagnostic = pytest.importorskip("rlplat.rl.envs.diagnostic_multi_agent")
    name = env_name(lambda: diagnostic.Nim())
    assert isinstance(name, EnvObject) and is_multi_agent(name, {})


def test_copies_of_one_environment_go_their_own_ways() -> None:
    env = SeededEnv()
    with make_vector_env(env, 2, seed=1) as vector_env:
        one, other = vector_env.reset()
    assert one != other


def test_what_cannot_be_copied_is_refused_with_the_way_that_works() -> None:
    env = SeededEnv()
    env.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"env is a SeededEnv object.*cannot be copied.*env=SeededEnv, or env=lambda"):
        env_name(env)
    with pytest.raises(ConfigError, match=r"cannot be sent to the workers.*my_module:make_env"):
        env_name(lambda: env)
    with pytest.raises(ConfigError, match=r"env_kwargs {'size': 3} come too late.*env=SeededEnv"):
        make_vector_env(SeededEnv(), 1, env_kwargs={"size": 3})


def test_what_is_no_environment_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"bad value for 'env' \(from argument env\): 5 .*env=lambda: MyEnv"):
        resolve(PPOConfig, [layer_from_arguments({"env": 5})])
    with pytest.raises(ConfigError, match="'env' is not set"):
        resolve(PPOConfig, [Layer()])


def test_a_name_alone_says_that_the_object_must_be_given_again() -> None:
    assert is_marker("<lambda of train.py:3>") and not is_marker("CartPole-v1")
    for name in ("<lambda of train.py:3>", "<MyEnv of train.py>"):
        with pytest.raises(EnvNotFound, match=r"pass env=\.\.\. again.*rlplat.load\(RUN, env=MyEnv\)"):
            resolve_env(name)


def test_an_unknown_id_names_the_spelling_with_a_module() -> None:
    with pytest.raises(EnvNotFound, match=r"name the module too: my_module:Mine-v3"):
        resolve_env("Mine-v3")


def test_a_run_of_an_object_is_resumed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    rlplat.train(COUNTING, env=local_class(), out="demo", stop={"env_steps": 40})
    assert "resuming and loading this run need env= again" in capsys.readouterr().err
    assert "env: <Local of test_env_objects.py>" in Path("demo/config.yaml").read_text()
    again = rlplat.train(resume="demo", env=local_class(), stop={"env_steps": 60})
    assert again.result is not None and again.result.env_steps == 60
    with pytest.raises(ConfigError, match="'env' cannot change"):
        rlplat.train(COUNTING, env="CartPole-v1", out="named", stop={"env_steps": 20})
        rlplat.train(resume="named", env=local_class())


def test_a_module_may_be_named_for_an_id_that_a_script_registered() -> None:
    assert is_same_env("my_module:Mine-v0", "Mine-v0") and is_same_env("Mine-v0", "Mine-v0")
    assert is_same_env("any:thing", "<Mine of train.py>") and not is_same_env("my_module:Other-v0", "Mine-v0")


SCRIPT = """
import gymnasium, rlplat
from tests.rl.fixture_envs import SeededEnv

class Mine(SeededEnv):
    pass

if __name__ == "__main__":
    gymnasium.register("Mine-v0", entry_point="__main__:Mine")
    small = dict(
        num_rollout_workers=1, population_size=2, num_envs_per_worker=2, noise_table_size=10_000,
        evaluation={"episodes": 1}, stop={"env_steps": 20},
    )
    rlplat.init()
    for env in (lambda: Mine(), "Mine-v0"):
        run = rlplat.train("es", env=env, **small)
        print(run.config.env, run.result.env_steps, len(run.evaluation) > 0)
"""


@pytest.mark.process
def test_workers_get_what_only_the_users_script_knows(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "<lambda of script.py:15> 20 True",
        "Mine-v0 20 True",
    ]


def limit_of(env: Any) -> int:
    """As another process finds it, whose registry is gymnasium's own."""
    with make_vector_env(pickle.loads(pickle.dumps(PPOConfig(env=env).env)), 1, seed=1) as vector_env:
        return int(vector_env.facts()["max_episode_steps"])


def test_what_gymnasium_registers_by_itself_is_its_name() -> None:
    ids = [name for name, spec in gym.registry.items() if str(spec.entry_point).startswith("gymnasium.")]
    assert len(ids) > 40 and not [name for name in ids if isinstance(env_name(name), EnvObject)]
    assert env_name(gym.spec("CartPole-v1")) == env_name(gym.make("CartPole-v1").spec) == "CartPole-v1"
    assert not isinstance(PPOConfig(env=gym.spec("CartPole-v1")).env, EnvObject)


def test_a_spec_is_made_as_it_says() -> None:
    """Its limit, arguments and wrappers; and gymnasium's registry stays as it is."""
    spec = copy.deepcopy(gym.spec("Pendulum-v1"))
    spec.max_episode_steps, spec.kwargs = 3, {"g": 0.0}
    assert env_name(spec) == "<Pendulum-v1 of an EnvSpec>" and limit_of(spec) == 3
    assert gym.spec("Pendulum-v1").max_episode_steps == 200
    wrapped = gym.wrappers.TransformReward(spec.make(), abs).spec
    for given, sign in ((spec, -1), (wrapped, 1)):
        with make_vector_env(given, 1, seed=1) as env:
            env.reset()
            steps = [env.step(np.zeros((1, 1), np.float32)) for _ in range(3)]
            assert all(sign * step.rewards[0] > 0 for step in steps) and steps[-1].truncated[0]
        with make_vector_env(given, 1, env_kwargs={"max_episode_steps": 5}) as env:
            assert env.facts()["max_episode_steps"] == 5


@pytest.mark.parametrize("how", ["under its id", "under an id of its own"])
def test_an_id_that_the_program_changed_is_the_programs(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes have gymnasium's; and a run says that it was another task."""
    name = "LongCartPole-v0" if "own" in how else "CartPole-v1"
    changed = copy.deepcopy(gym.spec("CartPole-v1"))
    changed.max_episode_steps, changed.id = 7, name
    with monkeypatch.context() as here:
        here.setitem(gym.registry, name, changed)
        given = pickle.dumps(PPOConfig(env=name).env)
    assert name not in gym.registry or gym.spec(name).max_episode_steps == 500
    env = pickle.loads(given)
    assert env == (name if "own" in how else "<CartPole-v1 as this program changed it>")
    try:
        with make_vector_env(env, 2) as vector_env:
            assert vector_env.facts()["max_episode_steps"] == 7
    finally:
        gym.registry.pop("LongCartPole-v0", None)
