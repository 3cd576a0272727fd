"""`RolloutWorker`: an actor that steps environments with the newest weights and sends home what it saw, as it is."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import rlplat
from rlplat.rl.envs import make_vector_env
from rlplat.rl.interfaces import Array
from rlplat.rl.policy_spec import cpu_share, make_policy, policy_spec
from rlplat.rl.sample_batch import SampleBatch
from rlplat.rl.seeding import seed_sequences

if TYPE_CHECKING:
    from rlplat import ActorHandle


class RolloutWorker:
    """Stays dumb on purpose: no advantages, no reward scaling, no statistics; these are the learner's.

    worker = rlplat.remote(RolloutWorker).remote(config.model_dump(), 0, 0, parameter_server)
    batch = worker.sample.remote()                      # a ref to a SampleBatch[T, B]
    """

    def __init__(
        self, config: dict[str, Any], worker_index: int, incarnation: int, parameter_server: ActorHandle
    ) -> None:
        self.worker_index = worker_index
        self.incarnation = incarnation
        self._num_steps: int = config["rollout_length"]
        self._parameter_server = parameter_server
        self._version = -1
        policy_seed, env_seed = seed_sequences(config["seed"], "rollout", worker_index, incarnation)
        num_threads = cpu_share(config["num_rollout_workers"])
        self._env = make_vector_env(
            config["env"],
            config["num_envs_per_worker"],
            seed=env_seed,
            env_kwargs=config["env_kwargs"],
            num_threads=num_threads,
        )
        spec = policy_spec(config["policy"], self._env.spec)
        precision = config["learner"]["precision"]
        self._policy = make_policy(spec, policy_seed, precision=precision, num_threads=num_threads)
        self._obs: Array = self._env.reset()

    def sample(self) -> SampleBatch:
        """T steps in B environments under the newest weights that the parameter server has."""
        started = perf_counter()
        self._pull_weights()
        act, step = self._policy.act, self._env.step
        obs = self._obs
        batch: SampleBatch | None = None
        cut_rows: list[
            tuple[int, Array, Array]
        ] = []  # (t, indices of cut-off environments, their last observations)
        act_s = env_s = 0.0
        before = perf_counter()
        weights_s = before - started
        for t in range(self._num_steps):
            actions, log_probs, values = act(obs)
            between = perf_counter()
            if batch is None:
                batch = SampleBatch.empty(
                    self._num_steps,
                    obs,
                    actions,
                    weights_version=self._version,
                    worker_index=self.worker_index,
                    incarnation=self.incarnation,
                )
            # Before the step: an environment may write its next observation into the same memory.
            batch.obs[t] = obs
            taken = step(actions)
            obs = taken.obs
            after = perf_counter()
            act_s += between - before
            env_s += after - between
            before = after
            batch.actions[t] = actions
            batch.log_probs[t] = log_probs
            batch.values[t] = values
            batch.rewards[t] = taken.rewards
            batch.terminated[t] = taken.terminated
            batch.truncated[t] = taken.truncated
            batch.valid[t] = taken.valid
            if taken.final_obs is not None and taken.truncated.any():
                cut = np.flatnonzero(taken.truncated)
                cut_rows.append((t, cut, taken.final_obs[cut]))
        assert batch is not None
        batch.next_values[:-1] = batch.values[1:]
        batch.next_values[-1] = self._policy.values(obs)
        if cut_rows:
            last_values = self._policy.values(np.concatenate([last_obs for _, _, last_obs in cut_rows]))
            start = 0
            for t, cut, _ in cut_rows:
                batch.next_values[t, cut] = last_values[start : start + len(cut)]
                start += len(cut)
        self._obs = obs
        batch.episodes = self._env.pop_episodes()
        batch.timing = {
            "act_s": act_s,
            "env_s": env_s,
            "weights_s": weights_s,
            "sample_s": perf_counter() - started,
        }
        return batch

    def get_state(self) -> dict[str, Any]:
        """The random generator's state. Environments are not in it: a resumed run starts new episodes."""
        return {"policy": self._policy.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._policy.set_state(state["policy"])

    def close(self) -> None:
        self._env.close()

    def _pull_weights(self) -> None:
        newer = rlplat.get(self._parameter_server.latest.remote(self._version))
        if newer is not None:
            self._version, weights = newer
            self._policy.set_weights(weights)
        assert self._version >= 0, "the learner publishes its first weights before rollout workers sample"
