"""DQN, R2D2 and Ape-X as a whole: they turn, learn, repeat themselves, resume, and outlive their rollout workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import rlplat
from rlplat.algorithms.apex import Apex, ApexConfig
from rlplat.algorithms.dqn import DQN, DQNConfig
from rlplat.algorithms.r2d2 import R2D2, R2D2Config
from rlplat.errors import CheckpointError, ConfigError, UsageError
from tests.states import assert_resumes

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "env": "CartPole-v1",
    "seed": 3,
    "num_rollout_workers": 0,
    "num_envs_per_worker": 4,
    "rollout_length": 16,
    "learning_starts": 100,
    "env_steps_per_update": 8,
    "batch_size": 16,
    "policy": {"hidden_sizes": [16]},
    "stop": {"env_steps": 5_000},
}
RAINBOW: dict[str, Any] = {
    "double": True, "dueling": True, "n_step": 3, "distributional": "c51", "num_atoms": 11, "noisy": True,
    "prioritized": True, "epsilon": 0.0,
}  # fmt: skip
RECURRENT: dict[str, Any] = {
    "policy": {"hidden_sizes": [16], "core": "lstm", "core_size": 8}, "burn_in": 4, "unroll_length": 6,
}  # fmt: skip
ASYNCHRONOUS: dict[str, Any] = {
    "updates_per_call": 2,
    "n_step": 1,
    "ratio_slack": 64,
}


def test_learns_a_small_task(runtime: None) -> None:
    """Which of the legal actions pays: a quarter by chance; needs masks, targets and exploration to be right."""
    config = DQNConfig(
        env="rlplat.rl.envs.diagnostic:MaskedChoice", seed=1, num_rollout_workers=0, num_envs_per_worker=8,
        rollout_length=8, learning_starts=200, env_steps_per_update=4, batch_size=32, learning_rate=3e-3,
        target_period=100, discount=0.5, epsilon={"schedule": "linear", "start": 1.0, "end": 0.05, "until": 0.5},
        policy={"hidden_sizes": [64]}, double=True, stop={"env_steps": 6_000},
    )  # fmt: skip
    with DQN(config) as dqn:
        untrained = np.mean([e.episode_return for e in dqn.evaluate(10)])
        while (result := dqn.step()).env_steps < 6_000:
            pass
        trained = np.mean([e.episode_return for e in dqn.evaluate(10)])
        lengths = {e.length for e in dqn.evaluate(10)}
    assert result.metrics["learner/updates"] > 1_300
    assert len(lengths) == 1, "an illegal action ended an episode"
    assert trained > 1.5 * untrained + 2, (untrained, trained)


@pytest.mark.parametrize("algorithm, parts", [(DQN, RAINBOW), (R2D2, RECURRENT | RAINBOW)], ids=["dqn", "r2d2"])
def test_resumes_bit_by_bit(runtime: None, algorithm: Any, parts: dict[str, Any]) -> None:
    """Weights, optimizer, replay with its priorities, random numbers, environments, window: everything goes on."""
    more = {"deterministic": True, "num_rollout_workers": 2, "num_envs_per_worker": 2}
    config = algorithm.config_class(**(QUICK | parts | more))
    expected = assert_resumes(algorithm, config, before=6, after=4)
    assert expected[-1].metrics["learner/updates"] > 30


def test_counts_decisions_and_reports_raw_returns(runtime: None) -> None:
    with DQN(DQNConfig(**QUICK, clip_rewards=True)) as dqn:
        results = [dqn.step() for _ in range(8)]
    last = results[-1]
    assert 8 * 64 - 8 * 10 < last.env_steps <= 8 * 64
    assert last.episode_return_mean == last.episode_length_mean  # CartPole: one per step
    assert last.metrics["learner/weights_version"] == 8


def test_a_dead_rollout_worker_costs_its_fragment_and_nothing_else(runtime: None) -> None:
    with DQN(DQNConfig(**(QUICK | {"num_rollout_workers": 2}))) as dqn:
        dqn.step()
        rlplat.kill(dqn.workers.handles[1])
        result = dqn.step()
        assert result.metrics["rollout/worker_restarts"] == 1 and result.iteration == 2
        dqn.step()


@pytest.mark.parametrize("parts", [{}, RECURRENT], ids=["transitions", "sequences"])
def test_the_asynchronous_ring_keeps_its_ratio(runtime: None, parts: dict[str, Any]) -> None:
    settings = QUICK | parts | ASYNCHRONOUS | {"num_rollout_workers": 3, "num_replay_shards": 2}
    with Apex(ApexConfig(**settings)) as apex:
        results = [apex.step() for _ in range(12)]
        last = results[-1]
        slack = max(64, 3 * 64 + 2 * 2 * 8) + 3 * 64
        assert abs(last.env_steps - 100 - 8 * last.metrics["learner/updates"]) <= slack
        busy = {who: last.metrics[f"time/{who}_busy_s"] for who in ("worker", "learner")}
        assert all(0.0 < seconds < last.metrics["time/round_s"] for seconds in busy.values()), busy
        assert last.metrics["learner/replay_size"] > 0 and np.isfinite(last.metrics["learner/loss"])
        assert max(apex.ring.shard_sizes) < 3 * min(apex.ring.shard_sizes), "a worker was left out"
        rlplat.kill(apex.workers.handles[1])
        assert [apex.step().metrics["rollout/worker_restarts"] for _ in range(4)][-1] == 1
        state = apex.get_state()
        assert any("order of events" in text for text in apex.not_saved)
    with Apex(ApexConfig(**settings)) as other:
        other.set_state(state)
        result = other.step()
        assert result.env_steps > state["env_steps"] and result.metrics["learner/updates"] >= state["updates"]


class CountedShard:
    """A shard's handle that counts what is drawn from it."""

    def __init__(self, shard: Any) -> None:
        self._shard, self.num_draws = shard, 0

    def __getattr__(self, name: str) -> Any:
        self.num_draws += name == "sample"
        return getattr(self._shard, name)


