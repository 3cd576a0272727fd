"""What imports what: the contracts of pyproject.toml hold, and the light parts stay light."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = {"torch", "tensorflow", "tensorboard", "jax", "ray"}
HEAVY = FRAMEWORKS | set("gymnasium ale_py numpy pydantic yaml zmq rich tqdm cloudpickle msgspec".split())


def loaded_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after running `code`."""
    script = f"import sys, json\n{code}\njson.dump(sorted({{m.partition('.')[0] for m in sys.modules}}), sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_importing_rlplat_loads_next_to_nothing() -> None:
    assert loaded_by("import rlplat") & HEAVY == set()


def test_help_loads_next_to_nothing() -> None:
    assert loaded_by("from rlplat.cli import main\nmain(['--help'])") & HEAVY == set()


def test_the_driver_of_a_run_loads_no_framework() -> None:
    """All in one interpreter, each algorithm after the other: the first that loads one is named."""
    code = f"""
from importlib import import_module
from rlplat.rl.run.registry import algorithm_homes
modules = ["rlplat.rl.run.training_loop", "rlplat.rl.interfaces", "rlplat.checkpoints", "rlplat.metrics"]
modules += [home.partition(":")[0] for home in algorithm_homes().values()]
assert len(modules) > 20
for module in modules:
    import_module(module)
    loaded = {FRAMEWORKS} & set(sys.modules)
    assert not loaded, (module, loaded)
"""
    assert loaded_by(code) & FRAMEWORKS == set()


def test_the_algorithms_of_the_source_tree_are_found() -> None:
    code = (
        "from rlplat.rl.run.registry import algorithm_homes, load_algorithm\n"
        "assert algorithm_homes()['ppo'] == 'rlplat.algorithms.ppo:PPO'\n"
        "assert load_algorithm('PPO').name == 'ppo'"
    )
    assert loaded_by(code) & FRAMEWORKS == set()


def test_public_modules_are_there_after_importing_rlplat_alone() -> None:
    code = (
        "import rlplat\n"
        "assert rlplat.tune.run and rlplat.state.list_actors and rlplat.errors.EnvError\n"
        "assert rlplat.checkpoints.load and rlplat.metrics.read_records"
    )
    assert loaded_by(code) & FRAMEWORKS == set()


def test_dir_shows_what_users_call_and_nothing_else() -> None:
    code = (
        "import rlplat\n"
        "names = [name for name in dir(rlplat) if not name.startswith('__')]\n"
        "assert {'train', 'remote', 'tune'} < set(names), names\n"
        "assert not {'Any', 'TYPE_CHECKING', 'annotations', 'importlib'} & set(names), names\n"
        "assert all(getattr(rlplat, name) is not None for name in names)"
    )
    assert loaded_by(code) & FRAMEWORKS == set()


def test_a_plain_mlp_learns_without_a_framework() -> None:
    code = (
        "from rlplat.algorithms.ppo import PPO, PPOConfig\n"
        "with PPO(PPOConfig(env='CartPole-v1', num_rollout_workers=0, num_envs_per_worker=2)) as ppo:\n"
        "    ppo.step()\n"
        "    ppo.evaluate(1)"
    )
    assert loaded_by(code) & FRAMEWORKS == set()


def test_actors_of_a_run_find_their_modules_in_the_zygote() -> None:
    code = (
        "import rlplat\n"
        "from rlplat.algorithms.ppo import PPO, PPOConfig\n"
        "@rlplat.remote\n"
        "def first(): import sys; return {'rlplat.algorithms.ppo', 'torch'} & {*sys.modules}\n"
        "with PPO(PPOConfig(env='CartPole-v1', num_rollout_workers=1)):\n"
        "    loaded = rlplat.get(first.remote())\n"
        "assert loaded == {'rlplat.algorithms.ppo'}, loaded\n"
    )
    assert loaded_by(code) & FRAMEWORKS == set()
