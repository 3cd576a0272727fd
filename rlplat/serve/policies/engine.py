"""`Engine`: a trained agent that acts for many callers at once; one forward pass for all that wait.

engine = Engine(agent, max_rows=256, max_waiting_rows=100_000)
acted = await engine.act(rows, num_rows, greedy=True, state=None)
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.obs_tree import concat_obs, take_obs
from rlplat.serve.batching import Batcher, Piece
from rlplat.serve.refusals import Refused


class Ask(NamedTuple):
    rows: Obs
    greedy: bool
    state: Array | None
    """float32[N, S]; None where the episodes begin."""


class Acted(NamedTuple):
    """Of the rows that were asked for, in their order."""

    actions: Array
    """As the policy gives them: `PolicyOutput.actions`."""
    log_probs: Array
    values: Array
    state: Array
    env_steps: int
    """For how many the weights were trained."""


class Engine:
    def __init__(self, agent: Any, *, max_rows: int, max_waiting_rows: int) -> None:
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="rlplat-serve-policy")
        self.agent = agent
        """Another one acts from the next batch on: a batch is of one agent."""
        self.batcher = Batcher(
            self._run,
            max_rows=max_rows,
            max_waiting_rows=max_waiting_rows,
            join=_joined,
            name="the policy's queue",
            executor=self.executor,
            retries_singly=True,
        )

    async def act(self, rows: Obs, num_rows: int, *, greedy: bool, state: Array | None = None) -> Acted:
        acted: Acted = await self.batcher.submit(Ask(rows, greedy, state), num_rows)
        return acted

    def _run(self, pieces: list[Piece]) -> Sequence[Any]:
        agent = self.agent
        results: list[Any] = [None] * len(pieces)
        for greedy in (True, False):
            chosen = [index for index, piece in enumerate(pieces) if piece.item.greedy is greedy]
            if chosen:
                acted = _act(agent, [pieces[index] for index in chosen], greedy)
                for index, each in zip(chosen, acted, strict=True):
                    results[index] = each
        return results


def _act(agent: Any, pieces: list[Piece], greedy: bool) -> list[Any]:
    parts = [
        piece.item.rows if piece.is_whole else take_obs(piece.item.rows, slice(piece.start, piece.stop))
        for piece in pieces
    ]
    rows = parts[0] if len(parts) == 1 else concat_obs(parts)
    sizes = [piece.stop - piece.start for piece in pieces]
    state = np.concatenate([_state_of(agent, piece) for piece in pieces]) if agent.state_size else None
    output, following = agent.act_on_rows(rows, greedy=greedy, state=state)
    env_steps, ends = agent.checkpoint.info.env_steps, np.cumsum(sizes).tolist()
    columns = (output.actions, output.log_probs, output.values, following)
    acted: list[Any] = []
    for end, size in zip(ends, sizes, strict=True):
        actions, log_probs, values, after = (column[end - size : end] for column in columns)
        acted.append(Acted(actions, log_probs, values, after, env_steps))
    if _is_finite(output.values) and _is_finite(output.actions):
        return acted
    return [each if _is_finite(each.values) and _is_finite(each.actions) else _diverged() for each in acted]


def _state_of(agent: Any, piece: Piece) -> Array:
    state = piece.item.state
    if state is None:
        initial: Array = agent.initial_state(piece.stop - piece.start)
        return initial
    part: Array = state[piece.start : piece.stop]
    return part


def _is_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _diverged() -> Refused:
    return Refused(
        500,
        "policy-failed",
        "the policy's output is NaN or infinite for this observation: its weights have diverged",
    )


def _joined(parts: list[Acted]) -> Acted:
    actions, log_probs, values, state = (np.concatenate([part[column] for part in parts]) for column in range(4))
    return Acted(actions, log_probs, values, state, parts[-1].env_steps)
