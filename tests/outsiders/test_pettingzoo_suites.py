"""PettingZoo's own tests (`pettingzoo.test`) over our environments of several agents, and its example environments,
whose agents and spaces appear while they are played, through ours: trained on, or refused in words."""

from __future__ import annotations

import warnings
from pathlib import Path

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
