"""Weights of one run as the beginning of another: `set_weights`, `train(init_from=)`, `--init-from`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.checkpoints import latest_valid
from rlplat.cli import main
from rlplat.errors import CheckpointError, ConfigError
from rlplat.rl.learning.weights import CARRIED_OBSERVATIONS, network_weights, require_fitting
from rlplat.rl.policies.exploration import EPSILON
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.run.trained_agent import find_initial
from rlplat.rl.run.training_plan import plan_from_file
from tests.cli.counting_algorithm import CountingAlgorithm, CountingConfig
from tests.rl.run.test_trained_agent import NORMAL, SMALL, make, trained

KINDS = dict.fromkeys(("sac", "td3", "mbpo", "tqc", "crossq"), "box")
OPTIMIZERS = {
    "a3c": "optimizer_slots", "sac": "actor_optimizer", "td3": "actor_optimizer", "mbpo": "actor_optimizer",
    "tqc": "actor_optimizer", "crossq": "actor_optimizer",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    normal = {algo: {} if algo == "dqn" else NORMAL for algo in SMALL}
    return {algo: trained(algo, KINDS.get(algo, "discrete"), root / algo, **normal[algo]) for algo in SMALL}


def same_trees(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_trees(one[key], other[key]) for key in one)
    return np.array_equal(one, other)


@pytest.mark.parametrize("algo", list(SMALL))
def test_an_algorithm_takes_weights_and_learns_on(algo: str, runs: dict[str, Path]) -> None:
    agent = rlplat.load(runs[algo])
    plan = plan_from_file(runs[algo] / "config.yaml", [])
    with plan.algorithm_class(plan.config) as algorithm:
        fresh = algorithm.get_state()
        algorithm.set_weights(agent.weights())
        state = algorithm.get_state()
        expected = {name: array for name, array in agent.weights().items() if name != EPSILON}
        for taken in (rlplat.get(algorithm.weights())[1], algorithm.policy_weights(state)):
            assert expected.keys() <= taken.keys()
            assert all(np.allclose(taken[name], array, rtol=1e-6) for name, array in expected.items())
        kept = OPTIMIZERS.get(algo, "optimizer")
        assert same_trees(state["learner"][kept], fresh["learner"][kept])
        if algo == "dqn":
            assert same_trees(state["learner"]["target"], state["learner"]["weights"])
        elif algo == "td3":
            assert same_trees(state["learner"]["target_actor"], state["learner"]["weights"])
        else:
            assert state["learner"]["obs_statistics"]["count"] == CARRIED_OBSERVATIONS
        if algo == "a3c":  # of a run of so few observations that it has no statistics yet
            algorithm.set_weights(network_weights(agent.weights()))
            assert algorithm.get_state()["learner"]["obs_statistics"] is None
        assert algorithm.step().env_steps > 0


def test_a_run_begins_with_another_ones_weights_and_needs_it_no_more(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs["ppo"], "first")
    flags = [
        "--env-kwargs.kind",
        "discrete",
        "--num-rollout-workers",
        "0",
        "--normalize-observations",
        "true",
    ]
    flags += ["--rollout-length", "8", "--num-envs-per-worker", "2", "--evaluation.episodes", "1"]
    train = ["train", "--algo", "ppo", "--env", f"{make.__module__}:make", *flags, "--learning-rate", "1e-9"]
    assert main([*train, "--out", "next", "--init-from", "first:latest", "--stop.env-steps", "16"]) == 0
    source = rlplat.load("first").checkpoint
    told = f"starting from the weights of {source.path} (48 env steps)"
    assert told in capsys.readouterr().err and told in Path("next/log.txt").read_text()
    assert f'init_from: "{source.path}"\n' in Path("next/config.yaml").read_text()
    before, after = rlplat.load("first").weights(), rlplat.load("next").weights()
    for name in ("actor_head.weight", "obs_norm.mean"):
        assert np.allclose(before[name], after[name], rtol=0.01, atol=1e-5)
    shutil.rmtree("first")
    assert main(["train", "--resume", "next", "--stop.env-steps", "32"]) == 0
    assert "init_from" in Path("next/config.yaml").read_text()
    capsys.readouterr()
    assert main(["train", "--resume", "next", "--init-from", "next"]) == 2
    assert "uses the run's own weights; omit --init-from" in capsys.readouterr().err
    assert main([*train, "--out", "third", "--init-from", "first"]) == 2
    assert "no run in first" in capsys.readouterr().err and not Path("third").exists()


def test_what_does_not_fit_is_named_leaf_by_leaf(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        trained("ppo", "multi", tmp_path / "next", init_from=runs["es"])
    said = str(caught.value)
    assert f"cannot start from {runs['es']}/checkpoints/step_" in said
    assert "\n  - critic_head.weight is missing there, and has shape [1, 64] here" in said
    assert "\n  - actor_head.weight has shape [3, 64] there, and [5, 64] here" in said
    assert "\n  - normalize_observations is true there, and false here" in said
    assert "(it is a run of es; its spaces are Box(3) float32 -> Discrete(3, start=-1), and here Box(3) float32" in said
    assert not (tmp_path / "next").exists()


def test_other_spaces_with_the_same_network_are_told_of(runs: dict[str, Path], tmp_path: Path) -> None:
    initial = find_initial(f"{runs['dqn']}:latest")
    assert initial.path.startswith(f"{runs['dqn']}/checkpoints/step_")

    class Other(Algorithm[Any]):
        name, spaces = "dqn", "others"

        def __init__(self) -> None: ...

        def set_weights(self, weights: Any) -> None:
            require_fitting(initial.weights, weights, normalizes=False)

    assert initial.give_to(Other()).endswith(
        "; note: its spaces are Box(3) float32 -> Discrete(3, start=-1), and here others"
    )
    with pytest.raises(ConfigError, match=r"cannot act without its actors: it has no policy_weights\(\)"):
        initial.give_to(CountingAlgorithm(CountingConfig(env="X")))
    with pytest.raises(ConfigError, match=r"cannot start from other weights: it has no with_weights\(\)"):
        Algorithm.with_weights({}, initial.weights)
    with pytest.raises(CheckpointError, match="'step_9'; there are: latest, best, step_"):
        find_initial(f"{runs['dqn']}:step_9")
    with pytest.raises(CheckpointError, match="'nope'; there are: latest, best, step_"):
        find_initial(f"{runs['dqn']}:nope")


def test_weights_that_are_not_numbers_are_refused(runs: dict[str, Path]) -> None:
    weights = rlplat.load(runs["es"]).weights()
    broken = weights | {"actor_head.bias": np.full_like(weights["actor_head.bias"], np.nan)}
    with pytest.raises(CheckpointError, match=r"actor_head.bias holds NaN"):
        require_fitting(weights, broken, normalizes=True)
    require_fitting(weights, weights, normalizes=True)


def test_several_policies_take_theirs(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "env": "rlplat.rl.envs.diagnostic_multi_agent:Nim",
        "num_rollout_workers": 0,
        "stop": {"env_steps": 40},
        "evaluation": {"episodes": 1},
        "multi_agent": {
            "policies": {"main": {}, "other": {"trained": False}},
            "mapping": {"first": "main", "second": "other"},
            "self_play": {"opponent": "other"},
        },
        **SMALL["ppo"],
    }
    rlplat.train("ppo", out=tmp_path / "first", **settings)
    plan = plan_from_file(tmp_path / "first" / "config.yaml", [])
    weights = rlplat.load(tmp_path / "first").weights()
    with plan.algorithm_class(plan.config) as algorithm:
        algorithm.set_weights(weights)
        assert same_trees(algorithm.policy_weights(algorithm.get_state()), weights)
        assert algorithm.step().env_steps > 0
    assert latest_valid(tmp_path / "first")[0] is not None
