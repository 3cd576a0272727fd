"""PPO as a whole, in one process: the ring turns, it learns, repeats itself, and outlives its rollout workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import rlplat
from rlplat.algorithms.ppo import PPO, PPOConfig, PPOLearner
from rlplat.errors import ConfigError, NotInitialized, RlplatError
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.sampling.worker_group import RolloutWorkers
from tests.rl.specimens import IMAGE, make_spec

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "env": "CartPole-v1",
    "seed": 3,
    "num_rollout_workers": 0,
    "num_envs_per_worker": 8,
    "rollout_length": 32,
    "num_epochs": 2,
    "learning_rate": 5e-3,
    "discount": 0.98,
    "gae_lambda": 0.8,
}


def weights_of(ppo: PPO) -> dict[str, np.ndarray]:
    weights: dict[str, np.ndarray] = ppo.get_state()["learner"]["weights"]
    return weights


def assert_equal_weights(one: PPO, other: PPO) -> None:
    first, second = weights_of(one), weights_of(other)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.parametrize("backend, seed", [("torch", 3), ("numpy", 1)])
def test_learns_cartpole(backend: str, seed: int) -> None:
    """A random policy reaches 22; 150 within 60,000 steps needs advantages, loss and update to be right."""
    settings = QUICK | {"num_envs_per_worker": 32, "seed": seed, "learner": {"backend": backend}}
    with PPO(PPOConfig(**settings)) as ppo:
        results = [ppo.step() for _ in range(60)]
        assert 25 < results[4].episode_return_mean < 100
        best = max(result.episode_return_mean for result in results)
        assert best > 150, f"best mean return of 100 episodes was {best:.0f}"
        assert results[-1].iteration == 60 and results[-1].metrics["learner/weights_version"] == 60
        evaluated = ppo.evaluate(5)
        assert len(evaluated) == 5 and np.mean([e.episode_return for e in evaluated]) > 150
    assert not rlplat.is_initialized()


def test_counts_decisions_only_and_reports_raw_returns() -> None:
    with PPO(PPOConfig(**QUICK, normalize_rewards=True)) as ppo:
        results = [ppo.step() for _ in range(4)]
    steps = np.diff([0] + [result.env_steps for result in results])
    assert (steps <= 8 * 32).all() and steps.sum() < 4 * 8 * 32  # some rows were resets
    last = results[-1]
    assert last.episodes > 10
    assert last.episode_return_mean == last.episode_length_mean  # CartPole: one per step


def test_same_seed_same_run_another_seed_another(runtime: None) -> None:
    runs = [PPO(PPOConfig(**(QUICK | {"seed": seed}))) for seed in (3, 3, 4)]
    for run in runs:
        run.step()
        run.step()
    assert_equal_weights(runs[0], runs[1])
    assert (weights_of(runs[0])["actor_head.weight"] != weights_of(runs[2])["actor_head.weight"]).any()


def test_state_carries_over_counts_weights_and_window(runtime: None) -> None:
    one, other = PPO(PPOConfig(**QUICK)), PPO(PPOConfig(**QUICK))
    for _ in range(3):
        before = one.step()
    other.set_state(one.get_state())
    assert_equal_weights(one, other)
    after = other.step()
    assert after.iteration == 4
    assert after.env_steps > before.env_steps and after.episodes >= before.episodes
    assert after.metrics["learner/weights_version"] > before.metrics["learner/weights_version"]


def test_a_dead_rollout_worker_costs_its_fragment_and_nothing_else(runtime: None) -> None:
    with PPO(PPOConfig(**(QUICK | {"num_rollout_workers": 2}))) as ppo:
        ppo.step()
        rlplat.kill(ppo.workers.handles[1])
        result = ppo.step()
        assert result.metrics["rollout/worker_restarts"] == 1
        assert result.iteration == 2
        # Two workers, two rounds; a lost fragment was neither counted nor learnt from, a new one took its place.
        assert 2 * 2 * 8 * 32 - 2 * 2 * 60 < result.env_steps <= 2 * 2 * 8 * 32
        assert ppo.get_state()["rollout_workers"]["incarnations"] == [0, 1]


def test_a_death_while_the_next_round_is_sampled_costs_the_others_nothing(
    runtime: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fragment that was sampled is learnt from, once: the round ahead of the one that was lost, too."""
    asked: list[int] = []
    learnt: list[tuple[int, int]] = []

    def start_fragment(
        self: RolloutWorkers, slot: int, *arguments: Any, start: Any = RolloutWorkers.start_fragment
    ) -> Any:
        asked.append(slot)
        return start(self, slot, *arguments)

    def update(self: PPOLearner, *batches: SampleBatch, update: Any = PPOLearner.update) -> Any:
        learnt.extend((batch.worker_index, batch.incarnation) for batch in batches)
        return update(self, *batches)

    monkeypatch.setattr(RolloutWorkers, "start_fragment", start_fragment)
    monkeypatch.setattr(PPOLearner, "update", update)
    with PPO(PPOConfig(**(QUICK | {"num_rollout_workers": 2, "overlap_sampling": True}))) as ppo:
        ppo.step()
        rlplat.kill(ppo.workers.handles[1])
        result = [ppo.step() for _ in range(3)][-1]
    assert asked.count(0) == 4 + 1  # four rounds and the one ahead
    assert learnt.count((0, 0)) == 4 and len(learnt) == 2 * 4
    assert result.metrics["rollout/worker_restarts"] == 1


