"""Numbers that an environment tells in `info`, one per episode: those that `env_metrics` names, and all of
`info["metrics"]`.

metrics = InfoMetrics(["success", "fuel:sum"])
metrics.add({"success": False, "fuel": 2, "metrics": {"height": 0.5}})      # the info of every step
metrics.add({"success": True, "fuel": 3})
metrics.pop()                                       # {"height": 0.5, "success": 1.0, "fuel": 5.0}, at the end

Infos of `step()` count, those of `reset()` do not. A number that is not finite, and None, count as not told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array

GROUP = "metrics"
"""The key of an info under which everything numeric is taken, named or not."""
OF_EPISODES = "episode_metrics"
"""The key under which our own loops tell those of the episodes that ended: a list of dicts, one per environment."""
REDUCTIONS = ("last", "sum")


class NotANumber(Exception):
    """A value that `env_metrics` names is none; the text says which."""


def split_reduction(spelled: str) -> tuple[str, str]:
    """`fuel:sum` -> ("fuel", "sum"); without a colon the last value counts."""
    name, colon, reduction = spelled.rpartition(":")
    return (name, reduction) if colon else (spelled, "last")


def as_spelled(given: Any) -> list[str]:
    """What a user may give for `env_metrics`, each as `name` or `name:sum`; ValueError says what is wrong."""
    if isinstance(given, str):
        given = [part.strip() for part in given.split(",") if part.strip()]
    if isinstance(given, Mapping):
        given = [given] if "name" in given else [{name: reduction} for name, reduction in given.items()]
    if not isinstance(given, list | tuple):
        raise ValueError(f"{given!r} is no list of names")
    spelled = [_spelled(each) for each in given]
    names = [split_reduction(each)[0] for each in spelled]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"'{twice[0]}' is named twice; each number has one value per episode: last or sum")
    return spelled


def _spelled(each: Any) -> str:
    if isinstance(each, Mapping) and "name" in each and set(each) <= {"name", "reduce"}:
        name, reduction = each["name"], each.get("reduce", "last")
    elif isinstance(each, Mapping) and len(each) == 1:
        [(name, reduction)] = each.items()
    elif isinstance(each, str):
        name, reduction = split_reduction(each)
    else:
        raise ValueError(f"{each!r} names no number of info; write success, fuel:sum or {{name: fuel, reduce: sum}}")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{each!r} has no name; write success or fuel:sum")
    if reduction not in REDUCTIONS:
        raise ValueError(f"'{name}' is reduced by last or sum, not by {reduction!r}; write {name} or {name}:sum")
    return f"{name}:{reduction}" if reduction != "last" or ":" in name else name


class InfoMetrics:
    """Of one environment."""

    def __init__(self, asked: Sequence[str] = ()) -> None:
        """asked: as in the setting; `a/b` is info["a"]["b"] where there is no key "a/b"."""
        reductions = dict(map(split_reduction, asked))
        self.is_asked = bool(asked)
        self._names = tuple(reductions)
        self._sums = {name for name, reduction in reductions.items() if reduction == "sum"}
        self._values: dict[str, float] = {}

    @property
    def roots(self) -> set[str]:
        """Keys of an info that matter."""
        return {GROUP, *self._names, *(name.partition("/")[0] for name in self._names)}

    def reset(self) -> None:
        self._values = {}

    def add(self, info: Mapping[str, Any]) -> None:
        """The info of one step. NotANumber where a named value is something else."""
        found: dict[str, float | None] = {}
        group = info.get(GROUP)
        if isinstance(group, Mapping):
            found = {name: number_of(value) for name, value in _leaves(group)}
        for name in self._names:
            value = _value_at(info, name)
            if value is None and isinstance(group, Mapping):
                value = _value_at(group, name)
            if value is None:
                continue
            found[name] = number_of(value)
            if found[name] is None:
                raise NotANumber(
                    f"info['{name}'] is {repr(value)[:60]} ({type(value).__name__}), but env_metrics names it, which "
                    "takes numbers and bools; put a number there, or leave the name out"
                )
        values = self._values
        for name, number in found.items():
            if number is not None and math.isfinite(number):
                values[name] = values.get(name, 0.0) + number if name in self._sums else number

    def pop(self) -> dict[str, float]:
        """Those of the episode that ended."""
        values, self._values = self._values, {}
        return values

    def get_state(self) -> dict[str, float]:
        return dict(self._values)

    def set_state(self, state: Mapping[str, float]) -> None:
        self._values = {str(name): float(value) for name, value in state.items()}


class VectorInfoMetrics:
    """Of many environments that step as one and tell their infos in gymnasium's form: an array per key, and a mask
    `_key` that says which environments have it (all of them where there is no mask)."""

    def __init__(self, asked: Sequence[str], num_envs: int, *, resets_in_step: bool) -> None:
        """resets_in_step: SAME_STEP, where an episode's last info is in "final_info" and `info` is that of reset()."""
        self.each = [InfoMetrics(asked) for _ in range(num_envs)]
        self._roots = self.each[0].roots
        self._resets_in_step = resets_in_step

    def reset(self) -> None:
        for each in self.each:
            each.reset()

    def add(self, info: Mapping[str, Any], ended: Array, resetting: Array | None) -> None:
        """ended: bool[B], whose episode this step ended; resetting: bool[B], who only reset itself in it (None:
        nobody). NotANumber has the environment's index as its second argument."""
        final = info.get("final_info")
        for b, metrics in enumerate(self.each):
            if resetting is not None and resetting[b]:
                continue
            source: Any = info
            if self._resets_in_step and ended[b]:
                if final is None:
                    continue
                source = final
            try:
                metrics.add(row_of(source, b, self._roots))
            except NotANumber as problem:
                problem.args = (str(problem), b)
                raise


