"""`TensorRollouts`: rollouts in a tensor environment, by the network that learns, on its device.

rollouts = TensorRollouts(config, spec, trainee.device)
rollout = rollouts.roll_out(trainee.network, version, statistics.weights())     # a `TensorRollout`: nothing was copied

Of a round the host reads once: the numbers of the last episodes, how many ended, and whether anything was not finite.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from rlplat.errors import EnvError, NonFiniteError, UsageError
from rlplat.rl.envs.copies import Copies
from rlplat.rl.envs.make import make_single_env, other_number
from rlplat.rl.envs.names import resolve_env
from rlplat.rl.envs.tensors.env import TensorEnvs
from rlplat.rl.interfaces import Episode, Weights
from rlplat.rl.normalization import CLIP, EPSILON, OBS_MEAN, OBS_VAR, ObsStatistics, vector_leaves
from rlplat.rl.obs_tree import map_obs, put_obs, take_obs
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.sampling.rollout import Rollout, Rows
from rlplat.rl.sampling.sample_batch import COLUMNS, SampleBatch
from rlplat.rl.sampling.tally import WINDOW
from rlplat.rl.saved import restored, state_of
from rlplat.rl.seeding import number_of, seed_sequences
from rlplat.rl.spaces import ObsSpec, obs_leaves

ROWS_AT_ONCE = 1 << 16
"""Last observations that are valued in one pass."""
_NO_ROWS = np.zeros((0, 0), np.bool_)


@dataclass(slots=True, kw_only=True)
class TensorBatch(SampleBatch):
    """The same columns as tensors on the device. All rows count: `valid` is empty."""

    @property
    def env_steps(self) -> int:
        num_steps, num_envs = self.shape
        return num_steps * num_envs

    def check_valid(self) -> None:
        """`TensorEnvs` has checked what is in them."""


@dataclass(slots=True)
class TensorRollout(Rollout):
    """The same for a `TensorBatch`: advantages and returns are tensors, too."""

    generator: torch.Generator | None = None

    @property
    def steps(self) -> dict[str, Any]:
        names = ("values", "next_values", "terminated", "truncated")
        return {"rewards": self.rewards} | {name: getattr(self.batch, name) for name in names}

    def minibatches(
        self, size: int, rng: np.random.Generator, *, normalize: bool = False, learner: int = 0, num_learners: int = 1
    ) -> Iterator[Rows]:
        """rng: is on the host; the order is drawn on the device."""
        num_rows = self.batch.env_steps
        order = torch.randperm(num_rows, generator=self.generator, device=self.batch.values.device)
        rows: Any
        for rows in order.tensor_split(max(1, round(num_rows / size))):
            moments = self._moments(rows) if normalize and len(rows) > 1 else (0.0, 1.0)
            yield Rows(rows, None, 1.0, *moments)

    def explained_variance(self) -> float:
        returns, values = self.returns, self.batch.values
        variances = torch.stack([returns.var(correction=0), (returns - values).var(correction=0)])
        total, rest = variances.tolist()
        return float("nan") if total == 0.0 else 1.0 - rest / total

    def measure(self, statistics: ObsStatistics) -> None:
        if statistics.running is None:
            return
        obs: Any = self.batch.flat_obs()
        leaves = obs.values() if isinstance(obs, dict) else [obs]  # checked to be vectors
        rows = torch.cat([leaf.reshape(len(leaf), -1) for leaf in leaves], dim=1).double()
        mean, var = torch.stack([rows.mean(0), rows.var(0, correction=0)]).numpy(force=True)
        shape = statistics.running.mean.shape
        statistics.running.merge(mean.reshape(shape), var.reshape(shape), len(rows))

    @property
    def inputs(self) -> dict[str, Any]:
        """On the host: something in them is not finite."""
        columns = {"obs": self.obs, **self.columns}
        return {name: map_obs(lambda leaf: leaf.numpy(force=True), column) for name, column in columns.items()}

    def _moments(self, rows: Any) -> tuple[Any, Any]:
        deviation, mean = torch.std_mean(self.advantages.reshape(-1)[rows])
        return mean, 1.0 / (deviation + 1e-8)


class TensorRollouts:
    """T steps of B copies at a time; their memory is written again in the next round."""

    def __init__(self, config: Any, spec: PolicySpec, network: nn.Module, device: torch.device) -> None:
        """config: of an on-policy algorithm."""
        self._config, self._spec = config, spec
        if getattr(network, "state_size", 0):
            raise UsageError(
                f"{type(network).__name__} has a state of {network.state_size} numbers, which is not for tensor "
                "environments on their device: set num_rollout_workers=2, whose copies are on the host"
            )
        copies = Copies.of(config.model_dump(), "rollout", 0)
        self._envs: TensorEnvs = make_tensor_envs(config.env, config.num_envs_per_worker, config.env_kwargs, copies)
        if self._envs.device.type != device.type:
            raise UsageError(
                f"{self._envs.name} is on {self._envs.device}, and the learner on {device}: give both the same device"
            )
        self._device = self._envs.device
        self._generator = torch.Generator(self._device)
        self._incarnation = 0
        self._generator.manual_seed(number_of(self._seeds()[0]))
        self._told_unknown = False
        self._obs: Any = None
        """[B, ...] to act on next."""
        self._begin()
        T, B = config.rollout_length, self._envs.num_envs
        self._columns: dict[str, Any] = {
            name: torch.zeros(T, B, device=self._device)
            for name in ("log_probs", "values", "next_values", "rewards", "episode_returns", "episode_lengths")
        } | {name: torch.zeros(T, B, dtype=torch.bool, device=self._device) for name in ("terminated", "truncated")}
        self._columns["obs"] = map_obs(lambda leaf: leaf.new_zeros(T, *leaf.shape), self._obs)

    @property
    def not_saved(self) -> str:
        """What `get_state` leaves out, or the empty string."""
        if self._envs.keeps_state:
            return ""
        return f"the states of the environments ({self._envs.name} has no get_state): after a resume new episodes start"

    def roll_out(self, network: nn.Module, version: int, statistics: Weights) -> TensorRollout:
        """statistics: of observations, with which the network is given them; empty where it takes them as they are."""
        started = perf_counter()
        normalize = TensorNormalizer(self._spec.obs, statistics, self._device)
        network.eval()  # dropout is for learning
        with torch.no_grad():
            known, means = self._step(network, normalize)
            num_unknown = self._value_successors(network, normalize, known)
            episodes, num_ended, unknown, told = self._read(num_unknown, means)
        network.train()
        if unknown and not self._told_unknown:
            self._told_unknown = True
            print(
                f"note: {self._envs.name} gives no last observation of episodes that were cut off: they are "
                "bootstrapped from the one before",
                file=sys.stderr,
            )
        columns = self._columns
        batch = TensorBatch(
            **{name: columns[name] for name in COLUMNS if name != "valid"},
            valid=_NO_ROWS,
            episodes=episodes,
            weights_version=version,
            timing={"sample_s": perf_counter() - started},
        )
        return TensorRollout(
            batch,
            columns["rewards"].sign() if self._config.clip_rewards else columns["rewards"],
            normalize(batch.flat_obs()),
            num_unlisted=num_ended - len(episodes),
            told=told,
            generator=self._generator,
        )

    def get_state(self) -> dict[str, Any]:
        own = {"generator": state_of(self._generator), "incarnation": self._incarnation, "env": None}
        if self._envs.keeps_state:
            running = {"returns": self._returns, "lengths": self._lengths}
            own |= {name: each.numpy(force=True).copy() for name, each in running.items()}
            own["env"] = self._envs.get_state()
        return {"rollouts": own}

    def set_state(self, state: dict[str, Any]) -> None:
        """state: of a learner; without rollouts in it, or without the environment's, new episodes begin."""
        own = state.get("rollouts")
        if own is None:
            return
        restored(self._generator, own["generator"])
        self._incarnation = int(own["incarnation"]) + (own["env"] is None)
        if own["env"] is None:
            self._begin()
            return
        self._obs = self._envs.set_state(own["env"])
        self._returns, self._lengths = (
            torch.from_numpy(np.array(own[name])).to(self._device) for name in ("returns", "lengths")
        )

    def close(self) -> None:
        self._envs.close()

    def _seeds(self) -> list[np.random.SeedSequence]:
        return seed_sequences(self._config.seed, "rollout", 0, self._incarnation)

    def _begin(self) -> None:
        self._obs = self._envs.reset(self._seeds()[1])
        self._returns, self._lengths = torch.zeros(2, self._envs.num_envs, device=self._device)
        """Of the episodes that are going on."""

    def _step(self, network: nn.Module, normalize: TensorNormalizer) -> tuple[list[bool], dict[str, Tensor]]:
        """T steps into the columns -> (whether each told the last observations, sums by name)"""
        columns, known = self._columns, list[bool]()
        means: dict[str, Tensor] = {}
        for t in range(self._config.rollout_length):
            distribution, values, _ = network(normalize(self._obs))
            actions = distribution.sample(self._generator)
            put_obs(columns["obs"], t, self._obs)  # before the step: an environment may write into the same memory
            if "actions" not in columns:
                columns["actions"] = actions.new_zeros(self._config.rollout_length, *actions.shape)
            step = self._envs.step(actions)
            ended = step.terminated | step.truncated
            self._returns, self._lengths = self._returns + step.rewards, self._lengths + 1.0
            row = {
                "actions": actions, "log_probs": distribution.log_prob(actions), "values": values,
                "rewards": step.rewards, "terminated": step.terminated, "truncated": step.truncated,
                "episode_returns": self._returns, "episode_lengths": self._lengths,
            }  # fmt: skip
            for name, each in row.items():
                columns[name][t] = each
            self._returns, self._lengths = (each.masked_fill(ended, 0.0) for each in (self._returns, self._lengths))
            known.append(step.final_obs is not None)
            if step.final_obs is not None:
                if "final_obs" not in columns:
                    columns["final_obs"] = map_obs(torch.zeros_like, columns["obs"])
                put_obs(columns["final_obs"], t, cast(Any, step.final_obs))
            for name, each in step.means.items():
                means[name] = means[name] + each if name in means else each
            self._obs = step.obs
        return known, means

    def _value_successors(self, network: nn.Module, normalize: TensorNormalizer, known: list[bool]) -> Tensor:
        """`next_values`, as SampleBatch has them; where an episode was cut off and its last observation is not known,
        the value of the one before stands for it -> how often that was."""
        columns = self._columns
        values, next_values, truncated = (columns[name] for name in ("values", "next_values", "truncated"))
        next_values[:-1] = values[1:]
        next_values[-1] = network(normalize(self._obs))[1]
        is_known = torch.tensor(known, device=self._device)[:, None]
        unknown = truncated & ~is_known
        next_values.copy_(torch.where(unknown, values, next_values))
        if any(known):
            rows = (truncated & is_known).reshape(-1).nonzero().squeeze(1)
            final = map_obs(lambda leaf: leaf.flatten(0, 1), columns["final_obs"])
            for some in rows.split(ROWS_AT_ONCE):
                if len(some):
                    next_values.view(-1)[some] = network(normalize(take_obs(final, some)))[1]
        return unknown.sum()

    def _read(self, num_unknown: Tensor, means: dict[str, Tensor]) -> tuple[list[Episode], int, bool, dict[str, float]]:
        """(the last episodes, how many ended, whether an end was not known, metrics): the one time that the host waits.
        NonFiniteError or EnvError where a reward or an observation is not finite."""
        columns = self._columns
        ended = (columns["terminated"] | columns["truncated"]).reshape(-1)
        places = torch.arange(1, len(ended) + 1, device=self._device) * ended
        last = places.topk(min(WINDOW, len(ended))).values.flip(0)
        chosen = (last - 1).clamp_min(0)
        obs = columns["obs"]
        floats = [leaf for leaf in (obs.values() if isinstance(obs, dict) else [obs]) if leaf.is_floating_point()]
        bad = [(~leaf.isfinite()).sum() for leaf in (columns["rewards"], *floats)]
        told = [columns[name].reshape(-1)[chosen] for name in ("episode_returns", "episode_lengths")]
        parts = [ended.sum()[None], num_unknown[None], last, *told, torch.stack(bad), *means.values()]
        read = iter(torch.cat([part.double() for part in parts]).tolist())

        def take(count: int) -> list[float]:
            return [next(read) for _ in range(count)]

        [num_ended], [unknown] = take(1), take(1)
        rows = zip(take(len(last)), take(len(last)), take(len(last)), strict=True)
        episodes = [Episode(total, int(length)) for place, total, length in rows if place]
        bad_rewards, *bad_obs = take(len(bad))
        if bad_rewards:
            t, b = (int(each[0]) for each in (~columns["rewards"].isfinite()).nonzero(as_tuple=True))
            raise NonFiniteError(
                f"reward {columns['rewards'][t, b].item()} from environment {b} (step {t} of the rollout, action "
                f"{columns['actions'][t, b].tolist()}); fix {self._envs.name}'s reward"
            )
        if any(bad_obs):
            raise EnvError(
                f"{self._envs.name}: NaN or infinity in the observations of a rollout of {len(columns['rewards'])} "
                "steps; find where the environment divides by zero or overflows"
            )
        sums = {name: take(2) for name in means}
        metrics = {f"env/{name}_mean": total / count for name, (total, count) in sums.items() if count}
        return episodes, int(num_ended), bool(unknown), metrics


