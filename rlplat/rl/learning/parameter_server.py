"""`ParameterServer`: the newest weights, by version, for whoever is behind; it can also apply gradients itself.
`ParameterClient` is how those who send it gradients speak to it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import rlplat
from rlplat.errors import ActorDied, CheckpointError, RlplatError
from rlplat.rl.interfaces import Array, Episode, Obs, UpdateReport, Weights
from rlplat.rl.learning.numpy_learning import Optimizer
from rlplat.rl.normalization import (
    LEAST_PIXEL_VAR,
    OBS_MEAN,
    OBS_VAR,
    ObsNormalizer,
    RunningMeanVar,
    measured,
    moments,
)
from rlplat.rl.obs_tree import take_obs

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef


MIN_OBS = 1_000
"""Observations before statistics of them are given out: one fragment has some tens, neighbours in time, in which a
feature may be constant that is not (its deviation would be 0, and its first change ten deviations)."""


class ObsMoments(NamedTuple):
    """Mean, (population) variance and number of the observations that a worker has seen since its last gradient."""

    mean: Array
    var: Array
    num_obs: int

    @classmethod
    def of(cls, obs: Obs, valid: Array, normalizer: ObsNormalizer) -> ObsMoments:
        """obs: [T, B, ...]; valid: bool[T, B], those that count, some; normalizer: which their statistics are for."""
        elements = measured(take_obs(obs, valid), normalizer.leaves)
        mean, var = moments(elements)
        if elements.dtype == np.uint8:  # merged variances are no less than the least
            var = np.maximum(var, LEAST_PIXEL_VAR)
        return cls(mean, var, len(elements))


class ParameterServer:
    """An actor that keeps one set of weights; versions only go up.

    parameter_server.set_weights.remote(version, weights)                     # the learner
    newer = get(parameter_server.latest.remote(my_version))                   # a rollout worker
    if newer is not None:
        my_version, weights = newer

    With an optimizer it applies gradients as they come, whoever sends them, under statistics that all share (Mnih et
    al. 2016, "Shared RMSProp"); the answer goes to the sender alone:

    version, weights = get(server.apply_gradients.remote(gradients, version, learning_rate=7e-4, report=report))

    The weights it returns are its own, changed in place by the next gradient: as an actor's results they are copies.
    """

    def __init__(self, optimizer: Optimizer | None = None, max_staleness: int | None = None) -> None:
        """max_staleness: a gradient computed more than this many versions ago is dropped; None: none is."""
        self._optimizer = optimizer
        self._max_staleness = max_staleness
        self._version = -1
        self._weights: Weights = {}
        self._ledger = UpdateLedger()
        self._obs_statistics: RunningMeanVar | None = None

    def latest(self, than_version: int = -1) -> tuple[int, Weights] | None:
        """(version, weights) if newer `than_version`, else None: nothing travels to those who are up to date."""
        return (self._version, self._current()) if self._version > than_version else None

    def version(self) -> int:
        """The version held; -1 before the first."""
        return self._version

    def set_weights(self, version: int, weights: Weights) -> bool:
        """Take newer weights; False, and nothing changes, for a version that is not newer (late or repeated)."""
        if version <= self._version:
            return False
        self._version, self._weights = version, weights
        if self._optimizer is not None:
            # What came through shared memory is read-only, and these are about to change in place.
            self._weights = {name: np.array(array, np.float32) for name, array in weights.items()}
        return True

    def apply_gradients(
        self,
        gradients: Weights | None,
        version: int,
        *,
        learning_rate: float,
        report: UpdateReport | None = None,
        obs_moments: ObsMoments | None = None,
    ) -> tuple[int, Weights]:
        """One step of the optimizer, unless the gradient is too old; (version, weights) as they are now.

        gradients: of every weight, computed on the weights of `version`; None: there is nothing to apply (they were not
        finite), and only the report and fresh weights matter. Staleness = the version now - `version`.
        """
        assert self._optimizer is not None, "this parameter server was made without an optimizer"
        staleness = self._version - version
        if staleness < 0:
            raise ValueError(f"gradients of version {version} came to a parameter server that has only {self._version}")
        is_too_old = self._max_staleness is not None and staleness > self._max_staleness
        if gradients is not None and not is_too_old:
            if gradients.keys() != self._weights.keys():
                raise ValueError(
                    f"gradients do not fit the weights: only one of them has "
                    f"{sorted(gradients.keys() ^ self._weights.keys())}"
                )
            self._optimizer.step(self._weights, gradients, learning_rate)
            self._version += 1
        if obs_moments is not None:
            if self._obs_statistics is None:
                self._obs_statistics = RunningMeanVar(obs_moments.mean.shape)
            self._obs_statistics.merge(*obs_moments)
        self._ledger.add(staleness, is_dropped=is_too_old, is_skipped=gradients is None, report=report)
        return self._version, self._current()

    def take_report(self) -> UpdateReport:
        """What the reports that came with gradients add up to since the last call of this."""
        return self._ledger.take()

    def get_state(self) -> dict[str, Any]:
        return {
            "version": self._version,
            "weights": dict(self._weights),
            "optimizer": self._optimizer.get_state() if self._optimizer is not None else None,
            "obs_statistics": self._obs_statistics.get_state() if self._obs_statistics is not None else None,
            "beside": self._beside(),
            "ledger": self._ledger.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called, under the same version."""
        self._version = -1
        self.set_weights(int(state["version"]), state["weights"])
        if self._optimizer is not None:
            self._optimizer.set_state(state["optimizer"])
        self._obs_statistics = None
        if state["obs_statistics"] is not None:
            self._obs_statistics = RunningMeanVar()
            self._obs_statistics.set_state(state["obs_statistics"])
        self._ledger = UpdateLedger()
        if state["ledger"] is not None:
            self._ledger.set_state(state["ledger"])

    def _current(self) -> Weights:
        """The weights and, with them, the statistics that observations are to be normalised with."""
        beside = self._beside()
        return self._weights | beside if beside else self._weights

    def _beside(self) -> Weights:
        if self._obs_statistics is None or self._obs_statistics.count < MIN_OBS:
            return {}
        return {
            OBS_MEAN: self._obs_statistics.mean.astype(np.float32),
            OBS_VAR: self._obs_statistics.var.astype(np.float32),
        }


