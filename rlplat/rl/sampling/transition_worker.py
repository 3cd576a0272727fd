"""`TransitionWorker`: the rollout worker of off-policy algorithms; an actor that acts epsilon-greedily."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import rlplat
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.interfaces import Array, Obs, Weights
from rlplat.rl.obs_tree import concat_obs, copy_obs, map_obs, take_obs
from rlplat.rl.policies.make import make_q_policy
from rlplat.rl.policies.q_spec import QSpec
from rlplat.rl.policies.spec import cpu_share, policy_spec
from rlplat.rl.sampling.transition_batch import TransitionBatch
from rlplat.rl.sampling.worker_state import restore_worker, worker_not_saved, worker_state
from rlplat.rl.seeding import seed_sequences

if TYPE_CHECKING:
    from rlplat import ActorHandle


class TransitionWorker:
    """Sends home what it saw, as it is: no n-step returns, no reward clipping; these are the replay's.

    worker = rlplat.remote(TransitionWorker).remote(config.model_dump(), q, 0, 0, parameter_server)
    batch = worker.sample.remote()                      # a ref to a TransitionBatch[T, B]
    """

    def __init__(
        self,
        config: dict[str, Any],
        q: QSpec,
        worker_index: int,
        incarnation: int,
        parameter_server: ActorHandle,
        epsilons: Array | None = None,
    ) -> None:
        """epsilons: float[B], this worker's own; None: the one that comes with the weights."""
        self.worker_index, self.incarnation = worker_index, incarnation
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
        self._policy = make_q_policy(
            policy_spec(config["policy"], self._env.spec),
            q,
            policy_seed,
            framework=config["framework"],
            precision=config["learner"]["precision"],
            num_threads=num_threads,
        )
        if epsilons is not None:
            self._policy.epsilon, self._policy.follows_weights = epsilons, False
        self._continues = False
        self._obs: Obs = self._env.reset()

    def sample(self) -> TransitionBatch:
        """T steps in B environments under the newest weights that the parameter server has."""
        started = perf_counter()
        newer = rlplat.get(self._parameter_server.latest.remote(self._version))
        if newer is not None:
            self.set_weights(*newer)
        weights_s = perf_counter() - started
        batch = self.roll_out()
        batch.timing |= {"weights_s": weights_s, "sample_s": perf_counter() - started}
        return batch

    def set_weights(self, version: int, weights: Weights) -> None:
        """The weights to act with from now on."""
        self._version = version
        self._policy.set_weights(weights)

    def roll_out(self) -> TransitionBatch:
        """T steps in B environments under the weights that are there."""
        assert self._version >= 0, "the learner publishes its first weights before rollout workers sample"
        T, B = self._num_steps, self._env.num_envs
        policy, env, obs = self._policy, self._env, self._obs
        has_core = policy.core_state.shape[1] > 0
        columns: Any = map_obs(lambda leaf: np.empty((T, *leaf.shape), leaf.dtype), obs)
        actions = np.empty((T, B), np.int64)
        rewards, q_taken, q_max = (np.empty((T, B), np.float32) for _ in range(3))
        terminated, truncated, valid = (np.empty((T, B), np.bool_) for _ in range(3))
        core_states: list[Array] = []
        cut_rows: list[Array] = []
        final_obs: list[Obs] = []
        act_s = env_s = 0.0
        before = perf_counter()
        for t in range(T):
            if has_core:
                state = policy.core_state
                core_states.append(state if len(state) == B else np.zeros((B, state.shape[1]), np.float32))
            actions[t], q_taken[t], q_max[t] = policy.choose(obs)
            # Before the step: an environment may write its next observation into the same memory.
            if isinstance(obs, dict):
                for path, leaf in obs.items():
                    columns[path][t] = leaf
            else:
                columns[t] = obs
            between = perf_counter()
            taken = env.step(actions[t])
            obs = taken.obs
            after = perf_counter()
            act_s += between - before
            env_s += after - between
            before = after
            rewards[t], valid[t] = taken.rewards, taken.valid
            terminated[t], truncated[t] = taken.terminated, taken.truncated
            if taken.final_obs is not None:
                cut = np.flatnonzero(taken.truncated)
                cut_rows.append(t * B + cut)
                final_obs.append(copy_obs(take_obs(taken.final_obs, cut)))
            if has_core:
                policy.reset_core(taken.terminated | taken.truncated | ~taken.valid)
        self._obs = obs
        continues, self._continues = self._continues, True
        return TransitionBatch(
            obs=columns,
            actions=actions,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            q_taken=q_taken,
            q_max=q_max,
            cut_rows=np.concatenate(cut_rows) if cut_rows else np.empty(0, np.int64),
            final_obs=concat_obs(final_obs) if final_obs else take_obs(obs, slice(0, 0)),
            core_states=np.stack(core_states) if has_core else np.empty((T, B, 0), np.float32),
            continues=continues,
            episodes=env.pop_episodes(),
            weights_version=self._version,
            worker_index=self.worker_index,
            incarnation=self.incarnation,
            timing={"act_s": act_s, "env_s": env_s},
        )

    def get_state(self) -> dict[str, Any]:
        state = worker_state(self._policy, self._env, deterministic=self._deterministic)
        return state | {"continues": self._continues}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there; environments that were not saved begin new episodes."""
        self._obs, begins_anew = restore_worker(self._policy, self._env, self._obs, state)
        # A gap in the replay, where the next step does not follow the last one.
        self._continues = bool(state["continues"]) and not begins_anew.any()

    def not_saved(self) -> str:
        """What `get_state` leaves out, or the empty string."""
        return worker_not_saved(self._env, deterministic=self._deterministic)

    def close(self) -> None:
        self._env.close()