class TensorNormalizer:
    """`ObsNormalizer` on a device, with the statistics in weights; without any, the identity."""

    def __init__(self, obs: ObsSpec | dict[str, ObsSpec], weights: Weights, device: torch.device) -> None:
        self._leaves: dict[str, tuple[Tensor, Tensor]] = {}
        if OBS_MEAN not in weights:
            return
        mean, var = (torch.from_numpy(np.array(weights[name]).ravel()).to(device) for name in (OBS_MEAN, OBS_VAR))
        inverse_std, start = (var + EPSILON).rsqrt(), 0
        for path, leaf in (vector_leaves(obs) or obs_leaves(obs)).items():
            own = slice(start, start := start + leaf.flat_size)
            self._leaves[path] = (mean[own].reshape(leaf.shape), inverse_std[own].reshape(leaf.shape))

    def __call__(self, obs: Any) -> Any:
        """[..., *shape] -> the same, float32"""
        if not self._leaves:
            return obs
        if isinstance(obs, dict):
            return obs | {path: self._normalized(obs[path], path) for path in self._leaves if path in obs}
        return self._normalized(obs, "")

    def _normalized(self, leaf: Tensor, path: str) -> Tensor:
        mean, inverse_std = self._leaves[path]
        return ((leaf - mean) * inverse_std).clamp_(-CLIP, CLIP)


def make_tensor_envs(env: Any, num_envs: int, env_kwargs: Mapping[str, Any], copies: Copies = Copies()) -> TensorEnvs:  # noqa: B008
    """env: as `make_vector_env` takes it."""
    source = resolve_env(env)
    made = TensorEnvs(make_single_env(source, dict(env_kwargs), copies, num_envs=num_envs), source.name)
    if made.num_envs != num_envs:
        raise UsageError(other_number(source.name, made.num_envs, num_envs))
    return made