class UpdateLedger:
    """Adds up the reports of updates: nothing that was learnt from goes uncounted when a worker dies afterwards.

    Metrics are means over the updates that report them; `staleness_max` is the largest; `applied`, `dropped` (too old)
    and `skipped` (not finite) are counts.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._env_steps = 0
        self._episodes: list[Episode] = []
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._applied = self._dropped = self._skipped = self._max_staleness = 0

    def add(self, staleness: int, *, is_dropped: bool, is_skipped: bool, report: UpdateReport | None) -> None:
        self._dropped += is_dropped
        self._skipped += is_skipped and not is_dropped
        self._applied += not is_dropped and not is_skipped
        self._max_staleness = max(self._max_staleness, staleness)
        self._add_metric("learner/staleness_mean", staleness)
        if report is not None:
            self._env_steps += report.env_steps
            self._episodes += (Episode(*episode) for episode in report.episodes)
            for name, value in report.metrics.items():
                self._add_metric(name, value)

    def _add_metric(self, name: str, value: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + value
        self._counts[name] = self._counts.get(name, 0) + 1

    def take(self) -> UpdateReport:
        metrics = {name: total / self._counts[name] for name, total in self._sums.items()} | {
            "learner/staleness_max": self._max_staleness,
            "learner/applied_gradients": self._applied,
            "learner/dropped_gradients": self._dropped,
            "learner/skipped_gradients": self._skipped,
        }
        report = UpdateReport(self._env_steps, self._episodes, metrics)
        self._clear()
        return report

    def get_state(self) -> dict[str, Any]:
        return {
            "env_steps": self._env_steps,
            "episodes": [[e.episode_return, e.length, dict(e.metrics)] for e in self._episodes],
            "sums": dict(self._sums),
            "counts": dict(self._counts),
            "outcomes": [self._applied, self._dropped, self._skipped, self._max_staleness],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._env_steps = int(state["env_steps"])
        self._episodes = [Episode(float(r), int(length), *told) for r, length, *told in state["episodes"]]
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        self._applied, self._dropped, self._skipped, self._max_staleness = map(int, state["outcomes"])


Shapes = dict[str, tuple[int, ...]]
"""Of the parameters, by name."""
LINE = "line"
"""The name under which the server has all of them."""


class Line:
    """All elements of all parameters, in order of name, as one array, which travels faster than many."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = [(name, shapes[name]) for name in sorted(shapes)]

    def pack(self, arrays: Weights) -> Weights:
        """float32 by name -> {LINE: float32[all]}, a copy. Raises CheckpointError where one does not fit: the others
        would be shifted."""
        for name, shape in self._shapes:
            if name not in arrays or arrays[name].shape != shape:
                found = f"have shape {arrays[name].shape}" if name in arrays else "are not there"
                raise CheckpointError(f"weights {name!r} {found}, the network of the config has {shape}")
        return {LINE: np.concatenate([arrays[name].reshape(-1) for name, _ in self._shapes])}

    def unpack(self, packed: Weights) -> Weights:
        """What `pack` made one of, as views; what else comes with it (normaliser statistics) comes along."""
        line, start, whole = packed[LINE], 0, Weights()
        for name, shape in self._shapes:
            size = math.prod(shape)
            whole[name] = line[start : start + size].reshape(shape)
            start += size
        return whole | {name: array for name, array in packed.items() if name != LINE}