def test_every_worker_has_its_share_of_the_asynchronous_replay_and_of_what_is_drawn(runtime: None) -> None:
    settings = QUICK | ASYNCHRONOUS | {"num_rollout_workers": 3, "num_replay_shards": 2}
    config = ApexConfig(**settings | {"replay_capacity": 3 * 4 * 33})  # the least for so many environments
    with Apex(config) as apex:
        counted = [CountedShard(shard) for shard in apex.ring.shards]
        apex.ring.shards[:] = counted  # type: ignore[list-item]
        for _ in range(12):
            apex.step()
        state = apex.get_state()
    stores = [shard["store"] for shard in state["shards"]]
    assert [store["shape"][:2] for store in stores] == [[8, 33], [4, 33]]
    two, one = [shard.num_draws for shard in counted]
    assert one > 10 and 2 * one - 1 <= two <= 2 * one + 2
    stores[1]["shape"][0] = 8  # as a run of before saved it
    with Apex(config) as other, pytest.raises(CheckpointError, match=r"not fit .* --set save_replay=false"):
        other.set_state(state)


def test_what_fills_the_asynchronous_replay_anew_brings_no_gradient_steps(runtime: None) -> None:
    settings = QUICK | ASYNCHRONOUS | {"num_rollout_workers": 2, "learning_starts": 1_000}
    with Apex(ApexConfig(**settings, save_replay=False)) as apex:
        while apex.step().env_steps < 1_500:
            pass
        state = apex.get_state()
    began, updates = state["env_steps"], state["updates"]
    assert updates > 0
    with Apex(ApexConfig(**settings)) as filling:
        filling.set_state(state)
        while filling.step().env_steps < began + 400:
            pass
        state = filling.get_state()
    with Apex(ApexConfig(**settings)) as resumed:  # with what has come so far
        resumed.set_state(state)
        while (result := resumed.step()).env_steps < began + 800:
            pass
        assert result.metrics["learner/updates"] == updates
        for _ in range(6):
            result = resumed.step()
        more = result.metrics["learner/updates"] - updates
        slack = max(64, 2 * 64 + 2 * 2 * 8) + 2 * 64
        assert more > 0 and abs(result.env_steps - began - 1_000 - 8 * more) <= slack


