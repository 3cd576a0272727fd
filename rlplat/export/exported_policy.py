"""`ExportedPolicy`: acts with an exported file as `rlplat.load(RUN)` acts with a run; onnxruntime and numpy only.

policy = load("policy.onnx")
action = policy.act(obs)                                # or many at once, drawn, masked, with a state of yours
"""

from __future__ import annotations

import os
from typing import Any, overload

import numpy as np

from rlplat.errors import BadObservation
from rlplat.export.contract import MASK, NOISE, STARTS, STATE_IN, STATE_OUT, Contract, Leaf, nested
from rlplat.export.model_file import CONTRACT, ExportedModel
from rlplat.given.box_values import box_values


class ExportedPolicy(ExportedModel):
    """obs, info = env.reset()
    policy.reset()
    while not done:
        obs, reward, terminated, truncated, info = env.step(policy.act(obs))
    """

    def __init__(
        self, path: str | os.PathLike[str], *, num_threads: int = 1, data: bytes | None = None
    ) -> None:
        super().__init__(path, num_threads=num_threads, data=data)
        self.contract = Contract.from_json(self.metadata[CONTRACT], str(path))
        self._rng = np.random.default_rng()
        self._state = self.initial_state(0)

    @property
    def state_size(self) -> int:
        """S: numbers that a recurrent policy remembers of an episode; 0 without a core."""
        return self.contract.state_size

    def initial_state(self, num: int | None = None) -> np.ndarray:
        """float32[S], or float32[num, S]: with which episodes begin, for `act(state=)`."""
        return np.zeros((self.state_size,) if num is None else (num, self.state_size), np.float32)

    @overload
    def act(self, obs: Any, *, greedy: bool = True, mask: Any = None, rng: Any = None) -> Any: ...

    @overload
    def act(
        self, obs: Any, *, state: np.ndarray, greedy: bool = True, mask: Any = None, rng: Any = None
    ) -> tuple[Any, np.ndarray]: ...

    def act(
        self,
        obs: Any,
        *,
        greedy: bool = True,
        mask: Any = None,
        state: np.ndarray | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> Any:
        """The action for one observation, or those for many, as `rl.run.trained_agent.Agent.act`: the same arguments,
        the same results. BadObservation (also a ValueError) for what does not fit."""
        feeds, is_batch = self.read(obs, mask)
        num_rows = len(next(iter(feeds.values())))
        if self.contract.noise_size:
            feeds[NOISE] = self._noise(num_rows, greedy, rng)
        if self.state_size:
            feeds[STARTS] = np.zeros(num_rows, np.bool_)
            feeds[STATE_IN] = self._state_in(state, num_rows, is_batch)
        outputs = self.run(feeds)
        actions = self.actions(outputs, is_batch, greedy=greedy)
        following = outputs.get(STATE_OUT, np.zeros((num_rows, 0), np.float32))
        if state is not None:
            return actions, following if is_batch else following[0]
        self._state = following
        return actions

    def reset(self, ended: Any = None) -> None:
        """New episodes begin: everywhere, or where `ended` (bool[N]) is True; only recurrent policies remember any."""
        if ended is None:
            self._state = self.initial_state(0)
            return
        ended = np.atleast_1d(np.asarray(ended, np.bool_))
        if len(self._state) and ended.shape != (len(self._state),):
            raise BadObservation(
                f"ended has shape {ended.shape}, but the policy acts for {len(self._state)}: expected bool"
                f"[{len(self._state)}]"
            )
        if len(self._state):
            self._state = np.where(ended[:, None], np.float32(0.0), self._state)

    def read(self, obs: Any, mask: Any = None) -> tuple[dict[str, np.ndarray], bool]:
        """(the inputs obs and action_mask [N, ...], whether `obs` was a batch); of one observation N is 1."""
        contract = self.contract
        feeds: dict[str, np.ndarray] = {}
        is_batch, num_rows, first = False, 1, ""
        for leaf in contract.obs:
            array, has_rows = _read_leaf(leaf, obs)
            rows = len(array) if has_rows else 1
            if feeds and (has_rows, rows) != (is_batch, num_rows):
                raise BadObservation(
                    f"{_name(leaf.keys)} has shape {array.shape}, but {first}; all parts are of one observation, or of "
                    "equally many"
                )
            if not feeds:
                is_batch, num_rows = has_rows, rows
                first = f"{_name(leaf.keys)} has shape {array.shape}"
            feeds[leaf.name("obs")] = array.reshape(num_rows, *leaf.shape)
        if mask is None and contract.mask_is_observed and isinstance(obs, dict):
            mask = obs.get(MASK)
        if contract.mask_groups or mask is not None:
            feeds[MASK] = self._mask(mask, num_rows, is_batch)
        return feeds, is_batch

    def actions(self, outputs: dict[str, np.ndarray], is_batch: bool, *, greedy: bool = True) -> Any:
        """Those of `run` in the structure that the environment takes; of one observation without rows."""
        prefix = "greedy_action" if greedy else "action"
        arrays = [outputs[leaf.name(prefix)] for leaf in self.contract.action]
        leaves = [array if is_batch else array[0] for array in arrays]
        return nested([(leaf.keys, array) for leaf, array in zip(self.contract.action, leaves, strict=True)])

    def _noise(self, num_rows: int, greedy: bool, rng: int | np.random.Generator | None) -> np.ndarray:
        shape = (num_rows, self.contract.noise_size)
        if greedy:
            return np.zeros(shape, np.float32)
        if rng is None:
            generator = self._rng
        else:
            generator = rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)
        return generator.standard_normal(shape, dtype=np.float32)

    def _state_in(self, state: Any, num_rows: int, is_batch: bool) -> np.ndarray:
        if state is None:
            if len(self._state) not in (0, num_rows):
                raise BadObservation(
                    f"{num_rows} observations, but this recurrent policy remembers {len(self._state)}: call "
                    "policy.reset() where new episodes begin, or pass state="
                )
            return self._state if len(self._state) else self.initial_state(num_rows)
        array = np.asarray(state, np.float32)
        expected = (num_rows, self.state_size) if is_batch else (self.state_size,)
        if array.shape != expected:
            raise BadObservation(
                f"state has shape {array.shape}; expected {expected}: begin with policy.initial_state("
                f"{num_rows if is_batch else ''})"
            )
        return array.reshape(num_rows, self.state_size)

    def _mask(self, mask: Any, num_rows: int, is_batch: bool) -> np.ndarray:
        groups = self.contract.mask_groups
        size = sum(groups)
        if not groups:
            raise BadObservation("mask= is given, but this policy was trained without action masks; omit it")
        expected = (
            f"bool[{size}] for one observation, or bool[N, {size}] for N, True where an action is legal"
        )
        if mask is None:
            raise BadObservation(
                f"the action mask is missing that this policy was trained with: mask=, {expected}"
            )
        try:
            array = np.asarray(mask)
        except ValueError:  # one array for each choice
            array = np.concatenate([np.asarray(each) for each in mask], axis=-1)
        if array.dtype.kind not in "biuf" or array.shape != ((num_rows, size) if is_batch else (size,)):
            raise BadObservation(
                f"the action mask has shape {array.shape} and dtype {array.dtype}; expected {expected}"
                + (f" (here N = {num_rows})" if is_batch else "")
            )
        rows = array.reshape(num_rows, size).astype(np.bool_)
        is_open = np.logical_or.reduceat(rows, np.cumsum((0, *groups[:-1])), axis=1)
        if not is_open.all():
            row, choice = map(int, np.argwhere(~is_open)[0])
            which = f" of row {row}" if is_batch else ""
            of_choice = f" for choice {choice}" if len(groups) > 1 else ""
            raise BadObservation(
                f"the action mask{which} has no legal action{of_choice}; the episode should have ended"
            )
        return rows


