"""A trainer as a trainable of `tune`: a trial holds its ranks, and is saved with their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def trainable_of(trainer: Callable[..., Any], form: tuple[Any, ...], settings: Mapping[str, Any]) -> Any:
    """A generator function f(config, report) for `tune.run`; trainer: the class, with its arguments but the config."""
    base = dict(settings)
    config_of_all = dict(base.pop("config", {}))

    def trial(config: dict[str, Any], report: Any) -> Iterator[Any]:
        # A trial whose ranks are lost is tune's to repeat, from its last checkpoint.
        own = {"seed": report.seed, **base, "max_failures": 0}
        one = trainer(*form, config={**config_of_all, **config}, **own)
        if one.train_loop is not None:
            for each in one.reports(one.config, report.checkpoint, report.step):
                yield each.metrics if each.state is None else (each.metrics, each.state)
            return
        with one:
            if report.checkpoint is not None:
                one.load_encoded(report.checkpoint)
            while True:
                stats = one.train()
                if one.has_validation():
                    stats |= one.validate()
                yield stats, one.current_state()

    return trial
