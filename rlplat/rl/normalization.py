"""Running statistics of observations, rewards and returns, and what is done with them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.interfaces import Array, Obs, Weights
from rlplat.rl.obs_tree import map_obs
from rlplat.rl.saved import Saved
from rlplat.rl.spaces import MASK, ObsSpec, shown_obs

log = logging.getLogger("rlplat.start")

CLIP = 10.0
EPSILON = 1e-8
FIRST_PIXEL_VAR, LEAST_PIXEL_VAR = 255.0**2, 4.0
"""In grey levels of 255, squared: before there are statistics pixels are fractions of 255; and a pixel that has hardly
ever changed must not outshine all others when it does."""
_ROWS_AT_ONCE = 64
OBS_MEAN, OBS_VAR = "obs_norm.mean", "obs_norm.var"
"""Names under which observation statistics travel inside the weights."""
ENV_STATISTICS = "env_statistics:"
"""Beginning of the names of what travels there of the environments' own statistics (envs/statistics.py)."""


def require_normalizable(obs: ObsSpec | dict[str, ObsSpec], *, images: bool = False) -> None:
    """In the driver, before any actor starts: ConfigError for `normalize_observations` where it cannot be. Of a Dict or
    Tuple the vectors are normalised; what is left as it is, is said.

    images: whether the algorithm and its framework can normalise images.
    """
    if isinstance(obs, dict) and (vectors := vector_leaves(obs)):
        if rest := [f"{path} ({leaf})" for path, leaf in obs.items() if path not in vectors and path != MASK]:
            log.info("normalize_observations: of %s; left as they are: %s", ", ".join(vectors), ", ".join(rest))
        return
    kinds = ("vector", "image") if images else ("vector",)
    if isinstance(obs, ObsSpec) and obs.kind in kinds:
        if obs.kind == "image" and obs.dtype != "uint8" and obs.low:
            raise ConfigError(
                f"normalize_observations is not for {obs}: images of floats are scaled by their bounds as it is; set "
                "it to false"
            )
        return
    what = (
        "vectors, also in a Dict, or one image"
        if images
        else "vectors, also in a Dict (A3C, BC, DQN, IMPALA and PPO with framework=torch: one image, too)"
    )
    raise ConfigError(
        f"normalize_observations is for {what}, but observations are {shown_obs(obs)}: set it to false (images are "
        "scaled by their bounds as it is)"
    )


def vector_leaves(obs: ObsSpec | dict[str, ObsSpec] | None) -> dict[str, ObsSpec]:
    """Of a Dict of observations, by path: the numbers whose statistics are kept, side by side as one vector in this
    order. Empty for anything else."""
    if not isinstance(obs, dict):
        return {}
    return {path: leaf for path, leaf in obs.items() if leaf.kind == "vector"}


def measured(obs: Obs, leaves: dict[str, ObsSpec]) -> Array:
    """obs: [..., *shape] -> what statistics are kept of: obs itself, or the `vector_leaves` as float64[..., D]."""
    if not isinstance(obs, dict):
        return obs
    parts = []
    for path, leaf in leaves.items():
        axes = obs[path].shape[: obs[path].ndim - len(leaf.shape)]
        parts.append(obs[path].reshape(*axes, -1).astype(np.float64, copy=False))
    return np.concatenate(parts, axis=-1)


class RunningMeanVar(Saved):
    """Mean and variance of a stream, batch by batch (Chan, Golub & LeVeque 1983: exact merging of two samples).

    float64 inside; `mean` and `var` have the shape of one element; an empty stream has mean 0 and variance 1.
    """

    saved = {"mean": "mean", "var": "var", "count": "count"}

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean = np.zeros(shape, np.float64)
        self.var = np.ones(shape, np.float64)
        self.count = 0

    def update(self, elements: Array) -> None:
        """elements: [N, *shape]."""
        assert elements.shape[1:] == self.mean.shape, f"elements {elements.shape}, expected [N, *{self.mean.shape}]"
        if len(elements) == 0:
            return
        self.merge(*moments(elements), len(elements))

    def merge(self, mean: Array, var: Array, count: int) -> None:
        """Take in another sample's mean, (population) variance and size."""
        if self.count == 0:
            self.mean, self.var, self.count = np.array(mean, np.float64), np.array(var, np.float64), count
            return
        total = self.count + count
        delta = mean - self.mean
        squares = self.var * self.count + var * count + delta**2 * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.var = squares / total
        self.count = total


def moments(elements: Array) -> tuple[Array, Array]:
    """elements: [N, ...], N > 0 -> float64 mean and (population) variance over the first axis.

    Of bytes by exact sums of integers: images in float64 would take eight times their memory, fifteen times as long.
    """
    if elements.dtype != np.uint8:
        elements = elements.astype(np.float64)
        return elements.mean(axis=0), elements.var(axis=0)
    total, squares = np.zeros((2, *elements.shape[1:]), np.uint64)
    for start in range(0, len(elements), _ROWS_AT_ONCE):
        rows = elements[start : start + _ROWS_AT_ONCE]
        total += rows.sum(axis=0, dtype=np.uint32)
        wide = rows.astype(np.uint16)
        wide *= wide  # 255 * 255 < 2**16
        squares += wide.sum(axis=0, dtype=np.uint32)
    mean = total / len(elements)
    return mean, np.maximum(squares / len(elements) - mean * mean, 0.0)


