"""PettingZoo's own tests (`pettingzoo.test`) over our environments of several agents, and its example environments,
whose agents and spaces appear while they are played, through ours: trained on, or refused in words."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pettingzoo")

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own registry, since 1.27
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils.conversions import parallel_to_aec

from rlplat.cli import main
from rlplat.rl.envs.diagnostic_multi_agent import Nim, Rendezvous

EXAMPLES = "pettingzoo.test.example_envs"
GENERATED = ("generated_agents_env", "generated_agents_parallel", "generated_agents_env_cust_agentid")


# What an environment may leave out, and that Dicts with masks are no Box.
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")


def test_our_turn_based_environment() -> None:
    api_test(Nim(), num_cycles=100)
    seed_test(Nim, num_cycles=50)


def test_our_parallel_environment() -> None:
    parallel_api_test(Rendezvous(), num_cycles=100)
    parallel_seed_test(Rendezvous, num_cycles=50)
    api_test(parallel_to_aec(Rendezvous()), num_cycles=50)


@pytest.mark.parametrize("name", GENERATED)
def test_agents_that_nobody_listed_are_refused_before_anything_is_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["train", "--algo", "ppo", "--env", f"{EXAMPLES}.{name}_v0", "--out", str(out)]) == 2
    assert "has no possible_agents; list there every agent that may appear" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("name", GENERATED)
def test_check_env_says_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", f"{EXAMPLES}.{name}_v0"]) == 1
    assert "0 random steps" in (said := capsys.readouterr().out) and "error: has no possible_agents; list" in said


@pytest.mark.parametrize(("name", "agents"), [("Nim", ("first", "second")), ("Rendezvous", ("left", "right"))])
def test_check_env_plays_games(name: str, agents: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", f"rlplat.rl.envs.diagnostic_multi_agent:{name}", "--steps", "60"]) == 0
    said = capsys.readouterr().out
    assert "2 agents; 60 random steps, " in said and "no problems found" in said
    assert all(f"\n  {agent}: " in said and "-> Discrete(3)" in said for agent in agents)


class Forgetful(Rendezvous):
    """No seed reaches it, and once in a while it observes too much."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None)

    def step(self, actions: Any) -> Any:
        obs, *rest = super().step(actions)
        self._at -= 1
        return ({agent: np.append(seen, 0.0) for agent, seen in obs.items()} if self._at == 0 else obs), *rest


@pytest.mark.parametrize(("at", "code", "text"), [(0, 0, "warning: two plays with the same seed"), (9, 1, "(16,)")])
def test_check_env_finds_what_a_run_would(at: int, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    env = "tests.outsiders.test_pettingzoo_suites:Forgetful"
    assert main(["check-env", env, "--steps", "60", "--env-kwargs.at", str(at)]) == code
    assert text in capsys.readouterr().out
