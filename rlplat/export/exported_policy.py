"""`ExportedPolicy`: acts with an exported file as `rlplat.load(RUN)` acts with a run; onnxruntime and numpy only.

policy = load("policy.onnx")
action = policy.act(obs)                                # or many at once, drawn, masked, with a state of yours
"""

from __future__ import annotations

import os
from typing import Any, overload

import numpy as np

from rlplat.acting import MASK
from rlplat.export.contract import NOISE, STARTS, STATE_IN, STATE_OUT, Contract, nested
from rlplat.export.model_file import CONTRACT, ExportedModel


class ExportedPolicy(ExportedModel):
    """obs, info = env.reset()
    policy.reset()
    while not done:
        obs, reward, terminated, truncated, info = env.step(policy.act(obs))
    """

    def __init__(self, path: str | os.PathLike[str], *, num_threads: int = 1, data: bytes | None = None) -> None:
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
        state_in = self._state_in(state, num_rows, is_batch) if self.state_size else None
        outputs = self.outputs(feeds, num_rows, greedy, state_in, rng)
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
        starts = self.contract.inputs.ended(ended, len(self._state))
        if len(self._state):
            self._state = np.where(starts[:, None], np.float32(0.0), self._state)

    def read(self, obs: Any, mask: Any = None) -> tuple[dict[str, np.ndarray], bool]:
        """(the inputs obs and action_mask [N, ...], whether `obs` was a batch); of one observation N is 1."""
        arrays, masks, is_batch = self.contract.inputs.read(obs, mask)
        feeds = {leaf.name("obs"): array for leaf, array in zip(self.contract.obs, arrays, strict=True)}
        return feeds if masks is None else feeds | {MASK: masks}, is_batch

    def actions(self, outputs: dict[str, np.ndarray], is_batch: bool, *, greedy: bool = True) -> Any:
        """Those of `run` in the structure that the environment takes; of one observation without rows."""
        prefix = "greedy_action" if greedy else "action"
        arrays = [outputs[leaf.name(prefix)] for leaf in self.contract.action]
        leaves = [array if is_batch else array[0] for array in arrays]
        return nested([(leaf.keys, array) for leaf, array in zip(self.contract.action, leaves, strict=True)])

    def outputs(
        self,
        feeds: dict[str, np.ndarray],
        num_rows: int,
        greedy: bool,
        state: np.ndarray | None,
        rng: Any = None,
    ) -> dict[str, np.ndarray]:
        """Of the inputs that `read` gives. state: float32[N, S], None where episodes begin; rng: as of `act`."""
        if self.contract.noise_size:
            shape = (num_rows, self.contract.noise_size)
            if greedy:
                feeds[NOISE] = np.zeros(shape, np.float32)
            else:
                generator = self._rng if rng is None else np.random.default_rng(rng)  # one that is given stays
                feeds[NOISE] = generator.standard_normal(shape, dtype=np.float32)
        if self.state_size:
            feeds[STATE_IN] = self.initial_state(num_rows) if state is None else state
            feeds[STARTS] = np.zeros(num_rows, np.bool_)
        return self.run(feeds)

    def _state_in(self, state: Any, num_rows: int, is_batch: bool) -> np.ndarray:
        if state is not None:
            return self.contract.inputs.state(state, self.state_size, num_rows, is_batch)
        self.contract.inputs.require_remembered(num_rows, len(self._state))
        return self._state if len(self._state) else self.initial_state(num_rows)


def load(path: str | os.PathLike[str], *, num_threads: int = 1) -> ExportedPolicy:
    """The policy of a file that `rlplat export` wrote.

    CheckpointError for a file that is damaged, foreign, or of a later contract; MissingExtra without onnxruntime.
    """
    return ExportedPolicy(path, num_threads=num_threads)