class ParameterClient:
    """The server as workers and the driver see it: weights by name, which travel as one `Line`.

    parameters = ParameterClient(server, shapes)
    version, weights = parameters.latest()
    version, weights = parameters.apply_gradients(gradients, version, learning_rate=7e-4, report=report)
    """

    def __init__(self, server: ActorHandle, shapes: Shapes) -> None:
        self.server = server
        self._line = Line(shapes)

    def latest(self) -> tuple[int, Weights]:
        """The newest weights, whoever brought them about."""
        version, packed = rlplat.get(self.server.latest.remote())
        return version, self._line.unpack(packed)

    def weights(self) -> ObjectRef:
        """A ref to (version, weights): pinned, and not passing through the caller."""
        return rlplat.remote(_unpacked).options(num_cpus=0).remote(self._line, self.server.latest.remote())

    def set_weights(self, version: int, weights: Weights) -> None:
        rlplat.get(self.server.set_weights.remote(version, self._line.pack(weights)))

    def apply_gradients(self, gradients: Weights | None, version: int, **more: Any) -> tuple[int, Weights]:
        """`ParameterServer.apply_gradients`."""
        packed = None if gradients is None else self._line.pack(gradients)
        version, fresh = rlplat.get(self.server.apply_gradients.remote(packed, version, **more))
        return version, self._line.unpack(fresh)

    def take_report(self) -> UpdateReport:
        """Raises as `require_alive` does."""
        try:
            report: UpdateReport = rlplat.get(self.server.take_report.remote())
        except ActorDied:
            self.require_alive()
            raise
        return report

    def require_alive(self) -> None:
        """Nobody else has what a parameter server had: its death ends the run, in words."""
        try:
            rlplat.get(self.server.version.remote())
        except RlplatError as death:
            raise ActorDied(
                f"the parameter server died, and what was learnt since the last checkpoint with it ({death}). Go on "
                "from there: rlplat train --resume RUN_DIRECTORY"
            ) from death

    def get_state(self) -> dict[str, Any]:
        """The server's, by name."""
        state: dict[str, Any] = rlplat.get(self.server.get_state.remote())
        optimizer = state.pop("optimizer")
        return {
            "versions": [state.pop("version")],
            "optimizer_steps": [optimizer["steps"]],
            "optimizer_slots": {
                slot: self._line.unpack(packed) if packed else {} for slot, packed in optimizer["slots"].items()
            },
            **state,
            "weights": self._line.unpack(state["weights"]),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Earlier versions saved several servers, each with its version: the highest one counts."""
        slots = {slot: self._line.pack(arrays) if arrays else {} for slot, arrays in state["optimizer_slots"].items()}
        own = {
            "version": max(state["versions"]),
            "weights": self._line.pack(state["weights"]),
            "optimizer": {"slots": slots, "steps": max(state["optimizer_steps"])},
            "obs_statistics": state["obs_statistics"],
            "ledger": state["ledger"],
        }
        rlplat.get(self.server.set_state.remote(own))


def _unpacked(line: Line, answer: tuple[int, Weights]) -> tuple[int, Weights]:
    return answer[0], line.unpack(answer[1])
