"""What only a GPU can show. Skipped, with the reason, where there is none."""

from __future__ import annotations

import pytest

import rlplat
from rlplat.algorithms.ppo import PPO, PPOConfig
from rlplat.runtime.machine.hardware import visible_gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not visible_gpus(), reason="this machine has no GPU (no /dev/nvidia*)"),
]


def test_an_actor_sees_the_gpus_of_its_lease_and_a_task_without_any_sees_none() -> None:
    class Sums:
        def on_gpu(self) -> tuple[int, float]:
            import torch

            return torch.cuda.device_count(), float(torch.ones(3, device="cuda").sum())

    @rlplat.remote
    def count() -> int:
        import torch

        return torch.cuda.device_count()

    rlplat.init()
    try:
        actor = rlplat.remote(Sums).options(num_gpus=1).remote()
        assert rlplat.get(actor.on_gpu.remote(), timeout=90) == (1, 3.0)
        assert rlplat.get(count.remote(), timeout=90) == 0
    finally:
        rlplat.shutdown()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_learner_trains_on_the_gpu_when_there_is_one(precision: str) -> None:
    config = PPOConfig(
        env="Pong",
        num_rollout_workers=1,
        num_envs_per_worker=4,
        rollout_length=16,
        minibatch_size=32,
        policy={"encoder": "nature_cnn", "share_encoder": True},
        learner={"precision": precision},
        seed=1,
    )
    with PPO(config) as ppo:
        assert rlplat.available_resources()["GPU"] == rlplat.cluster_resources()["GPU"] - 1
        results = [ppo.step() for _ in range(2)]
    assert results[-1].metrics["learner/weights_version"] == 2


def test_a_tensor_environment_stays_on_the_gpu() -> None:
    config = PPOConfig(
        env="TensorCartPole", num_envs_per_worker=64, rollout_length=16, minibatch_size=256, seed=1,
        normalize_observations=True,
    )  # fmt: skip
    with PPO(config) as ppo:
        assert "rollouts and updates are on cuda" in ppo.notes[0]
        results = [ppo.step() for _ in range(3)]
        assert results[-1].env_steps == 3 * 1024 and results[-1].metrics["learner/gradient_norm"] > 0.0
        state = ppo.get_state()
    with PPO(config) as ppo:
        ppo.set_state(state)
        assert ppo.step().env_steps == 4 * 1024
        assert len(ppo.evaluate(2)) == 2