class ObsNormalizer:
    """(obs - mean) / sqrt(var), clipped, with the statistics found in weights; without any, the identity.

    The learner measures, everybody else applies what came with the weights: nobody acts on newer statistics than the
    learner will train with.
    """

    def __init__(self, obs: ObsSpec | dict[str, ObsSpec] | None = None, clip: float = CLIP) -> None:
        """obs: of the observations, where they may be a Dict."""
        self._clip = clip
        self._mean: Array | None = None
        self._inverse_std: Array | None = None
        self.leaves = vector_leaves(obs)

    def set_weights(self, weights: Weights) -> None:
        if OBS_MEAN not in weights:
            return
        self._mean = np.asarray(weights[OBS_MEAN], np.float32)
        self._inverse_std = (1.0 / np.sqrt(weights[OBS_VAR] + EPSILON)).astype(np.float32)

    def take_all(self, each: Sequence[ObsNormalizer]) -> None:
        """The statistics of S others: of observations [S, B, *shape] each block is normalised with its own."""
        means = [one._mean for one in each if one._mean is not None]
        inverse_stds = [one._inverse_std for one in each if one._inverse_std is not None]
        if means:
            self._mean, self._inverse_std = np.stack(means)[:, None], np.stack(inverse_stds)[:, None]

    def __call__(self, obs: Obs) -> Obs:
        """obs: [..., *shape] -> float32, same shape (the input's dtype where there is nothing to normalise).

        In C order, whoever made the arrays: matrix products and convolutions round differently with another one, and
        an environment's own observations have another one than those that a checkpoint brings back.
        """
        obs = map_obs(np.ascontiguousarray, obs) if isinstance(obs, dict) else np.ascontiguousarray(obs)
        if self._mean is None or self._inverse_std is None:
            return obs
        if not isinstance(obs, dict):
            return self._normalized(obs, self._mean, self._inverse_std)
        result, start = obs, 0
        for path, leaf in self.leaves.items():
            own = slice(start, start := start + leaf.flat_size)
            if path not in obs:  # of the critic's group alone
                continue
            mean, inverse_std = self._mean[own], self._inverse_std[own]
            result[path] = self._normalized(obs[path], mean.reshape(leaf.shape), inverse_std.reshape(leaf.shape))
        return result

    def _normalized(self, obs: Array, mean: Array, inverse_std: Array) -> Array:
        normalized = ((obs - mean) * inverse_std).astype(np.float32, copy=False)
        return np.clip(normalized, -self._clip, self._clip, out=normalized)


class ObsStatistics:
    """A learner's statistics of observations, which travel with its weights.

    batch_obs = statistics.normalize(obs)               # by those that were given out last
    statistics.update(obs, valid)                       # after the update, whose log-probabilities came from these
    weights |= statistics.weights()
    """

    def __init__(self, obs: ObsSpec | dict[str, ObsSpec] | None, clip: float = CLIP) -> None:
        """obs: of what they are kept (`require_normalizable`); None: observations are taken as they are."""
        self._leaves = vector_leaves(obs)
        self.running = None if obs is None else RunningMeanVar(_measured_shape(obs))
        self._least_var = 0.0
        if isinstance(obs, ObsSpec) and obs.kind == "image" and obs.bounds[0] and self.running is not None:
            scale = (max(obs.bounds[1]) - min(obs.bounds[0])) / 255.0
            self._least_var = LEAST_PIXEL_VAR * scale**2
            self.running.var[...] = FIRST_PIXEL_VAR * scale**2
        self.normalize = ObsNormalizer(obs, clip)

    def update(self, obs: Obs, valid: Array) -> None:
        """obs: [..., *shape]; valid: bool[...], those that count."""
        if self.running is not None:
            self.running.update(measured(obs, self._leaves)[valid])

    @property
    def is_empty(self) -> bool:
        """Whether there are to be statistics, and nothing has been measured yet."""
        return self.running is not None and not self.running.count

    def weights(self) -> Weights:
        """As they travel; `normalize` uses the same from now on."""
        if self.running is None:
            return {}
        var = np.maximum(self.running.var, self._least_var)
        weights = {OBS_MEAN: self.running.mean.astype(np.float32), OBS_VAR: var.astype(np.float32)}
        self.normalize.set_weights(weights)
        return weights

    def get_state(self) -> dict[str, Any] | None:
        return self.running.get_state() if self.running is not None else None

    def set_state(self, state: dict[str, Any] | None) -> None:
        if self.running is not None and state is not None:
            self.running.set_state(state)