def test_a_dead_learner_ends_the_run(runtime: None) -> None:
    with PPO(PPOConfig(**QUICK)) as ppo:
        ppo.step()
        rlplat.kill(ppo.learners.handles[0])
        with pytest.raises(RlplatError):
            ppo.step()


@pytest.mark.parametrize("overlap, versions", [(False, [0, 1, 2, 3, 4]), (True, [0, 0, 1, 2, 3])])
def test_overlapped_sampling_is_one_version_behind(
    runtime: None, monkeypatch: pytest.MonkeyPatch, overlap: bool, versions: list[int]
) -> None:
    seen: list[int] = []

    def update(self: PPOLearner, *batches: SampleBatch, update: Any = PPOLearner.update) -> Any:
        seen.extend(batch.weights_version for batch in batches)
        return update(self, *batches)

    monkeypatch.setattr(PPOLearner, "update", update)
    with PPO(PPOConfig(**(QUICK | {"overlap_sampling": overlap}))) as ppo:
        results = [ppo.step() for _ in range(5)]
    assert seen == versions
    assert [result.metrics["learner/weights_version"] for result in results] == [1, 2, 3, 4, 5]
    assert results[-1].env_steps > 5 * 8 * 32 - 5 * 60


@pytest.mark.parametrize(
    "settings, num_gpus, expected",
    [
        ({}, 1, True),
        ({}, 0, False),
        ({"learner": {"num_gpus": 0}}, 1, False),
        ({"num_rollout_workers": 0}, 1, False),
        ({"deterministic": True}, 1, False),
        ({"overlap_sampling": False}, 1, False),
        ({"overlap_sampling": True}, 0, True),
    ],
)
def test_rounds_overlap_by_themselves_where_the_learner_has_a_gpu(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], num_gpus: int, expected: bool
) -> None:
    monkeypatch.setattr(rlplat, "cluster_resources", lambda: {"GPU": num_gpus})
    monkeypatch.setattr(PPO, "specs", [make_spec(IMAGE)])
    ppo = PPO.__new__(PPO)  # without its actors
    ppo.config = PPOConfig(**{"env": "Pong", **settings})
    assert ppo.overlaps() is expected


@pytest.mark.parametrize(
    "env, policy",
    [
        (
            "rlplat.rl.envs.diagnostic:RememberCue",
            {"core": "attention", "core_size": 8, "attention_heads": 2},
        ),
        ("rlplat.rl.envs.diagnostic:MaskedChoice", {}),
        ("rlplat.rl.envs.diagnostic:NestedTask", {"squash_actions": True}),
        ("rlplat.rl.envs.diagnostic:NestedTask", {"core": "gru", "core_size": 8}),
    ],
)
def test_memory_masks_and_nested_spaces_run(env: str, policy: dict[str, Any]) -> None:
    settings = QUICK | {"env": env, "rollout_length": 16, "policy": policy | {"hidden_sizes": [16]}}
    with PPO(PPOConfig(**settings)) as ppo:
        results = [ppo.step() for _ in range(2)]
        assert results[-1].episodes > 0 and len(ppo.evaluate(2)) == 2
        assert all(np.isfinite(w).all() for w in weights_of(ppo).values())
        if env.endswith("MaskedChoice"):  # illegal actions earn -1 and end the episode before its 20 steps
            assert results[-1].episode_length_mean == 20 and results[-1].episode_return_mean >= 0


def test_a_core_is_what_solves_a_memory_task() -> None:
    """Without memory the return is 0.5 in the mean, whatever is learnt; the numbers of all cores: configs/ppo/."""
    settings = QUICK | {
        "env": "rlplat.rl.envs.diagnostic:RememberCue",
        "env_kwargs": {"delay": 3},
        "num_envs_per_worker": 32,
        "rollout_length": 16,
        "num_epochs": 4,
        "discount": 0.95,
        "policy": {"core": "gru", "core_size": 16, "hidden_sizes": [16]},
    }
    with PPO(PPOConfig(**settings)) as ppo:
        best = max(ppo.step().episode_return_mean or 0.0 for _ in range(16))
    assert best > 0.85, f"best mean return of 100 episodes was {best:.2f}"


def test_closed_is_closed(runtime: None) -> None:
    ppo = PPO(PPOConfig(**QUICK))
    ppo.close()
    ppo.close()
    with pytest.raises(NotInitialized, match="closed"):
        ppo.step()
    assert rlplat.is_initialized()  # it was not PPO's to end


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"clip_rewards": True, "normalize_rewards": True}, "exclude each other"),
        ({"policy": {"encoder": "nature_cnn"}}, "policy.encoder=mlp"),
        ({"overlap_sampling": True, "deterministic": True}, "set one of them to false"),
        ({"learner": {"num_learners": 2}}, "num_learners=2 needs a process for each"),
        ({"policy": {"core": "lstm", "share_encoder": False}}, "leave share_encoder at auto"),
    ],
)
def test_preflight_refuses_before_any_actor_starts(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        PPO(PPOConfig(**(QUICK | settings)))
    assert not rlplat.is_initialized()


def test_continuous_actions(runtime: None) -> None:
    settings = QUICK | {"env": "Pendulum-v1", "normalize_observations": True, "normalize_rewards": True}
    with PPO(PPOConfig(**settings)) as ppo:
        result = [ppo.step() for _ in range(8)][-1]
        assert result.env_steps >= 8 * 8 * 32 - 8 * 8
        assert result.metrics["learner/entropy"] == pytest.approx(1.42, abs=0.2)
        assert all(np.isfinite(w).all() for w in weights_of(ppo).values())
