"""PPO whose learner steps a tensor environment itself: what it samples, that nothing of it is copied, that it learns
and resumes; and when rollout workers step it on the host instead."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.overrides import TorchFunctionMode

import rlplat
from rlplat.algorithms.ppo import PPO, PPOConfig, PPOLearner
from rlplat.config import Layer
from rlplat.errors import EnvError, NonFiniteError, UsageError
from rlplat.rl.envs.tensors.tasks import TensorCartPole, TensorPointMass
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.normalization import OBS_MEAN, RunningMeanVar
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.run.training_plan import plan_from_file
from rlplat.rl.sampling.returns import gae
from rlplat.rl.torch.tensor_rollouts import TensorRollouts
from tests.rl.tensor_sims import IsaacLike, ManiSkillLike
from tests.states import assert_resumes

SMALL: dict[str, Any] = {
    "env": "TensorCartPole",
    "env_kwargs": {"device": "cpu"},
    "num_rollout_workers": 0,
    "num_envs_per_worker": 16,
    "rollout_length": 8,
    "minibatch_size": 32,
    "num_epochs": 2,
    "policy": {"hidden_sizes": [16]},
    "seed": 1,
}


@pytest.fixture
def parameter_server() -> Iterator[Any]:
    rlplat.init(backend="inproc")
    yield rlplat.remote(ParameterServer).remote()
    rlplat.shutdown()


def make_learner(parameter_server: Any, **settings: Any) -> PPOLearner:
    config = PPOConfig(**(SMALL | settings))
    from rlplat.rl.torch.tensor_rollouts import make_tensor_envs

    spaces = make_tensor_envs(config.env, config.num_envs_per_worker, config.env_kwargs).spec
    asked = config.model_dump() | {"learner": config.learner.model_dump() | {"backend": "torch", "device": "cpu"}}
    spec = policy_spec(config.policy.model_dump(), spaces)
    learner = PPOLearner(computation_of(PPO), asked, spec, parameter_server)
    learner.sample_here()
    return learner


def test_gae_of_tensors_is_that_of_arrays() -> None:
    rng = np.random.default_rng(0)
    rewards, values, next_values = rng.normal(size=(3, 7, 5)).astype(np.float32)
    terminated, truncated = rng.random((2, 7, 5)) < 0.2
    columns = {"values": values, "next_values": next_values, "terminated": terminated, "truncated": truncated}
    expected = gae(rewards, **columns, discount=0.97, gae_lambda=0.9)
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    found: Any = gae(torch.from_numpy(rewards), **tensors, discount=0.97, gae_lambda=0.9)  # type: ignore[arg-type]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-6, atol=1e-6)


class Copies(TorchFunctionMode):
    """Within it, `numbers` is how many numbers were taken out of tensors, `times` how often, also by their shape."""

    READS = frozenset("item tolist numpy cpu __bool__ __float__ __int__ __index__ __array__".split())
    WAITS = frozenset(("nonzero", "masked_select", "unique", "equal"))

    def __init__(self) -> None:
        super().__init__()
        self.numbers = self.times = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        by_mask = name == "__getitem__" and getattr(args[1], "dtype", None) == torch.bool
        if name in self.READS:
            self.numbers += args[0].numel()
        self.times += name in self.READS or name in self.WAITS or by_mask
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("normalize", [False, True])
def test_a_round_copies_as_few_numbers_however_many_are_sampled(parameter_server: Any, normalize: bool) -> None:
    """The numbers of 100 episodes, of gradient steps and the weights, that is; of 8 x 16 steps as of 64 x 32."""

    def copies(num_envs: int, rollout_length: int) -> tuple[int, int]:
        learner = make_learner(
            parameter_server,
            num_envs_per_worker=num_envs,
            rollout_length=rollout_length,
            minibatch_size=num_envs * rollout_length // 4,
            normalize_observations=normalize,
        )
        for _ in range(2):  # under `normalize` the first round is only measured
            learner.update()
        with Copies() as found:
            metrics = learner.update().metrics
        assert np.isfinite(metrics["learner/gradient_norm"])
        return found.times, found.numbers

    few, many = copies(16, 8), copies(64, 32)
    assert few == many and few[1] < 1_500, (few, many)


def test_rollouts_are_what_the_environment_and_the_network_say(parameter_server: Any) -> None:
    """Values of what followed: of the last observation where an episode was cut off."""
    learner = make_learner(
        parameter_server, env="TensorPointMass", env_kwargs={"max_episode_steps": 3, "device": "cpu"}
    )
    network, twin = learner.net.network, TensorPointMass(16, max_episode_steps=3, device="cpu")
    rollouts: TensorRollouts = learner.rollouts
    twin.set_state(rollouts._envs.raw.get_state())
    rollout = rollouts.roll_out(network, 5, {})
    batch: Any = rollout.batch
    assert batch.weights_version == 5 and batch.env_steps == 128 and rollout.num_unlisted == 0
    assert [episode.length for episode in batch.episodes] == [3] * 32
    totals = batch.rewards[:6].reshape(2, 3, 16).sum(1).reshape(-1)
    np.testing.assert_allclose([episode.episode_return for episode in batch.episodes], totals, rtol=1e-5)
    with torch.no_grad():
        obs = twin._obs(twin._state)
        for t in range(8):
            torch.testing.assert_close(batch.obs[t], obs)
            distribution, values, _ = network(obs)
            torch.testing.assert_close(batch.values[t], values)
            torch.testing.assert_close(batch.log_probs[t], distribution.log_prob(batch.actions[t]))
            obs, rewards, _, truncated, info = twin.step(batch.actions[t].clamp(-1.0, 1.0))
            torch.testing.assert_close(batch.rewards[t], rewards)
            assert torch.equal(batch.truncated[t], truncated) and truncated.all() == (t % 3 == 2)
            torch.testing.assert_close(batch.next_values[t], network(info["final_obs"])[1])


def test_where_the_last_observation_is_not_told_the_one_before_stands_for_it(
    parameter_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    learner = make_learner(parameter_server, env=IsaacLike, env_kwargs={}, rollout_length=7)
    for _ in range(2):
        batch: Any = learner.rollouts.roll_out(learner.net.network, 1, {}).batch
        assert batch.truncated.any(1).sum() == 1
        assert torch.equal(batch.next_values[batch.truncated], batch.values[batch.truncated])
    assert capsys.readouterr().err.count("they are bootstrapped from the one before") == 1


def test_of_many_episodes_the_last_ones_come_home_and_all_are_counted(parameter_server: Any) -> None:
    learner = make_learner(
        parameter_server,
        env=lambda num_envs: TensorPointMass(num_envs, max_episode_steps=1, device="cpu"),
        env_kwargs={},
    )
    report = learner.update()
    assert len(report.episodes) == 100 and report.num_unlisted == 28 and report.env_steps == 128
    rewards = learner.rollouts._columns["rewards"].reshape(-1)[28:]
    np.testing.assert_allclose([each.episode_return for each in report.episodes], rewards, rtol=1e-5)


def test_observations_are_normalised_as_on_the_host(parameter_server: Any) -> None:
    learner = make_learner(parameter_server, normalize_observations=True)
    before = learner.trainee.weights()
    learner.update()
    for name, array in learner.trainee.weights().items():
        np.testing.assert_array_equal(array, before[name], err_msg="the first round is for the statistics alone")
    obs = learner.rollouts._columns["obs"].reshape(-1, 4)
    expected = RunningMeanVar((4,))
    expected.update(obs.numpy())
    np.testing.assert_allclose(learner._obs_statistics.running.mean, expected.mean, rtol=1e-6)
    np.testing.assert_allclose(learner._obs_statistics.running.var, expected.var, rtol=1e-6)
    assert OBS_MEAN in learner.weights()
    rollout = learner.rollout_of(())
    host = learner._obs_statistics.normalize(rollout.batch.obs.numpy().reshape(-1, 4))
    np.testing.assert_allclose(rollout.obs, host, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("TensorCartPole", {"normalize_observations": True, "env_kwargs": {"device": "cpu", "max_episode_steps": 9}}),
        ("TensorPointMass", {"clip_rewards": True, "env_kwargs": {"device": "cpu", "max_episode_steps": 9}}),
    ],
)
def test_a_resumed_run_goes_on_exactly(env: str, settings: dict[str, Any]) -> None:
    results = assert_resumes(PPO, PPOConfig(**(SMALL | {"env": env} | settings)), before=3, after=2)
    assert results[-1].episodes > 16


def test_without_a_state_of_the_environment_new_episodes_begin() -> None:
    config = PPOConfig(**(SMALL | {"env": ManiSkillLike, "env_kwargs": {}}))
    with PPO(config) as ppo:
        ppo.step()
        state = ppo.get_state()
        assert ppo.not_saved == (
            "the states of the environments (tests.rl.tensor_sims:ManiSkillLike has no get_state): after a resume new "
            "episodes start",
        )
    with PPO(config) as ppo:
        ppo.set_state(state)
        assert ppo.step().metrics["learner/weights_version"] == 2


@pytest.mark.parametrize(
    ("env", "groups", "metric"),
    [
        (IsaacLike, {"actor": ["policy"], "critic": ["critic"]}, "env/Episode_Reward/alive_mean"),
        (ManiSkillLike, {}, "env/success_once_mean"),
    ],
)
def test_the_forms_of_simulators_train_and_tell_their_metrics(env: Any, groups: Any, metric: str) -> None:
    policy = {"hidden_sizes": [16], "obs_groups": groups}
    with PPO(PPOConfig(**(SMALL | {"env": env, "env_kwargs": {}, "policy": policy}))) as ppo:
        assert ppo.samples_in_learner and "rollouts and updates are on cpu" in ppo.notes[0]
        result = ppo.step()
        assert result.metrics[metric] == 0.5 and result.env_steps == 128
        assert {"time/sample_s", "time/update_s", "rollout/sample_s", "time/train_s"} <= result.metrics.keys()
        assert len(ppo.evaluate(2)) == 2
        with pytest.raises(UsageError, match="has no rollout workers"):
            ppo.get_env_attr("num_envs")


def test_rollout_workers_are_announced_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RLPLAT_BACKEND", "inproc")
    for env, words in (("TensorCartPole", ""), ("CartPole-v1", "starting 1 rollout worker")):
        caplog.clear()
        with caplog.at_level(logging.INFO, "rlplat.start"), PPO(PPOConfig(env=env, num_envs_per_worker=2)):
            assert words in caplog.text if words else "rollout worker" not in caplog.text


def test_groups_that_nobody_divided_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), PPO(PPOConfig(**(SMALL | {"env": IsaacLike, "env_kwargs": {}}))):
        pass
    assert "the actor sees the critic's observations, too" in caplog.text


class OwnLearner(PPOLearner):
    pass


class OwnPPO(PPO):
    learner_class = OwnLearner


class OwnStep(PPO):
    def step(self) -> Any:
        return super().step()


@pytest.mark.parametrize(
    ("algorithm", "settings", "why"),
    [
        (PPO, {"normalize_rewards": True}, "normalize_rewards is True"),
        (PPO, {"normalize_value": True}, "normalize_value is True"),
        (PPO, {"exploration_bonus": "rnd"}, "exploration_bonus is rnd"),
        (PPO, {"policy": {"core": "gru", "core_size": 4}}, "policy.core is gru"),
        (PPO, {"learner": {"backend": "numpy"}}, "learner.backend is numpy"),
        (PPO, {"on_env_error": "restart"}, "on_env_error is restart"),
        (OwnPPO, {}, "OwnLearner is a learner of your own"),
        (OwnStep, {}, "OwnStep.step is your own"),
    ],
)
def test_what_the_learner_cannot_do_there_is_done_on_the_host(
    algorithm: Any, settings: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), algorithm(PPOConfig(**(SMALL | settings))) as ppo:
        assert not ppo.samples_in_learner and ppo.step().env_steps == 128
    assert f"warning: tensors of TensorCartPole (cpu) are copied to the host: {why}" in caplog.text


def test_numbers_of_the_infos_need_no_names() -> None:
    with pytest.raises(UsageError, match="they are metrics without being named: omit it"):
        PPO(PPOConfig(**SMALL, env_metrics=["success"]))


class Closing(TensorCartPole):
    closed: ClassVar[list[int]] = []

    def close(self) -> None:
        self.closed.append(self.num_envs)


def test_the_environment_is_closed_at_the_end() -> None:
    with PPO(PPOConfig(**(SMALL | {"env": Closing}))) as ppo:
        Closing.closed.clear()  # where other tests have left threads, what checks the environment closed one here
        ppo.step()
        assert Closing.closed == []
    assert Closing.closed == [16]


class Spoilt(TensorCartPole):
    what = "rewards"

    def step(self, actions: Any) -> Any:
        obs, rewards, *rest = super().step(actions)
        (obs if self.what == "obs" else rewards)[3] = float("nan")
        return obs, rewards, *rest


def test_numbers_that_are_not_finite_end_the_run(parameter_server: Any) -> None:
    learner = make_learner(parameter_server, env=Spoilt)
    with pytest.raises(NonFiniteError, match=r"reward nan from environment 3 \(step 0 of the rollout, action [01]\)"):
        learner.update()
    learner.rollouts._envs.raw.what = "obs"
    with pytest.raises(EnvError, match="NaN or infinity in the observations of a rollout of 8 steps"):
        learner.update()


def test_in_a_process_of_its_own(cluster: Any) -> None:
    with PPO(PPOConfig(**(SMALL | {"num_rollout_workers": 1}))) as ppo:
        assert [ppo.step().env_steps for _ in range(2)] == [128, 256]
        assert len(ppo.evaluate(2)) == 2


@pytest.mark.slow
def test_it_learns_to_balance() -> None:
    config = plan_from_file(
        Path("configs/ppo/TensorCartPole.yaml"),
        [Layer({"seed": 1, "num_rollout_workers": 0, "env_kwargs": {"device": "cpu"}, "stop": {"env_steps": 600_000}})],
    ).config
    with PPO(config) as ppo:
        while (result := ppo.step()).env_steps < config.stop.env_steps:
            if result.episodes >= 100 and (result.episode_return_mean or 0.0) >= 475.0:
                break
        assert result.episode_return_mean is not None and result.episode_return_mean >= 475.0, result
