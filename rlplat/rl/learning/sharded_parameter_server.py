"""`ShardedParameterServer`: the client's side of parameters that are spread over several `ParameterServer` actors.

    server = ShardedParameterServer([first, second], shapes)    # actor handles; one alone is the plain case
    versions, weights = server.latest()
    versions, weights = server.apply_gradients(gradients, versions, learning_rate=7e-4, report=report)

All elements of all parameters, in order of name, are one long line that is cut into equal parts, one for each server,
as in a ring all-reduce: whole tensors would not balance (of the Nature CNN's weights, 95 % are in one matrix). Servers
work element by element, so that the cuts change no number; each has a version of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import rlplat
from rlplat.errors import ActorDied, RlplatError
from rlplat.rl.interfaces import UpdateReport, Weights
from rlplat.rl.learning.parameter_server import MIN_OBS, ObsMoments
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef

Versions = tuple[int, ...]
"""One for each server."""
Shapes = dict[str, tuple[int, ...]]
"""Of the parameters, by name."""


class Piece(NamedTuple):
    """Elements [start, stop) of a flattened parameter; its server knows it as `key`."""

    name: str
    start: int
    stop: int
    key: str

    @property
    def is_whole(self) -> bool:
        return self.key == self.name


def cut(shapes: Shapes, num_parts: int) -> list[list[Piece]]:
    """For each part the pieces in it; parts differ by one element at most. What is not cut keeps its name."""
    sizes = {name: int(np.prod(shapes[name], dtype=np.int64)) for name in sorted(shapes)}
    total = sum(sizes.values())
    bounds = [total * part // num_parts for part in range(num_parts + 1)]
    parts: list[list[Piece]] = [[] for _ in range(num_parts)]
    offset = 0
    for name, size in sizes.items():
        if not size:  # nothing to share out, and still a parameter
            parts[0].append(Piece(name, 0, 0, name))
        for pieces, (low, high) in zip(parts, pairwise(bounds), strict=True):
            start, stop = max(low - offset, 0), min(high - offset, size)
            if start < stop:
                key = name if stop - start == size else f"{name}[{start}:{stop}]"
                pieces.append(Piece(name, start, stop, key))
        offset += size
    return parts


def split(arrays: Weights, parts: Sequence[Sequence[Piece]]) -> list[Weights]:
    """The pieces of each part by key: flat views of the arrays, or the array itself where it is whole."""
    return [
        {p.key: arrays[p.name] if p.is_whole else arrays[p.name].reshape(-1)[p.start : p.stop] for p in part}
        for part in parts
    ]


def join(arrays: Sequence[Weights], parts: Sequence[Sequence[Piece]], shapes: Shapes) -> Weights:
    """Put together again what `split` cut; names that are no piece (normaliser statistics) come along as they are."""
    whole: Weights = {}
    for by_key, pieces in zip(arrays, parts, strict=True):
        rest = dict(by_key)
        for piece in pieces:
            array = rest.pop(piece.key)
            if piece.is_whole:
                whole[piece.name] = array
            else:
                target = whole.setdefault(piece.name, np.empty(shapes[piece.name], np.float32))
                target.reshape(-1)[piece.start : piece.stop] = array
        whole |= rest
    return whole


class ShardedParameterServer:
    """Talks to all servers at once, and shows them as one."""

    def __init__(self, servers: Sequence[ActorHandle], shapes: Shapes) -> None:
        self.servers = list(servers)
        self._shapes = shapes
        self._parts = cut(shapes, len(servers))

    def latest(self) -> tuple[Versions, Weights]:
        """The newest weights, whoever brought them about."""
        answers = rlplat.get([server.latest.remote() for server in self.servers])
        assert None not in answers, (
            "parameter servers are given their first weights before anybody asks for them"
        )
        return self._together(answers)

    def latest_ref(self) -> ObjectRef:
        """A ref to (version of the first server, weights): pinned, and not passing through the caller."""
        answers = [server.latest.remote() for server in self.servers]
        if len(answers) == 1:
            return answers[0]
        return rlplat.remote(_join_answers).remote(self._parts, self._shapes, *answers)

    def set_weights(self, version: int, weights: Weights) -> None:
        pieces = split(weights, self._parts)
        rlplat.get([s.set_weights.remote(version, p) for s, p in zip(self.servers, pieces, strict=True)])

    def apply_gradients(
        self,
        gradients: Weights | None,
        versions: Versions,
        *,
        learning_rate: float,
        report: UpdateReport | None = None,
        obs_moments: ObsMoments | None = None,
    ) -> tuple[Versions, Weights]:
        """Every server gets its part, the first one the report and the moments as well; fresh weights from all.

        Each decides by its own version whether its part is too old, so a gradient may be dropped in part.
        """
        nothing: list[Weights | None] = [None] * len(self.servers)
        pieces = nothing if gradients is None else split(gradients, self._parts)
        answers: list[ObjectRef] = []
        for server, piece, version in zip(self.servers, pieces, versions, strict=True):
            extras = {} if answers else {"report": report, "obs_moments": obs_moments}
            answers.append(
                server.apply_gradients.remote(piece, version, learning_rate=learning_rate, **extras)
            )
        return self._together(rlplat.get(answers))

    def take_report(self) -> UpdateReport:
        """Of the first server, to which all reports go. Raises as `require_alive` does."""
        try:
            report: UpdateReport = rlplat.get(self.servers[0].take_report.remote())
        except ActorDied:
            self.require_alive()
            raise
        return report

    def require_alive(self) -> None:
        """Nobody else has what a parameter server had: its death ends the run, in words."""
        for index, server in enumerate(self.servers):
            try:
                rlplat.get(server.version.remote())
            except RlplatError as death:
                raise ActorDied(
                    f"parameter server {index} of {len(self.servers)} died, and what was learnt since the last "
                    f"checkpoint with it ({death}). Go on from there: rlplat train --resume RUN_DIRECTORY"
                ) from death

    def get_state(self) -> dict[str, Any]:
        """All servers' states as one: another number of servers can go on with it."""
        states: list[dict[str, Any]] = rlplat.get([server.get_state.remote() for server in self.servers])
        slots = {}
        for slot in states[0]["optimizer"]["slots"]:
            slots[slot] = self._join_slot([state["optimizer"]["slots"][slot] for state in states])
        return {
            "versions": [state["version"] for state in states],
            "weights": join([state["weights"] for state in states], self._parts, self._shapes),
            "optimizer_steps": [state["optimizer"]["steps"] for state in states],
            "optimizer_slots": slots,
            "obs_statistics": states[0]["obs_statistics"],
            "ledger": states[0]["ledger"],
        }

    def _join_slot(self, arrays: Sequence[Weights]) -> Weights:
        """A server that has not stepped yet, or has no part, has no statistics: zeros, with which they begin."""
        if not any(arrays):
            return {}
        zeros = {name: np.zeros(shape, np.float32) for name, shape in self._shapes.items()}
        known = [whole | by_key for whole, by_key in zip(split(zeros, self._parts), arrays, strict=True)]
        return join(known, self._parts, self._shapes)

    @staticmethod
    def acting_weights(state: dict[str, Any]) -> Weights:
        """The weights in what `get_state` returned, with the observation statistics that belong to them."""
        weights: Weights = dict(state["weights"])
        statistics = state["obs_statistics"]
        if statistics is not None and statistics["count"] >= MIN_OBS:
            weights[OBS_MEAN] = np.asarray(statistics["mean"], np.float32)
            weights[OBS_VAR] = np.asarray(statistics["var"], np.float32)
        return weights

    def set_state(self, state: dict[str, Any]) -> None:
        """Where there are more or fewer servers than were saved, the highest version and count hold for all."""
        num_servers = len(self.servers)
        versions, steps = state["versions"], state["optimizer_steps"]
        if len(versions) != num_servers:
            versions, steps = [max(versions)] * num_servers, [max(steps)] * num_servers
        slots: dict[str, list[Weights]] = {
            slot: split(arrays, self._parts) if arrays else [{} for _ in self.servers]
            for slot, arrays in state["optimizer_slots"].items()
        }
        weights = split(state["weights"], self._parts)
        states = [
            {
                "version": versions[i],
                "weights": weights[i],
                "optimizer": {
                    "slots": {slot: arrays[i] for slot, arrays in slots.items()},
                    "steps": steps[i],
                },
                "obs_statistics": None if i else state["obs_statistics"],
                "ledger": None if i else state["ledger"],
            }
            for i in range(num_servers)
        ]
        rlplat.get([s.set_state.remote(each) for s, each in zip(self.servers, states, strict=True)])

    def _together(self, answers: Sequence[tuple[int, Weights]]) -> tuple[Versions, Weights]:
        versions = tuple(version for version, _ in answers)
        return versions, join([weights for _, weights in answers], self._parts, self._shapes)


def _join_answers(
    parts: list[list[Piece]], shapes: Shapes, *answers: tuple[int, Weights]
) -> tuple[int, Weights]:
    return answers[0][0], join([weights for _, weights in answers], parts, shapes)
