"""AlphaZero: its loss beside an independent reference, resuming bit by bit, lost workers, refusals, what acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import rlplat
from rlplat.algorithms.alphazero import AlphaZero, AlphaZeroConfig, losses
from rlplat.errors import ConfigError, UsageError
from rlplat.rl.envs.board_games.env import TicTacToe
from tests.rl.envs.test_board_games import board
from tests.states import assert_equal, assert_resumes

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "env": "TicTacToe",
    "env_kwargs": {"opponent_depth": 1},  # the pre-flight plays too
    "seed": 3,
    "num_simulations": 4,
    "num_envs_per_worker": 4,
    "rollout_length": 4,
    "env_steps_per_update": 8,
    "batch_size": 16,
    "learning_starts": 20,
    "replay_capacity": 64,
    "policy": {"hidden_sizes": [16]},
    "evaluation": {"episodes": 2},
    "stop": {"env_steps": 5_000},
}


def test_the_losses_are_those_of_the_paper() -> None:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((5, 3)).astype(np.float32)
    logits[:, 2] = -1e8  # illegal
    values = rng.standard_normal(5).astype(np.float32)
    policies = np.array([[0.25, 0.75, 0.0]] * 5, np.float32)
    outcomes = np.array([1, 0, -1, 1, -1], np.float32)
    weights = [rng.standard_normal(4).astype(np.float32), rng.standard_normal((2, 2)).astype(np.float32)]
    expected = np.zeros(3)
    for i in range(5):
        p = np.exp(logits[i, :2]) / np.exp(logits[i, :2]).sum()
        expected[0] += (outcomes[i] - np.tanh(values[i])) ** 2 / 5
        expected[1] -= (policies[i, :2] * np.log(p)).sum() / 5
    expected[2] = 0.01 * sum(float((w**2).sum()) for w in weights)
    given = [torch.from_numpy(each) for each in (logits, values, policies, outcomes)]
    terms = losses(*given, [torch.from_numpy(w) for w in weights], 0.01)
    assert [float(term) for term in terms] == pytest.approx(expected.tolist(), rel=1e-5)


def test_resumes_bit_by_bit(runtime: None) -> None:
    """Weights, optimizer, replay, random numbers, games that are not over: everything goes on."""
    config = AlphaZeroConfig(**(QUICK | {"deterministic": True, "num_rollout_workers": 2}))
    expected = assert_resumes(AlphaZero, config, before=4, after=3)
    assert expected[-1].metrics["learner/updates"] > 15 and expected[-1].episodes > 20


def test_learns_at_its_ratio_and_alike_from_equal_seeds(runtime: None) -> None:
    config = AlphaZeroConfig(**QUICK, num_rollout_workers=2)
    with AlphaZero(config) as alphazero:
        results = [alphazero.step() for _ in range(5)]
    with AlphaZero(config) as other, AlphaZero(config.model_copy(update={"seed": 4})) as another:
        again, different = ([each.step() for _ in range(4)][-1] for each in (other, another))
    assert_equal(again.metrics, results[3].metrics)
    assert different.metrics["learner/policy_loss"] != again.metrics["learner/policy_loss"]
    assert [result.env_steps for result in results] == [32, 64, 96, 128, 160]
    updates = [result.metrics["learner/updates"] for result in results]
    # Rounds of 32 moves, a gradient step for 8 of them; none before 20 positions of finished games are there.
    assert updates[0] == 0 and np.diff(updates)[-3:].tolist() == [4, 4, 4]
    assert {"learner/value_loss", "learner/policy_loss"} <= results[-1].metrics.keys()
    assert -1.0 <= results[-1].episode_return_mean <= 1.0 and 5 <= results[-1].episode_length_mean <= 9


def test_a_dead_self_play_worker_costs_its_games_and_nothing_else(runtime: None) -> None:
    with AlphaZero(AlphaZeroConfig(**QUICK, num_rollout_workers=2)) as alphazero:
        alphazero.step()
        rlplat.kill(alphazero.workers.handles[1])
        result = alphazero.step()
        assert result.metrics["rollout/worker_restarts"] == 1
        assert result.iteration == 2 and result.env_steps == 64


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"env": "CartPole-v1", "env_kwargs": {}},
            "alphazero plans in board games of two players, and CartPole-v1 is none: use TicTacToe, ConnectFour, or",
        ),
        ({"framework": "tf"}, "alphazero computes with torch: omit framework=tf"),
    ],
)
def test_what_it_cannot_take_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AlphaZero(AlphaZeroConfig(**(QUICK | settings), num_rollout_workers=0))


def test_a_core_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"policy\.core=lstm has no effect: a search evaluates positions"):
        AlphaZeroConfig(env="TicTacToe", policy={"core": "lstm"})


class OwnGame(TicTacToe):
    """An environment that is not known by name."""


def test_a_run_is_evaluated_loaded_and_begun_from(tmp_path: Path) -> None:
    settings = {key: value for key, value in QUICK.items() if key not in ("env", "stop")}
    run = tmp_path / "run"
    env = f"{__name__}:OwnGame"
    rlplat.train("alphazero", env=env, out=run, num_rollout_workers=0, stop={"env_steps": 64}, **settings)
    agent = rlplat.load(run)
    assert {-1.0, 0.0, 1.0} >= {episode.episode_return for episode in agent.evaluate(4)}
    obs, _ = OwnGame(first="agent").reset(seed=1)
    assert agent.act(obs) == agent.act(obs) and 0 <= agent.act(obs, greedy=False, rng=1) < 9
    with pytest.raises(UsageError, match=r"acts by SearchPolicy, .* serve the run itself \(rlplat serve RUN\)"):
        agent.torch_module()
    planes = agent.policy._game.planes(board("xx. oo. ..."))[0]
    mask = np.array([0, 0, 1, 0, 0, 1, 1, 1, 1], np.int8)
    rlplat.train(
        "alphazero",
        env=env,
        out=tmp_path / "next",
        init_from=run,
        play_simulations=200,
        num_rollout_workers=0,
        stop={"env_steps": 16},
        **settings,
    )
    more = rlplat.load(tmp_path / "next")  # too few moves to learn from: the weights are those of the first run
    for name, array in agent.weights().items():
        assert np.array_equal(array, more.weights()[name])
    assert more.act({"board": planes, "action_mask": mask}) == 2
