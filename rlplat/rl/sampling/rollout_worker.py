"""`RolloutWorker`: an actor that steps environments with the newest weights and sends home what it saw, as it is."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import rlplat
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.interfaces import Array, Obs, Weights
from rlplat.rl.obs_tree import concat_obs, take_obs
from rlplat.rl.policies.make import make_policy
from rlplat.rl.policies.spec import cpu_share, policy_spec
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.sampling.worker_state import restore_worker, worker_not_saved, worker_state
from rlplat.rl.seeding import seed_sequences

if TYPE_CHECKING:
    from rlplat import ActorHandle


class RolloutWorker:
    """Stays dumb on purpose: no advantages, no reward scaling, no statistics; these are the learner's.

    worker = rlplat.remote(RolloutWorker).remote(config.model_dump(), 0, 0, parameter_server)
    batch = worker.sample.remote()                      # a ref to a SampleBatch[T, B]
    """

    def __init__(
        self,
        config: dict[str, Any],
        worker_index: int,
        incarnation: int,
        parameter_server: ActorHandle | None,
    ) -> None:
        """parameter_server: where `sample` gets its weights from; None: they come by `set_weights`."""
        self.worker_index = worker_index
        self.incarnation = incarnation
        self._num_steps: int = config["rollout_length"]
        self._parameter_server = parameter_server
        self._version = -1
        self._deterministic: bool = config["deterministic"]
        policy_seed, env_seed = seed_sequences(config["seed"], "rollout", worker_index, incarnation)
        num_threads = cpu_share(config["num_rollout_workers"])
        self._env = make_vector_env(
            config["env"],
            config["num_envs_per_worker"],
            seed=env_seed,
            env_kwargs=config["env_kwargs"],
            num_threads=num_threads,
            keep_state=config["deterministic"],
        )
        spec = policy_spec(config["policy"], self._env.spec)
        precision = config["learner"]["precision"]
        self._policy = make_policy(
            spec, policy_seed, framework=config["framework"], precision=precision, num_threads=num_threads
        )
        self._has_core = spec.core != "none" or bool(spec.custom)
        self._obs: Obs = self._env.reset()

    def sample(self) -> SampleBatch:
        """T steps in B environments under the newest weights that the parameter server has."""
        started = perf_counter()
        self._pull_weights()
        weights_s = perf_counter() - started
        batch = self.roll_out()
        batch.timing |= {"weights_s": weights_s, "sample_s": perf_counter() - started}
        return batch

    def set_weights(self, version: int, weights: Weights) -> None:
        """The weights to act with from now on."""
        self._version = version
        self._policy.set_weights(weights)

    def roll_out(self) -> SampleBatch:
        """T steps in B environments under the weights that are there."""
        assert self._version >= 0, "the learner publishes its first weights before rollout workers sample"
        act, step = self._policy.act, self._env.step
        obs = self._obs
        batch: SampleBatch | None = None
        # (t, indices of cut-off environments, their last observations)
        cut_rows: list[tuple[int, Array, Obs]] = []
        cut_values: list[Array] = []
        core_state = self._policy.core_state
        act_s = env_s = 0.0
        before = perf_counter()
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
                if self._has_core:
                    # Rows appear with the first `act`; before it, all of them begin an episode.
                    begun = np.zeros_like(self._policy.core_state)
                    batch.core_state = core_state if core_state.shape == begun.shape else begun
            # Before the step: an environment may write its next observation into the same memory.
            batch.put_obs(t, obs)
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
                cut_rows.append((t, cut, take_obs(taken.final_obs, cut)))
                if self._has_core:  # a core's state is that of now; else all are valued at once in the end
                    cut_values.append(self._policy.values(taken.final_obs)[cut])
            if self._has_core:
                self._policy.reset_core(taken.terminated | taken.truncated | ~taken.valid)
        assert batch is not None
        batch.next_values[:-1] = batch.values[1:]
        batch.next_values[-1] = self._policy.values(obs)
        if cut_rows:
            last_values = (
                np.concatenate(cut_values)
                if cut_values
                else self._policy.values(concat_obs([last_obs for _, _, last_obs in cut_rows]))
            )
            start = 0
            for t, cut, _ in cut_rows:
                batch.next_values[t, cut] = last_values[start : start + len(cut)]
                start += len(cut)
        self._obs = obs
        batch.episodes = self._env.pop_episodes()
        batch.timing = {"act_s": act_s, "env_s": env_s}
        return batch

    def get_state(self) -> dict[str, Any]:
        return worker_state(self._policy, self._env, deterministic=self._deterministic)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there; environments that were not saved begin new episodes."""
        self._obs, _ = restore_worker(self._policy, self._env, self._obs, state)

    def not_saved(self) -> str:
        """What `get_state` leaves out, or the empty string."""
        return worker_not_saved(self._env, deterministic=self._deterministic)

    def close(self) -> None:
        self._env.close()

    def _pull_weights(self) -> None:
        assert self._parameter_server is not None, "without a parameter server, weights come by set_weights"
        newer = rlplat.get(self._parameter_server.latest.remote(self._version))
        if newer is not None:
            self.set_weights(*newer)