def load(path: str | os.PathLike[str], *, num_threads: int = 1) -> ExportedPolicy:
    """The policy of a file that `rlplat export` wrote.

    CheckpointError for a file that is damaged, foreign, or of a later contract; MissingExtra without onnxruntime.
    """
    return ExportedPolicy(path, num_threads=num_threads)


def _read_leaf(leaf: Leaf, obs: Any) -> tuple[np.ndarray, bool]:
    """(the array in the leaf's dtype, whether it has an axis of rows)"""
    for depth, key in enumerate(leaf.keys):
        try:
            obs = obs[key]
        except (KeyError, IndexError, TypeError):
            raise BadObservation(
                f"{_name(leaf.keys[:depth])} is a {type(obs).__name__} and has no {key!r}"
            ) from None
    try:
        array = np.asarray(obs)
    except ValueError:
        raise _mismatch(leaf, "is no array") from None
    shape, dtype = leaf.shape, np.dtype(leaf.dtype)
    if array.shape != shape and array.shape[1:] != shape:
        raise _mismatch(leaf, f"has shape {array.shape}")
    has_rows = array.ndim == len(shape) + 1
    if has_rows and not len(array):
        raise _mismatch(leaf, f"holds no observation at all: its shape is {array.shape}")
    if leaf.kind in ("vector", "image"):
        try:
            values = box_values(array, dtype)
        except ValueError as error:
            raise _mismatch(leaf, str(error)) from None
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise BadObservation(f"NaN or infinity in {_name(leaf.keys)}")
        return values, has_rows
    if array.dtype.kind not in "biu":
        raise _mismatch(leaf, f"has dtype {array.dtype}")
    start = np.array(leaf.start or 0).reshape(shape if leaf.nvec else ())
    top = start + (np.array(leaf.nvec).reshape(shape) if leaf.nvec else 2)
    wrong = (array < start) | (array >= top)
    if wrong.any():
        raise BadObservation(
            f"{_name(leaf.keys)} is {array[wrong].ravel()[0]}, which is not in its space: from {start.tolist()} to "
            f"{(top - 1).tolist()}"
        )
    return array.astype(dtype, copy=False), has_rows


def _mismatch(leaf: Leaf, what: str) -> BadObservation:
    rest = "".join(f", {size}" for size in leaf.shape)
    return BadObservation(
        f"{_name(leaf.keys)} {what}; expected {leaf.dtype}{list(leaf.shape)} for one observation, or "
        f"{leaf.dtype}[N{rest}] for N"
    )


def _name(keys: tuple[Any, ...]) -> str:
    return "observation" + "".join(f"[{key!r}]" for key in keys)
