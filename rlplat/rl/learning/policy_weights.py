"""The weights of one policy or of several as one dict, and in the state that learners leave in a checkpoint.

Those of several are `<policy>/<name>`; those of one have the names of its network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlplat.rl.interfaces import Weights


def join_weights(
    names: Sequence[str], trained: Sequence[str], *latest: tuple[int, Weights]
) -> tuple[int, Weights]:
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
