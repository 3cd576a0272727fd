"""`JointRollouts`: the rollout workers of all seeds step and act in one pass over arrays.

    joint = JointRollouts(seats)                # of S workers with B environments each
    joint.roll_out(latest)                      # a round: every seat has the batch that it would have sampled alone

A step of eight small environments and a policy for eight rows are all overhead: those of 32 seeds side by side, as
arrays [S * B], cost little more than those of one. The state of a worker is in its own objects before and after a
round; in between it is here. Every seat's random numbers come from its own generators in the order in which it alone
would draw them, and its products of matrices are those that it alone would make: numpy's of [S, B, in] and
[S, in, out] are S products of the same shapes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from rlplat.rl.envs.make import VectorEnv
from rlplat.rl.envs.watchdog import NO_LIMITS
from rlplat.rl.interfaces import Array, Episode, Obs, Weights
from rlplat.rl.policies.numpy_policies import JointActorCritic, NumpyActorCritic
from rlplat.rl.sampling.recorders import make_recorder
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.sampling.sample_batch import COLUMNS, SampleBatch
from rlplat.rl.seeding import Generators

FIELDS = {
    "CartPoleVectorEnv": {"state": 1, "steps": 0, "prev_done": 0},
    "ClassicVectorEnv": {"_state": 1, "_steps": 0},
}
"""Of vector environments in plain numpy, what they remember of their copies, by the axis of these."""


def can_join(env: VectorEnv) -> bool:
    return _kind(env) in FIELDS


def _raw(env: VectorEnv) -> Any:
    return getattr(env._raw, "unwrapped", env._raw)


def _kind(env: VectorEnv) -> str:
    return type(_raw(env)).__name__


class Seat(RolloutWorker):
    """An actor as any rollout worker, with environments, a policy and generators of its own; it lives in this process,
    where `JointRollouts` steps it."""

    _numbers = count()
    _all: WeakValueDictionary[int, Seat] = WeakValueDictionary()

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._number = next(self._numbers)
        self._all[self._number] = self
        self.given: SampleBatch | None = None

    @staticmethod
    def make_envs(config: dict[str, Any], worker_index: int, num_envs: int, **more: Any) -> VectorEnv:
        return RolloutWorker.make_envs({**config, "vectorization": "native"}, worker_index, num_envs, **more)

    def number(self) -> int:
        """What `numbered` finds this object by."""
        return self._number

    @classmethod
    def numbered(cls, number: int) -> Seat:
        return cls._all[number]

    def sample(self, latest: tuple[int, Weights]) -> SampleBatch:
        """What `JointRollouts` has sampled for it, with these weights."""
        batch, self.given = self.given, None
        assert batch is not None and batch.weights_version == latest[0], "JointRollouts.roll_out comes first"
        return batch


class JointRollouts(RolloutWorker):
    """Of these seats, which are alike but for their generators and weights."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self.seats, first = seats, seats[0]
        self.worker_index = self.incarnation = self._version = 0
        self._num_steps, self._has_core, self._keeps_ends, self._is_within = first._num_steps, False, False, False
        self._num_envs = first._env.num_envs
        self._env = self._envs = JointEnv([seat._env for seat in seats if isinstance(seat._env, VectorEnv)])
        self._policy: Any
        self._policy = self._policies = JointActorCritic([_policy(seat) for seat in seats])
        self._obs = np.concatenate([_array(seat._obs) for seat in seats])
        self._recorder = make_recorder(
            "samples",
            self._num_steps,
            self._obs,
            self._env.spec.action,
            0,
            values_of=self._values_of,
            values_at_once=False,
        )

    def roll_out_all(self, latest: Sequence[tuple[int, Weights]]) -> None:
        """latest: (version, weights) of every seat."""
        for seat, newest in zip(self.seats, latest, strict=True):
            seat.set_weights(*newest)
        self._policies.gather(self._num_envs)
        self._envs.gather()
        whole = self.roll_out()
        self._envs.scatter(self._num_steps)
        share = {name: seconds / len(self.seats) for name, seconds in whole.timing.items()}
        timing = {**share, "weights_s": 0.0, "sample_s": sum(share.values())}
        for index, seat in enumerate(self.seats):
            mine = slice(index * self._num_envs, (index + 1) * self._num_envs)
            columns = {name: np.ascontiguousarray(getattr(whole, name)[:, mine]) for name in COLUMNS}
            seat._obs = _array(self._obs)[mine].copy()
            seat.given = SampleBatch(
                **columns,
                episodes=self._envs.episodes[index],
                weights_version=seat._version,
                worker_index=seat.worker_index,
                incarnation=seat.incarnation,
                timing=dict(timing),
            )

    def _values_of(self, columns: Array, obs: Obs) -> Array:
        """By the policy of each."""
        values, owners = np.empty(len(columns), np.float32), columns // self._num_envs
        for index in np.unique(owners):
            values[owners == index] = _policy(self.seats[index]).values(_array(obs)[owners == index])
        return values