def row_of(infos: Any, index: int, roots: Iterable[str] | None = None) -> dict[str, Any]:
    """The info of one environment, of the infos of all; roots: only these keys."""
    if not isinstance(infos, Mapping):  # gymnasium's form of before 1.0: an array of dicts and None
        return infos[index] or {}
    row = {}
    for key in infos if roots is None else roots:
        if key not in infos or (key[:1] == "_" and key[1:] in infos):
            continue
        mask = infos.get(f"_{key}")
        if mask is not None and not mask[index]:
            continue
        value = infos[key]
        if isinstance(value, Mapping):
            value = row_of(value, index)
        elif isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
            value = value[index]
        row[key] = value
    return row


def number_of(value: Any) -> float | None:
    """A bool (0 or 1), a number of Python or numpy, an array of one of them; None of anything else."""
    if value.__class__ not in (float, int, bool):
        try:
            array = np.asarray(value)
        except Exception:  # whatever an object does there
            return None
        if array.size != 1 or array.dtype.kind not in "fiub":
            return None
        value = array.item()
    try:
        return float(value)
    except OverflowError:
        return math.inf


def numbers_of(info: Mapping[Any, Any]) -> set[str]:
    """The names of the numbers in an info, those of inner dicts as `a/b`."""
    return {name.removeprefix(f"{GROUP}/") for name, value in _leaves(info) if number_of(value) is not None}


def episode_means(
    metrics: Iterable[Mapping[str, float]], prefix: str = "env/", suffix: str = "_mean"
) -> dict[str, float]:
    """`env/success_mean` and so on: each over the episodes that have it."""
    by_name: dict[str, list[float]] = {}
    for each in metrics:
        for name, value in each.items():
            by_name.setdefault(name, []).append(value)
    return {f"{prefix}{name}{suffix}": math.fsum(values) / len(values) for name, values in by_name.items()}


def _leaves(group: Mapping[Any, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in group.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}/")
        else:
            yield f"{above}{key}", value


def _value_at(info: Any, name: str) -> Any:
    """info["a/b"], else info["a"]["b"]; None where there is neither."""
    if name in info:
        return info[name]
    head, slash, rest = name.partition("/")
    inner = info.get(head) if slash else None
    return _value_at(inner, rest) if isinstance(inner, Mapping) else None
