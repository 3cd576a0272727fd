"""`ray.tune.schedulers`: Ray's names and arguments, rlplat's trial schedulers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rlplat import tune
from rlplat.compat.ray.refusals import check
from rlplat.compat.ray.tune.space import is_domain
from rlplat.errors import ConfigError, OptionError

__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "HyperBandScheduler",
    "MedianStoppingRule",
]
__all__ += ["PB2", "PopulationBasedTraining", "TrialScheduler"]
NUM_DRAWS = 256
"""Of a mutation that is a function: what they span is the parameter's range."""
_NO_EFFECT = ("hard_stop", "require_attrs")
"""Changes are in log.txt, and a report without the metric is an error in any case."""
Opened = tuple[Any, dict[str, Any], Callable[[], dict[str, Any]]]
"""(rlplat's scheduler, the space, what a trial begins with instead of a draw)."""


class TrialScheduler:
    """metric, mode: what trials are judged by; reward_attr: a metric whose mode is max, of before 2019."""

    kind: Any
    arguments: Mapping[str, tuple[str, Any]]
    """Ray's name: ours, Ray's default."""
    time_attr = "training_iteration"

    def __init__(self, **given: Any) -> None:
        name = type(self).__name__
        self.time_attr = given.pop("time_attr", self.time_attr)
        reward_attr = given.pop("reward_attr", None)
        self.metric = given.pop("metric", None)
        self.mode = given.pop("mode", None) or ("max" if reward_attr else None)
        if self.metric and reward_attr:
            raise OptionError(f"{name}(metric=, reward_attr=): reward_attr is the old name; give one of them")
        self.metric = self.metric or reward_attr
        self.settings = {ours: given.pop(ray, default) for ray, (ours, default) in self.arguments.items()}
        given.pop("log_config", None)  # each change is in log.txt
        if given.get("brackets") == 1:
            del given["brackets"]
        instead = {
            "brackets": "HyperBandScheduler has brackets",
            "stop_last_trials": "a trial ends at max_t",
            "min_time_slice": "trials are stopped, not paused",
            "custom_explore_fn": "a function in hyperparam_mutations draws a new value",
        }
        check(name, given, instead | dict.fromkeys(self.arguments, ""), _NO_EFFECT)
        most = self.settings.get("max_progress")
        self.stop = {} if most is None else {self.time_attr: float(most)}

    def opened(self, space: dict[str, Any]) -> Opened:
        return self.kind(unit=self.time_attr, **self.settings), space, dict


class FIFOScheduler(TrialScheduler):
    arguments = {}

    def opened(self, space: dict[str, Any]) -> Opened:
        return tune.FIFO(), space, dict


class AsyncHyperBandScheduler(TrialScheduler):
    kind = tune.ASHA
    arguments = {
        "max_t": ("max_progress", 100),
        "grace_period": ("min_progress", 1),
        "reduction_factor": ("reduction_factor", 4),
    }


ASHAScheduler = AsyncHyperBandScheduler


class HyperBandScheduler(TrialScheduler):
    kind = tune.HyperBand
    arguments = {"max_t": ("max_progress", 81), "reduction_factor": ("reduction_factor", 3)}


class MedianStoppingRule(TrialScheduler):
    kind, time_attr = tune.MedianStopping, "time_total_s"
    arguments = {"grace_period": ("min_progress", 60.0), "min_samples_required": ("min_trials", 3)}

    def opened(self, space: dict[str, Any]) -> Opened:
        return tune.MedianStopping(unit=self.time_attr, period=1.0, **self.settings), space, dict


class PopulationBasedTraining(TrialScheduler):
    kind, time_attr = tune.PBT, "time_total_s"
    arguments = {
        "perturbation_interval": ("perturbation_period", 60.0),
        "burn_in_period": ("burn_in", 0.0),
        "quantile_fraction": ("quantile", 0.25),
        "resample_probability": ("resample_probability", 0.25),
        "perturbation_factors": ("perturb_factors", (1.2, 0.8)),
        "synch": ("synch", False),
        "hyperparam_mutations": ("mutations", None),
    }

    def opened(self, space: dict[str, Any]) -> Opened:
        """A mutated parameter that is a constant, or computed, becomes one of the space's; trials begin with it."""
        settings = {**self.settings, "mutations": {}}
        begins: dict[str, Callable[[Any], Any]] = {}
        for name, how in _flat(self.settings["mutations"] or {}).items():
            *outer, last = name.split(".")
            place = space
            for key in outer:
                place[key] = place = dict(place.get(key, {}))
            own = place.get(last)
            is_function = callable(how) and not is_domain(how)
            settings["mutations"][name] = self._explorer(how) if is_function else how
            computes = getattr(own, "function", None)
            if computes is None and is_domain(own):
                continue
            if own is not None:
                begins[name] = computes or (lambda config, own=own: own)
            drawn = [how() for _ in range(NUM_DRAWS)] if is_function else how
            try:
                place[last] = _domain_of(drawn, [begins[name](_constants(space))] if own is not None else [])
            except ConfigError:
                raise
            except Exception as error:
                raise OptionError(
                    f"config {name} is computed from what is drawn, and it is mutated: give it a domain ({error})"
                ) from error
        if not settings["mutations"]:
            raise OptionError("PopulationBasedTraining needs hyperparam_mutations={'lr': [1e-3, 1e-2], ...}")
        scheduler = self.kind(unit=self.time_attr, **settings)
        return scheduler, space, lambda: {name: begin(_constants(space)) for name, begin in begins.items()}

    def _explorer(self, draw: Callable[[], Any]) -> Callable[[Any, Any], Any]:
        def explored(value: Any, rng: Any) -> Any:
            if rng.random() < self.settings["resample_probability"] or not isinstance(value, int | float):
                return draw()
            return type(value)(value * rng.choice(self.settings["perturb_factors"]))

        return explored


class PB2(PopulationBasedTraining):
    kind = tune.PB2
    arguments = {
        "perturbation_interval": ("perturbation_period", 60.0),
        "quantile_fraction": ("quantile", 0.25),
        "synch": ("synch", False),
        "hyperparam_bounds": ("mutations", None),
    }

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        bounds = self.settings["mutations"] or {}
        self.settings["mutations"] = {name: tune.uniform(low, high) for name, (low, high) in bounds.items()}


def _flat(mutations: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, how in mutations.items():
        flat |= _flat(how, f"{prefix}{name}.") if isinstance(how, Mapping) else {f"{prefix}{name}": how}
    return flat


def _constants(space: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in space.items() if not is_domain(value)}


def _domain_of(how: Any, begins: list[Any]) -> Any:
    """Which values a parameter may have: those of its mutation, and what it begins with."""
    if is_domain(how):
        return how
    values = [*begins, *how]
    if len(how) < NUM_DRAWS or not all(isinstance(value, int | float) for value in values):
        return tune.choice(list(dict.fromkeys(values)))
    if all(isinstance(value, int) for value in values):
        return tune.randint(int(min(values)), int(max(values)) + 1)
    return tune.uniform(float(min(values)), math.nextafter(float(max(values)), math.inf))
