"""PPO on CartPole-v1 as one writes it with Ray alone: rollout workers and a learner as actors, batches as refs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch
from torch import nn

DISCOUNT, GAE_LAMBDA, CLIP = 0.98, 0.8, 0.2


def network() -> tuple[nn.Module, nn.Module]:
    torch.set_num_threads(1)
    actor, critic = (
        nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out)) for out in (2, 1)
    )
    return actor, critic


@ray.remote(num_cpus=1)
class RolloutWorker:
    def __init__(self, num_envs: int, length: int, seed: int) -> None:
        self.envs = gym.vector.SyncVectorEnv(
            [lambda: gym.make("CartPole-v1") for _ in range(num_envs)],
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        )
        self.length, self.actor_critic = length, network()
        self.obs = self.envs.reset(seed=seed)[0]

    def sample(self, weights: list[Any]) -> dict[str, np.ndarray]:
        actor, critic = self.actor_critic
        actor.load_state_dict(weights[0])
        critic.load_state_dict(weights[1])
        rows: dict[str, list[Any]] = {key: [] for key in ("obs", "actions", "log_probs", "values", "rewards", "ends")}
        with torch.no_grad():
            for _ in range(self.length):
                obs = torch.as_tensor(self.obs, dtype=torch.float32)
                choice = torch.distributions.Categorical(logits=actor(obs))
                actions = choice.sample()
                self.obs, rewards, terminated, truncated, _ = self.envs.step(actions.numpy())
                step = (
                    obs,
                    actions,
                    choice.log_prob(actions),
                    critic(obs)[:, 0],
                    rewards,
                    terminated | truncated,
                )
                for key, value in zip(rows, step, strict=True):
                    rows[key].append(np.asarray(value))
            last = critic(torch.as_tensor(self.obs, dtype=torch.float32))[:, 0].numpy()
        batch = {key: np.stack(value) for key, value in rows.items()}
        advantages, running = np.zeros_like(batch["values"]), np.zeros_like(last)
        for index in reversed(range(self.length)):
            goes_on = 1.0 - batch["ends"][index]
            error = batch["rewards"][index] + DISCOUNT * last * goes_on - batch["values"][index]
            running = error + DISCOUNT * GAE_LAMBDA * goes_on * running
            advantages[index], last = running, batch["values"][index]
        batch["advantages"], batch["targets"] = advantages, advantages + batch["values"]
        return {key: value.reshape(-1, *value.shape[2:]) for key, value in batch.items()}


@ray.remote(num_cpus=0, runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}})
class Learner:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.actor_critic = settings, network()
        parameters = [each for net in self.actor_critic for each in net.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=settings["learning_rate"], eps=1e-5)
        self.parameters = parameters

    def weights(self) -> list[Any]:
        return [net.state_dict() for net in self.actor_critic]

    def update(self, *batches: dict[str, np.ndarray]) -> list[Any]:
        batch = {key: torch.as_tensor(np.concatenate([each[key] for each in batches])) for key in batches[0]}
        actor, critic = self.actor_critic
        for _ in range(self.settings["num_epochs"]):
            for rows in torch.randperm(len(batch["obs"])).split(self.settings["minibatch_size"]):
                obs, advantages = batch["obs"][rows], batch["advantages"][rows].float()
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
                log_probs = torch.distributions.Categorical(logits=actor(obs)).log_prob(batch["actions"][rows])
                ratio = (log_probs - batch["log_probs"][rows]).exp()
                clipped = ratio.clamp(1.0 - CLIP, 1.0 + CLIP)
                policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
                value_loss = (critic(obs)[:, 0] - batch["targets"][rows].float()).pow(2).mean()
                self.optimizer.zero_grad()
                (policy_loss + 0.5 * 0.5 * value_loss).backward()
                nn.utils.clip_grad_norm_(self.parameters, 0.5)
                self.optimizer.step()
        return self.weights()


class RayPPO:
    def __init__(self, settings: dict[str, Any]) -> None:
        envs, length = settings["num_envs_per_worker"], settings["rollout_length"]
        self.learner = Learner.remote(settings)
        self.workers = [RolloutWorker.remote(envs, length, seed) for seed in range(settings["num_rollout_workers"])]
        self.weights = self.learner.weights.remote()
        self.env_steps, self.round = 0, envs * length * len(self.workers)

    def step(self) -> int:
        """One round; the env steps so far."""
        batches = [worker.sample.remote(self.weights) for worker in self.workers]
        self.weights = self.learner.update.remote(*batches)
        ray.wait([self.weights], fetch_local=False)
        self.env_steps += self.round
        return self.env_steps
