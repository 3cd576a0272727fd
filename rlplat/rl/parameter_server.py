"""`ParameterServer`: the newest weights, by version, for whoever is behind."""

from __future__ import annotations

from rlplat.rl.interfaces import Weights


class ParameterServer:
    """An actor that keeps one set of weights; versions only go up.

    parameter_server.set_weights.remote(version, weights)                     # the learner
    newer = get(parameter_server.latest.remote(my_version))                   # a rollout worker
    if newer is not None:
        my_version, weights = newer
    """

    def __init__(self) -> None:
        self._version = -1
        self._weights: Weights = {}

    def latest(self, than_version: int = -1) -> tuple[int, Weights] | None:
        """(version, weights) if newer `than_version`, else None: nothing travels to those who are up to date."""
        return (self._version, self._weights) if self._version > than_version else None

    def version(self) -> int:
        """The version held; -1 before the first."""
        return self._version

    def set_weights(self, version: int, weights: Weights) -> bool:
        """Take newer weights; False, and nothing changes, for a version that is not newer (late or repeated)."""
        if version <= self._version:
            return False
        self._version, self._weights = version, weights
        return True