class JointEnv(VectorEnv):
    """The environments of S native vector environments, in their order."""

    def __init__(self, envs: Sequence[VectorEnv]) -> None:
        self._each, self._raws = envs, [_raw(env) for env in envs]
        self._axes = FIELDS[_kind(envs[0])]
        raw = copy.copy(self._raws[0])  # the same constants
        raw.num_envs = sum(env.num_envs for env in envs)
        if hasattr(raw, "_generators"):  # a generator for each copy
            raw._generators = [generator for each in self._raws for generator in each._generators]
            raw.next_seeds = [None] * raw.num_envs
        else:
            raw.action_space = AnyAction()
            raw.np_random = Generators([each.np_random for each in self._raws], lambda: raw.prev_done)
        super().__init__(raw, envs[0].name, limits=NO_LIMITS)
        self.episodes: list[list[Episode]] = []
        """Of the last round, by environment of `envs`."""

    def gather(self) -> None:
        """Where all are now."""
        for name, axis in self._axes.items():
            setattr(self._raw, name, np.concatenate([getattr(raw, name) for raw in self._raws], axis))
        self._num_steps, self.episodes = 0, [[] for _ in self._each]
        self._returns = np.concatenate([env._returns for env in self._each])
        self._episode_start = np.concatenate([env._episode_start - env._num_steps for env in self._each])
        self._resetting = None
        if any(env._resetting is not None for env in self._each):
            none = np.zeros(self.num_envs // len(self._each), np.bool_)
            self._resetting = np.concatenate([none if e._resetting is None else e._resetting for e in self._each])

    def scatter(self, num_steps: int) -> None:
        """Where they are after so many steps, to each its own."""
        count = len(self._each)
        for name, axis in self._axes.items():
            for raw, part in zip(self._raws, np.split(getattr(self._raw, name), count, axis), strict=True):
                setattr(raw, name, part.copy())
        for index, env in enumerate(self._each):
            mine = slice(index * env.num_envs, (index + 1) * env.num_envs)
            env._returns = self._returns[mine].copy()
            env._episode_start = self._episode_start[mine] + env._num_steps
            env._num_steps += num_steps
            env._resetting = None if self._resetting is None else self._resetting[mine].copy()

    def _count_episodes(self, done: Array, info: dict[str, Any]) -> None:
        super()._count_episodes(done, info)
        for column, episode in zip(np.flatnonzero(done), self.pop_episodes(), strict=True):
            self.episodes[column * len(self._each) // self.num_envs].append(episode)


class AnyAction:
    """In the place of a space: what our policies do is legal, and gymnasium's check takes as long as its step."""

    def contains(self, actions: Array) -> bool:
        return True


def _policy(seat: Seat) -> NumpyActorCritic:
    assert isinstance(seat._policy, NumpyActorCritic)
    return seat._policy


def _array(obs: Obs) -> Array:
    assert isinstance(obs, np.ndarray)
    return obs
