"""Running statistics that an environment keeps between its episodes, as gymnasium's NormalizeObservation does.

found = kept_statistics(env)            # {"NormalizeObservation.obs_rms": {"mean": ..., "var": ..., "count": ...}}
put_statistics(other_env, found)

Every copy of an environment measures for itself. Evaluation, play and resume are given the mean of all copies of the
training (`merged`), which travels beside the weights (`beside_weights`, `of_weights`).

What is looked for: attributes of the environment and its wrappers, and values in dicts there, that have `mean`, `var`
and `count`, as the RunningMeanStd of gymnasium, Stable-Baselines3 and CleanRL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlplat.rl.interfaces import Weights
from rlplat.rl.normalization import ENV_STATISTICS, RunningMeanVar

Statistics = dict[str, dict[str, Any]]
"""By place, "NormalizeObservation.obs_rms": mean and var float64[...], count a float."""
_PARTS = ("mean", "var", "count")


def layers(env: Any) -> Iterator[Any]:
    """The environment as it is given, then what each of its wrappers is around, to the innermost."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        inside = getattr(env, "__dict__", {})
        env = inside.get("env", inside.get("_env"))


def holders(env: Any) -> dict[str, Any]:
    """What keeps statistics, by place."""
    found: dict[str, Any] = {}
    for layer in layers(env):
        for name, value in getattr(layer, "__dict__", {}).items():
            for key, each in value.items() if isinstance(value, dict) else ((None, value),):
                if _is_holder(each):
                    place = f"{type(layer).__name__}.{name}" + ("" if key is None else f"[{key}]")
                    while place in found:
                        place += "'"  # two wrappers of one class
                    found[place] = each
    return found


def kept_statistics(env: Any) -> Statistics:
    return {
        place: {
            "mean": np.array(holder.mean, np.float64),
            "var": np.array(holder.var, np.float64),
            "count": float(holder.count),
        }
        for place, holder in holders(env).items()
    }


def put_statistics(env: Any, statistics: Statistics, share: float = 1.0) -> None:
    """share: of the observations that they count for."""
    for place, holder in holders(env).items():
        if place in statistics:
            _put(holder, statistics[place], share)


class Frozen:
    """Statistics that stay as they are, whatever the environment does with every observation."""

    def __init__(self, env: Any, statistics: Statistics) -> None:
        self._pairs = [(holder, statistics[place]) for place, holder in holders(env).items() if place in statistics]
        for layer in layers(env):
            if hasattr(type(layer), "update_running_mean"):
                layer.update_running_mean = False

    def restore(self) -> None:
        for holder, statistics in self._pairs:
            _put(holder, statistics, 1.0)


def merged(each: Sequence[Statistics]) -> Statistics:
    """Of several copies, weighted by what each has seen."""
    result: Statistics = {}
    for place in each[0] if each else ():
        running = RunningMeanVar()
        for statistics in each:
            if place in statistics and statistics[place]["count"] > 0:
                running.merge(*(statistics[place][part] for part in _PARTS))
        if running.count:
            result[place] = {"mean": running.mean, "var": running.var, "count": float(running.count)}
    return result


def beside_weights(statistics: Statistics) -> Weights:
    """As they travel with the weights that an evaluation acts with."""
    return {
        f"{ENV_STATISTICS}{place}.{part}": np.array(values[part])
        for place, values in statistics.items()
        for part in _PARTS
    }


def of_weights(weights: Weights) -> Statistics:
    """The other way round."""
    result: Statistics = {}
    for name, array in weights.items():
        if name.startswith(ENV_STATISTICS):
            place, _, part = name.removeprefix(ENV_STATISTICS).rpartition(".")
            result.setdefault(place, {})[part] = float(array) if part == "count" else np.array(array)
    return result


def told(places: Sequence[str]) -> str:
    """One line for the start of a run, or the empty string."""
    if not places:
        return ""
    settings = [
        setting
        for setting, word in (("normalize_observations", "Obs"), ("normalize_rewards", "Reward"))
        if any(word in place for place in places)
    ] or ["normalize_observations", "normalize_rewards"]
    rewards = (
        "; returns are those of the scaled rewards, in evaluations too"
        if any("Reward" in place for place in places)
        else ""
    )
    return (
        f"the environment keeps running statistics ({', '.join(places)}), each copy its own: evaluation, play and "
        f"resume are given those of all copies; rlplat.load, serve and export are not{rewards}. "
        f"{' and '.join(settings)}=true in place of the wrapper keeps them with the weights"
    )


def _is_holder(value: Any) -> bool:
    if isinstance(value, type) or not all(hasattr(value, part) for part in _PARTS):
        return False
    return not any(callable(getattr(value, part)) for part in _PARTS)


def _put(holder: Any, statistics: Mapping[str, Any], share: float) -> None:
    holder.mean, holder.var = np.array(statistics["mean"]), np.array(statistics["var"])
    holder.count = statistics["count"] * share
