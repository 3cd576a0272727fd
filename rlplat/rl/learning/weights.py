"""Weights outside their network: those of one policy or of several as one dict, in the state that learners leave in a
checkpoint, and given from elsewhere (`Algorithm.set_weights`): do they fit, and what is taken?

Those of several policies are `<policy>/<name>`; those of one have the names of its network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlplat.errors import CheckpointError
from rlplat.rl.interfaces import Weights
from rlplat.rl.normalization import ENV_STATISTICS, OBS_MEAN, OBS_VAR
from rlplat.rl.policies.exploration import EPSILON

CARRIED_OBSERVATIONS = 100_000
"""As many observations do statistics count for that came with weights: enough to hold at first, few enough to move."""

_BESIDE = (OBS_MEAN, OBS_VAR, EPSILON)
"""Travels inside weights, and is no parameter of the network."""


def require_fitting(own: Weights, given: Weights, *, normalizes: bool) -> None:
    """Raises CheckpointError with a line for every leaf that differs.

    own: what the algorithm acts with now; given: what is to take its place; normalizes: whether it normalises
    observations.
    """
    ours, theirs = _network(own), _network(given)
    lines = [
        f"{name} is missing there, and has shape {_shape(array)} here"
        for name, array in ours.items()
        if name not in theirs
    ]
    lines += [
        f"{name} has shape {_shape(array)} there, and {_shape(ours[name])} here"
        if name in ours
        else f"{name} has shape {_shape(array)} there, and is missing here"
        for name, array in theirs.items()
        if name not in ours or array.shape != ours[name].shape
    ]
    if any(_leaf(name) == OBS_MEAN for name in given) != normalizes:
        there, here = ("false", "true") if normalizes else ("true", "false")
        lines.append(f"normalize_observations is {there} there, and {here} here")
    lines += [f"{name} holds NaN or infinity" for name, array in given.items() if not np.isfinite(array).all()]
    if lines:
        listed = "".join(f"\n  - {line}" for line in lines)
        raise CheckpointError(f"the weights do not fit this network; use the same policy settings:{listed}")


def network_weights(weights: Weights) -> Weights:
    """Without normaliser statistics and exploration."""
    return {name: np.array(array, np.float32) for name, array in _network(weights).items()}


def carried_statistics(weights: Weights) -> dict[str, Any] | None:
    """The normaliser statistics in weights as `RunningMeanVar.set_state` takes them; None where there are none."""
    if OBS_MEAN not in weights:
        return None
    mean, var = (np.array(weights[name], np.float64) for name in (OBS_MEAN, OBS_VAR))
    return {"mean": mean, "var": var, "count": CARRIED_OBSERVATIONS}


def given_to(learner: dict[str, Any], weights: Weights, keys: Sequence[str] = ("weights",)) -> dict[str, Any]:
    """A learner's state with these weights, under all these keys, and the statistics that came with them, in the place
    of its own. They act from the first step on (`ContinuousLearner`)."""
    given = {key: network_weights(weights) for key in keys}
    return learner | given | {"obs_statistics": carried_statistics(weights), "acts_from_start": True}


def _network(weights: Weights) -> Weights:
    return {
        name: array
        for name, array in weights.items()
        if _leaf(name) not in _BESIDE and not name.startswith(ENV_STATISTICS)
    }


def _leaf(name: str) -> str:
    """Without the policy's name, where there are several."""
    return name.rpartition("/")[2]


def _shape(array: Any) -> str:
    return str(list(array.shape))


def join_weights(names: Sequence[str], trained: Sequence[str], *latest: tuple[int, Weights]) -> tuple[int, Weights]:
    """(the newest version of a trained policy, weights of all as `<policy>/<name>`)."""
    version = max(each[0] for name, each in zip(names, latest, strict=True) if name in trained)
    return version, {
        f"{name}/{key}": array
        for name, (_, weights) in zip(names, latest, strict=True)
        for key, array in weights.items()
    }


def split_weights(weights: Weights) -> dict[str, Weights]:
    """The other way round: {policy: weights}."""
    by_policy: dict[str, Weights] = {}
    for path, array in weights.items():
        name, _, key = path.partition("/")
        by_policy.setdefault(name, {})[key] = array
    return by_policy


def put_weights_in_state(
    state: dict[str, Any], weights: Weights, put: Callable[[dict[str, Any], Weights], dict[str, Any]]
) -> dict[str, Any]:
    """The other way round than `weights_in_state`: a state with these; put: (one learner's state, its weights)."""
    if "policies" not in state:
        return put(state, weights)
    by_policy = split_weights(weights)
    pool = state["opponent_pool"]
    if pool:
        newest = {**pool["snapshots"][-1], "weights": by_policy[state["opponent"]]}
        pool = {**pool, "snapshots": [*pool["snapshots"][:-1], newest]}
    return state | {
        "policies": {name: put(each, by_policy[name]) for name, each in state["policies"].items()},
        "frozen": {name: by_policy[name] for name in state["frozen"]},
        "opponent_pool": pool,
    }


def acting_weights(learner: dict[str, Any]) -> Weights:
    """What acts, in the state of a `Learner`."""
    names = ("beside", "obs_weights", "exploration")  # the last two of earlier versions
    weights: Weights = learner["weights"] | next((learner[name] for name in names if name in learner), {})
    return weights


def weights_in_state(state: dict[str, Any]) -> Weights:
    """All policies' weights in `PolicyRings.get_state()`, joined; of one learner's state its own."""
    if "policies" not in state:
        return acting_weights(state)
    by_policy = {name: acting_weights(each) for name, each in state["policies"].items()} | state["frozen"]
    joined = {f"{name}/{key}": array for name, weights in by_policy.items() for key, array in weights.items()}
    if state["opponent_pool"]:
        newest: Weights = state["opponent_pool"]["snapshots"][-1]["weights"]
        joined |= {f"{state['opponent']}/{key}": array for key, array in newest.items()}
    return joined