@pytest.mark.process
def test_the_asynchronous_ring_of_processes() -> None:
    """Workers, shard and learner in processes of their own; priorities flow back; it ends cleanly."""
    settings = QUICK | ASYNCHRONOUS | {"num_rollout_workers": 2, "env_steps_per_update": 4}
    with Apex(ApexConfig(**settings)) as apex:
        while (result := apex.step()).env_steps < 2_000:
            pass
        assert result.metrics["learner/updates"] > 300
        assert 3.0 < result.metrics["learner/env_steps_per_update"] < 5.5
        assert len(apex.evaluate(2)) == 2
        shard = rlplat.get(apex.ring.shards[0].get_state.remote())
        leaves = shard["priorities"]["leaves"]
        assert len(np.unique(leaves[leaves > 0])) > 50
    assert not rlplat.is_initialized()


def test_acts_from_a_checkpoint_without_actors(runtime: None) -> None:
    with DQN(DQNConfig(**QUICK)) as dqn:
        dqn.step()
        state, spaces = dqn.get_state(), dqn.spaces
    policy = DQN.make_policy(DQNConfig(**QUICK).model_dump(), spaces, np.random.SeedSequence(0))
    policy.set_weights(DQN.policy_weights(state))
    assert policy.exploration.epsilon < 1.0  # type: ignore[attr-defined]  # explores as the learner would now, not as at the start
    actions = policy.act(np.zeros((3, 4), np.float32), deterministic=True).actions
    assert actions.shape == (3,) and actions.dtype == np.int64


def test_evaluation_has_an_epsilon_of_its_own(runtime: None) -> None:
    """Deterministic given the seed, whatever the epsilon of training is."""

    def evaluate(epsilon: float) -> list[float]:
        with DQN(DQNConfig(**QUICK, evaluation={"epsilon": epsilon})) as dqn:
            dqn.step()
            return [episode.episode_return for episode in dqn.evaluate(8)]

    greedy, mixed = evaluate(0.0), evaluate(0.5)
    assert greedy != mixed and mixed == evaluate(0.5)


def test_the_smallest_replay_holds_a_fragment_of_episodes_that_are_all_cut_off(runtime: None) -> None:
    settings = {"env": "MountainCar-v0", "replay_capacity": 4 * 33, "env_kwargs": {"max_episode_steps": 1}}
    with DQN(DQNConfig(**(QUICK | settings))) as dqn:
        for _ in range(4):
            result = dqn.step()
    assert result.metrics["learner/replay_size"] > 10


@pytest.mark.process
@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"env": "Pendulum-v1"}, "use SAC: rlplat train --algo sac --env Pendulum-v1"),
        ({"distributional": "c51", "value_range": (1.0, -1.0)}, r"value_range is \[1, -1\]"),
        ({"policy": {"core": "gru"}}, "replays single transitions: --algo r2d2"),
        ({"replay_capacity": 40}, "raise replay_capacity"),
        ({"replay_capacity": 4 * 32}, r"leaves 32 steps .* needs 33: raise replay_capacity"),
        ({"replay_capacity": 10**11}, "lower replay_capacity"),
    ],
)
def test_preflight_refuses_before_any_actor_starts(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises((ConfigError, UsageError), match=complaint):
        DQN(DQNConfig(**(QUICK | settings)))
    assert not rlplat.is_initialized()


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"num_replay_shards": 2}, r"num_replay_shards=2, but there are 1 rollout workers"),
        ({"normalize_observations": True}, "as the learner of apex does not: set it to false"),
        ({"env": "rlplat.rl.envs.diagnostic_multi_agent:Rendezvous"}, "are for one agent: --algo dqn"),
    ],
)
def test_what_apex_cannot_do(runtime: None, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Apex(ApexConfig(**(QUICK | settings)))


def test_r2d2_has_the_papers_switches_and_takes_policies_without_a_core_too(runtime: None) -> None:
    config = R2D2Config(**(QUICK | {"policy": {"hidden_sizes": [16]}}))
    assert config.policy.core == "lstm" and config.prioritized and config.double and config.dueling
    with R2D2(R2D2Config(**(QUICK | {"policy": {"hidden_sizes": [16], "core": "none"}}))) as r2d2:
        results = [r2d2.step() for _ in range(4)]
    assert results[-1].metrics["learner/updates"] > 10


def test_what_was_a_switch_of_dqn_says_what_it_is_now() -> None:
    with pytest.raises(ConfigError, match=r"asynchronous.*--algo apex"):
        rlplat.train("dqn", env="CartPole-v1", asynchronous=True)
    with pytest.raises(ConfigError, match=r"burn_in.*setting of apex, r2d2"):
        rlplat.train("dqn", env="CartPole-v1", burn_in=4)
