"""`Episodes`: whole recorded episodes as columns, in memory and in each file of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.obs_tree import concat_obs, find_not_finite, take_obs
from rlplat.rl.replay.buffer import Minibatch
from rlplat.rl.spaces import SpaceSpec, action_leaves, empty_actions, obs_leaves


@dataclass(frozen=True)
class Episodes:
    """E episodes of N steps together, one after the other. Of each there is one observation more than steps: its last.

    obs[episodes.obs_rows()]         what the agent saw when it took actions[i]
    obs[episodes.obs_rows() + 1]     what came of it
    """

    obs: Obs
    """[N + E, ...] (or a dict of such), as `VectorEnv` gives them."""
    actions: Array
    """[N, ...] as `PolicyOutput.actions`: what the environment took, so a Box within its bounds."""
    rewards: Array
    """float32[N], raw."""
    lengths: Array
    """int64[E]: steps of each episode, at least one."""
    terminated: Array
    """bool[E]: it ended for good. The others were cut off: their last observation has a future."""

    @property
    def num_steps(self) -> int:
        return len(self.rewards)

    @property
    def num_episodes(self) -> int:
        return len(self.lengths)

    @property
    def num_bytes(self) -> int:
        leaves = self.obs.values() if isinstance(self.obs, dict) else [self.obs]
        return sum(array.nbytes for array in (*leaves, self.actions, self.rewards))

    def returns(self) -> Array:
        """float64[E]: raw and undiscounted."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.add.reduceat(self.rewards.astype(np.float64), starts)

    def obs_rows(self) -> Array:
        """int64[N]: where in `obs` the observation of each step is."""
        return np.arange(self.num_steps) + np.repeat(np.arange(self.num_episodes), self.lengths)

    def ends(self) -> Array:
        """bool[N]: the episode terminated with this step."""
        ends = np.zeros(self.num_steps, np.bool_)
        ends[np.cumsum(self.lengths) - 1] = self.terminated
        return ends

    def problem(self, spaces: SpaceSpec) -> str:
        """What of this is not as these spaces and the docstrings above want it, or the empty string."""
        if self.lengths.ndim != 1 or self.lengths.dtype != np.int64 or self.terminated.dtype != np.bool_:
            return "lengths are to be int64[E] and terminated bool[E]"
        if self.terminated.shape != self.lengths.shape or not len(self.lengths) or self.lengths.min() < 1:
            return "there is to be an episode at least, each with a length of 1 at least, and `terminated` for each"
        num_steps, num_episodes = int(self.lengths.sum()), len(self.lengths)
        wanted = obs_leaves(spaces.obs)
        found = self.obs if isinstance(self.obs, dict) else {"": self.obs}
        if found.keys() != wanted.keys():
            return f"observations are {_named(found)}, not {_named(wanted)}"
        columns = [
            (
                f"observations {_quoted(path)}",
                found[path],
                (num_steps + num_episodes, *leaf.shape),
                leaf.dtype,
            )
            for path, leaf in wanted.items()
        ]
        like = empty_actions(spaces.action, 0)
        columns.append(("actions", self.actions, (num_steps, *like.shape[1:]), like.dtype.name))
        columns.append(("rewards", self.rewards, (num_steps,), "float32"))
        for name, column, shape, dtype in columns:
            if column.shape != shape or column.dtype != dtype:
                return f"{name.strip()}: {column.dtype}{list(column.shape)}, not {dtype}{list(shape)}"
            if column.dtype.kind == "f" and (at := find_not_finite(column)) is not None:
                return f"{name.strip()}: NaN or infinity in row {at[0]}"
        return _action_problem(self.actions, spaces)


def concat_episodes(parts: Sequence[Episodes]) -> Episodes:
    return Episodes(
        obs=concat_obs([part.obs for part in parts]),
        actions=np.concatenate([part.actions for part in parts]),
        rewards=np.concatenate([part.rewards for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        terminated=np.concatenate([part.terminated for part in parts]),
    )


def _action_problem(actions: Array, spaces: SpaceSpec) -> str:
    """Whether every column holds what its part of the action space has."""
    columns, start = actions.reshape(len(actions), -1), 0
    for part in action_leaves(spaces.action):
        its = columns[:, start : start + part.flat_size]
        start += part.flat_size
        if part.kind == "box":
            low, high = (np.array(bound, np.float32) for bound in (part.low, part.high))
        else:
            counts = {"discrete": (part.n,), "multi_discrete": part.nvec}.get(part.kind, (2,) * part.flat_size)
            low, high = np.zeros(len(counts), np.float32), np.array(counts, np.float32) - 1
        outside = ((its < low) | (its > high)).any(axis=1)
        if outside.any():
            row = int(np.flatnonzero(outside)[0])
            return f"actions: row {row} is {its[row].tolist()}, which is not in {part}"
    return ""


def _named(leaves: Mapping[str, object]) -> str:
    return "one array" if set(leaves) == {""} else f"a dict of {', '.join(leaves)}"


def _quoted(path: str) -> str:
    return f"'{path}'" if path else ""


class RecordedTransitions:
    """drawn = transitions.take(epochs.rows(env_steps, 256))"""

    def __init__(self, episodes: Episodes, discount: float) -> None:
        self.episodes = episodes
        self._obs_rows = episodes.obs_rows()
        self._discounts = np.where(episodes.ends(), 0.0, discount).astype(np.float32)

    def __len__(self) -> int:
        return self.episodes.num_steps

    def take(self, rows: Array) -> Minibatch:
        """rows: int64[M] of steps. The last one of an episode that was cut off bootstraps from its last observation."""
        episodes, obs_rows = self.episodes, self._obs_rows[rows]
        return Minibatch(
            obs=take_obs(episodes.obs, obs_rows),
            actions=episodes.actions[rows],
            returns=episodes.rewards[rows],
            discounts=self._discounts[rows],
            next_obs=take_obs(episodes.obs, obs_rows + 1),
            weights=np.ones(len(rows), np.float32),
            rows=rows,
            stamps=np.zeros(len(rows), np.int64),
        )