def _measured_shape(obs: ObsSpec | dict[str, ObsSpec]) -> tuple[int, ...]:
    """Of what is measured of one observation."""
    return obs.shape if isinstance(obs, ObsSpec) else (sum(leaf.flat_size for leaf in vector_leaves(obs).values()),)


LEAST_DEVIATION = 1e-4
"""Of returns: as in van Hasselt et al. 2016, section 4."""
VALUE_HEAD = ("critic_head.weight", "critic_head.bias")
"""[1, F] and [1]: the linear layer that gives values, whatever the framework."""


def require_value_head(weights: Weights) -> None:
    """ConfigError for a network whose values come from elsewhere than `VALUE_HEAD`."""
    shapes = [getattr(weights.get(name), "shape", ()) for name in VALUE_HEAD]
    if [shape[:1] for shape in shapes] != [(1,), (1,)]:
        raise ConfigError(
            "normalize_value rescales the linear layer that gives values, critic_head with weight [1, F] and bias [1], "
            "which this network does not have: call it so, or omit normalize_value"
        )


class PopArt(Saved):
    """A critic that learns returns by their running mean and deviation, and says values in units of the rewards (van
    Hasselt et al. 2016, algorithm 1; the statistics are means over all returns so far).

    weights = popart.update(returns, weights)           # the critic's head, which means the same values as before
    targets = popart.normalize(returns)                 # what it is to learn
    weights |= popart.in_rewards(weights)               # for everybody else: values in units of the rewards
    """

    saved = {"returns": "running"}

    def __init__(self) -> None:
        self.running = RunningMeanVar()

    @property
    def mean(self) -> float:
        return float(self.running.mean)

    @property
    def deviation(self) -> float:
        return max(float(np.sqrt(self.running.var)), LEAST_DEVIATION)

    def normalize(self, values: Array) -> Array:
        """float32"""
        return ((values - self.mean) / self.deviation).astype(np.float32)

    def in_rewards(self, weights: Weights) -> Weights:
        """The head in weights -> one that gives deviation * its values + mean."""
        weight, bias = (weights[name] for name in VALUE_HEAD)
        head = (weight * self.deviation, bias * self.deviation + self.mean)
        return {name: each.astype(np.float32) for name, each in zip(VALUE_HEAD, head, strict=True)}

    def update(self, returns: Array, weights: Weights) -> Weights:
        """returns: [N] -> weights whose values are in units of the rewards what they were (equation 3)."""
        weight, bias = (each.astype(np.float64) for each in self.in_rewards(weights).values())
        self.running.update(returns)
        head = (weight / self.deviation, (bias - self.mean) / self.deviation)
        return weights | {name: each.astype(np.float32) for name, each in zip(VALUE_HEAD, head, strict=True)}


class RewardNormalizer:
    """Rewards divided by the running deviation of the discounted return: not centred (signs stay), clipped to +-10.

    As in OpenAI Baselines' VecNormalize (Huang et al. 2022, details 8 and 9 for continuous actions).

    Keeps one running return per worker and environment: a worker that was replaced starts at zero again.
    """

    def __init__(self, discount: float) -> None:
        self.discount = discount
        self.statistics = RunningMeanVar()
        self._returns: dict[int, tuple[int, Array]] = {}  # worker index -> (incarnation, float64[B])

    def normalize(
        self, rewards: Array, ends: Array, valid: Array, *, worker_index: int = 0, incarnation: int = 0
    ) -> Array:
        """rewards, ends (terminated or truncated), valid: [T, B] of one worker, in order -> float32[T, B]."""
        assert rewards.ndim == 2 and rewards.shape == ends.shape == valid.shape, (
            rewards.shape,
            ends.shape,
            valid.shape,
        )
        known_incarnation, running = self._returns.get(worker_index, (-1, np.zeros(0)))
        if known_incarnation != incarnation or running.shape != rewards.shape[1:]:
            running = np.zeros(rewards.shape[1], np.float64)
        returns = np.empty(rewards.shape, np.float64)
        for t, reward in enumerate(rewards):
            running = np.where(valid[t], running * self.discount + reward, running)
            returns[t] = running
            running = running * ~ends[t]
        self._returns[worker_index] = (incarnation, running)
        self.statistics.update(returns[valid])
        scale = 1.0 / np.sqrt(self.statistics.var + EPSILON)
        return np.clip(rewards * scale, -CLIP, CLIP).astype(np.float32)

    def get_state(self) -> dict[str, Any]:
        workers = {
            str(index): {"incarnation": incarnation, "returns": running.copy()}
            for index, (incarnation, running) in self._returns.items()
        }
        return {"statistics": self.statistics.get_state(), "workers": workers}

    def set_state(self, state: dict[str, Any]) -> None:
        self.statistics.set_state(state["statistics"])
        self._returns = {
            int(index): (int(worker["incarnation"]), np.array(worker["returns"], np.float64))
            for index, worker in state["workers"].items()
        }
