"""`RolloutWorker`: an actor that steps environments with the newest weights and sends home what it saw, unchanged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from rlplat.errors import UsageError
from rlplat.rl.envs.copies import Copies
from rlplat.rl.envs.guard import Ask
from rlplat.rl.envs.make import VectorEnv, make_vector_env
from rlplat.rl.envs.statistics import Statistics
from rlplat.rl.envs.watchdog import Limits
from rlplat.rl.interfaces import Array, Obs, Policy, Weights
from rlplat.rl.obs_tree import copy_obs
from rlplat.rl.policies.make import policy_for
from rlplat.rl.policies.spec import cpu_share
from rlplat.rl.sampling.freed_memory import keep_freed_memory
from rlplat.rl.sampling.recorders import Record, has_core, make_recorder, values_in_columns
from rlplat.rl.sampling.simulator_rollouts import SimulatorRollouts, act_by_themselves
from rlplat.rl.seeding import seed_process, seed_sequences
from rlplat.rl.spaces import SpaceSpec


class EnvWorker:
    """An actor with environments of its own, of which the driver may ask something."""

    _env: VectorEnv | SimulatorRollouts

    @property
    def spaces(self) -> SpaceSpec:
        return self._env.spec

    @staticmethod
    def make_envs(config: dict[str, Any], worker_index: int, num_envs: int, **more: Any) -> VectorEnv:
        """more: of `make_vector_env`."""
        return make_vector_env(
            config["env"],
            num_envs,
            env_kwargs=config["env_kwargs"],
            num_threads=cpu_share(config["num_rollout_workers"]),
            vectorization=config["vectorization"],
            env_metrics=config.get("env_metrics", ()),
            copies=Copies.of(config, "rollout", worker_index),
            **Limits.of(config).arguments(),
            **more,
        )

    def ask_envs(self, what: Ask, name: str, *arguments: Any, **keywords: Any) -> list[Any]:
        """Of every environment: `VectorEnv.ask`."""
        if isinstance(self._env, VectorEnv):
            return self._env.ask(what, name, *arguments, **keywords)
        raise UsageError("simulators that act by themselves have no attributes here: tell them over a channel of yours")

    def env_statistics(self) -> Statistics:
        """Those that the environments keep between episodes, merged."""
        return self._env.statistics() if isinstance(self._env, VectorEnv) else {}

    def take_env_statistics(self, statistics: Statistics, num_workers: int) -> None:
        """In the place of the environments' own; num_workers: that get the same."""
        if isinstance(self._env, VectorEnv):
            self._env.take_statistics(statistics, num_copies=num_workers * self._env.num_envs)

    def close(self) -> None:
        self._env.close()


class RolloutWorker(EnvWorker):
    """No advantages, n-step returns, reward scaling or statistics: these belong to the learner and the replay.

    worker = rlplat.remote(RolloutWorker).remote(config.model_dump(), 0, 0)
    batch = worker.sample.remote(parameter_server.latest.remote())      # a ref to a SampleBatch[T, B]
    """

    def __init__(
        self,
        config: dict[str, Any],
        worker_index: int,
        incarnation: int,
        make_policy: Callable[..., Policy] = policy_for,
        *,
        record: Record = "samples",
    ) -> None:
        """make_policy(config, spaces, seed, num_threads=N): how it acts and explores; record: as what batches."""
        keep_freed_memory()
        self.worker_index = worker_index
        self.incarnation = incarnation
        self._num_steps: int = config["rollout_length"]
        self._version = -1
        self._deterministic: bool = config["deterministic"]
        policy_seed, env_seed = seed_sequences(config["seed"], "rollout", worker_index, incarnation)
        seed_process(config["seed"], "rollout", worker_index, incarnation)
        num_threads = cpu_share(config["num_rollout_workers"])
        if act_by_themselves(config):
            self._env = SimulatorRollouts(config, env_seed, ahead=self._ahead(config, record))
        else:
            self._env = self.make_envs(
                config,
                worker_index,
                config["num_envs_per_worker"],
                seed=env_seed,
                keep_state=config["deterministic"],
                seeds_each=bool(config.get("random_start_steps")),
            )
        # In one process the learner's number, if one was set, holds for acting too: torch has one for both.
        of_learner = 0 if config["num_rollout_workers"] else config["learner"]["num_threads"]
        self._policy = make_policy(config, self._env.spec, policy_seed, num_threads=of_learner or num_threads)
        self._has_core = has_core(config["policy"])
        self._obs: Obs = self._env.reset()
        if most := config.get("random_start_steps"):
            if not isinstance(self._env, VectorEnv):
                raise UsageError("random_start_steps: simulators that act by themselves begin where they begin")
            self._obs = self._env.wander(most, int(env_seed.generate_state(1)[0]))
        self._keeps_ends = record == "samples_and_ends"
        self._is_within = False
        """A fragment has begun and has not ended: an error or Ctrl-C came out of it."""
        self._recorder = make_recorder(
            record,
            self._num_steps,
            self._obs,
            self._env.spec.action,
            self._policy.core_state.shape[1],
            values_of=self._values_of,
            values_at_once=self._has_core,
        )

    @staticmethod
    def _ahead(config: dict[str, Any], record: Record) -> int:
        """1 where what older weights did is learnt from as well: by off-policy algorithms, with V-trace, or where PPO's
        rounds overlap."""
        takes_older = record == "transitions" or "max_staleness" in config or config.get("overlap_sampling") is True
        return int(takes_older and not config["deterministic"])

    def sample(self, latest: tuple[int, Weights]) -> Any:
        """T steps in B environments under these (version, weights): a batch."""
        started = perf_counter()
        assert latest is not None, "the learner publishes its first weights before rollout workers sample"
        if latest[0] != self._version:
            self.set_weights(*latest)
        weights_s = perf_counter() - started
        batch = self.roll_out()
        batch.timing |= {"weights_s": weights_s, "sample_s": perf_counter() - started}
        return batch

    def set_weights(self, version: int, weights: Weights) -> None:
        """The weights to act with from now on."""
        self._version = version
        self._policy.set_weights(weights)
        if isinstance(self._env, SimulatorRollouts):
            self._env.offer(version, weights, self._policy)

    def roll_out(self) -> Any:
        """T steps in B environments under the weights that are there: a batch."""
        assert self._version >= 0, "the learner publishes its first weights before rollout workers sample"
        if self._is_within:
            self._begin_anew()
        self._is_within = True
        if isinstance(self._env, SimulatorRollouts):
            self._obs, timing = self._env.play(self._recorder, self._policy)
            version = self._env.version
        else:
            timing, version = self._step_envs(self._env), self._version
        last_obs = {"last_obs": copy_obs(self._obs)} if self._keeps_ends else {}
        batch = self._recorder.finish(
            lambda batch: (self._num_steps - 1, self._policy.values(self._obs)),
            weights_version=version,
            worker_index=self.worker_index,
            incarnation=self.incarnation,
            episodes=self._env.pop_episodes(),
            timing=timing,
            **last_obs,
        )
        self._is_within = False
        return batch

    def _begin_anew(self) -> None:
        """After a fragment that was broken off: some environments have stepped and some have not."""
        self._recorder.drop()
        if isinstance(self._env, VectorEnv):
            self._obs = self._env.reset()
            self._policy.reset_core(np.ones(self._env.num_envs, np.bool_))

    def _step_envs(self, env: VectorEnv) -> dict[str, float]:
        """T steps into the recorder: seconds by activity."""
        policy, recorder, obs = self._policy, self._recorder, self._obs
        act, decided, step, answered = policy.act, recorder.decided, env.step, recorder.answered
        core_state: Array | None = None
        act_s = env_s = 0.0
        before = perf_counter()
        for t in range(self._num_steps):
            if self._has_core:
                core_state = self._core_state() if t == 0 or recorder.needs_every_core else None
            output = act(obs)
            between = perf_counter()
            decided(t, obs, output, core_state)
            taken = step(output.actions)
            obs = taken.obs
            after = perf_counter()
            act_s += between - before
            env_s += after - between
            before = after
            answered(t, taken.rewards, taken.terminated, taken.truncated, taken.valid, taken.final_obs)
            if self._has_core:
                policy.reset_core(taken.forgets)
                if taken.forced is not None:
                    recorder.forced(t, taken.forced)
        self._obs = obs
        return {"act_s": act_s, "env_s": env_s}

    def get_state(self) -> dict[str, Any]:
        """`env` is None where the environments cannot be saved, or need not be (`not_saved`)."""
        env = self._env
        saved = None
        if isinstance(env, VectorEnv) and self._deterministic and not env.not_saved:
            saved = env.get_state()
        return {
            "policy": self._policy.get_state(),
            "env": saved,
            "continues": self._recorder.continues and not self._is_within,
            "number": self._recorder.number,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from there; environments that were not saved begin new episodes."""
        self._policy.set_state(state["policy"])
        begins_anew = np.ones(self._env.num_envs, np.bool_)
        if state["env"] is not None and isinstance(self._env, VectorEnv):
            self._obs = self._env.set_state(state["env"])
            for reason in self._env.not_restored.values():
                print(f"warning: {reason}; a new episode begins there", file=sys.stderr)
            begins_anew[:] = [b in self._env.not_restored for b in range(self._env.num_envs)]
        self._policy.reset_core(begins_anew)
        # Where an episode begins, the next row does not follow the last one.
        self._recorder.continues = bool(state.get("continues")) and not begins_anew.any()
        self._recorder.number = state.get("number", 0)

    def not_saved(self) -> str:
        """What `get_state` leaves out, or the empty string."""
        if not self._deterministic:
            return "the states of the environments (deterministic: true saves them): after a resume new episodes start"
        return self._env.not_saved

    def _core_state(self) -> Array:
        """float32[B, S]. Rows appear with the first `act`; before it, all of them begin an episode."""
        state = self._policy.core_state
        num_envs = self._env.num_envs
        return state if len(state) == num_envs else np.zeros((num_envs, state.shape[1]), np.float32)

    def _values_of(self, columns: Array, obs: Obs) -> Array:
        if self._has_core:
            return values_in_columns(self._policy, self._obs, columns, obs)
        return self._policy.values(obs)
