"""Code of the user's at the events of a training (docs/callbacks.md).

class Plateau(Callback):
    def on_evaluation(self, algorithm, result):
        if result.metrics["eval/return_mean"] > 200:
            return "good enough"

rlplat train --algo ppo --env CartPole-v1 --callback ./plateau.py:Plateau
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlplat.errors import ConfigError, RlplatError
from rlplat.given.raised_at import raised_here
from rlplat.rl.class_path import made_of
from rlplat.rl.interfaces import Result


class Callback:
    """Override what you need. All of it runs in the driver, between two steps: what takes long holds the training up.

    What one raises ends the run as a failure does, with a checkpoint. `algorithm` has `config`, `weights()`,
    `evaluate(episodes)` and `get_state()`.
    """

    def on_start(self, algorithm: Any, directory: Path | None) -> None:
        """Before the first step, also of a run that is resumed; `directory` is that of the run, where it has one."""

    def on_result(self, algorithm: Any, result: Result) -> str | None:
        """After every step, before it is written down: `result.metrics["mine/x"] = 1.0` is written with the rest.

        A text ends the run: the reason, for its log.
        """

    def on_evaluation(self, algorithm: Any, result: Result) -> str | None:
        """When the metrics of an evaluation (`eval/return_mean`, ...) are among those of this result, before
        `on_result`; also of the evaluation at the end. A text ends the run."""

    def on_checkpoint(self, algorithm: Any, path: Path) -> None:
        """A checkpoint has been written there, whole."""

    def on_end(self, algorithm: Any, result: Result | None) -> None:
        """After the last step and its evaluation, also of a run that was interrupted or failed, while the actors live;
        `result` is the last one."""


class Callbacks:
    """Those of a run, in the order in which they were named; as one."""

    def __init__(self, named: Iterable[Any], objects: Iterable[Callback] = ()) -> None:
        """named: of the config, `./file.py:Class` or {`./file.py:Class`: {argument: value}}."""
        self._all = [*(_made(each) for each in named), *objects]
        self._last: Result | None = None

    @contextmanager
    def around(self, algorithm: Any, directory: Path | None) -> Iterator[Callbacks]:
        """From the run's start to its end."""
        self._call("on_start", algorithm, directory)
        try:
            yield self
        finally:
            self._call("on_end", algorithm, self._last)

    def on_result(self, algorithm: Any, result: Result, *, is_evaluated: bool) -> str:
        """Why the run is to end, or the empty string; `on_evaluation` comes first where `is_evaluated`."""
        self._last = result
        reason = self.on_evaluation(algorithm, result) if is_evaluated else ""
        return self._call("on_result", algorithm, result) or reason

    def on_evaluation(self, algorithm: Any, result: Result) -> str:
        return self._call("on_evaluation", algorithm, result)

    def on_checkpoint(self, algorithm: Any, path: Path) -> None:
        self._call("on_checkpoint", algorithm, path)

    def _call(self, event: str, *arguments: Any) -> str:
        """Tell all of them; the first reason to end the run."""
        reasons = []
        for callback in self._all:
            name = type(callback).__name__
            try:
                answer = getattr(callback, event)(*arguments)
            # sys.exit() too: it would lose what was learnt, with exit code 0.
            except (Exception, SystemExit) as error:
                raised = f"{type(error).__name__}: {error}{raised_here(error)}"
                raise RlplatError(f"{event}() of the callback {name} raised {raised}") from error
            if not isinstance(answer, str | None):
                raise ConfigError(
                    f"{event}() of the callback {name} returned {answer!r}; it returns nothing, or a text that says "
                    "why the run is to end"
                )
            reasons += [f"{name}: {answer}"] if answer else []
            if event in ("on_result", "on_evaluation"):
                _make_plain(arguments[1].metrics, f"{event}() of the callback {name}")
        return reasons[0] if reasons else ""


def _make_plain(metrics: dict[str, Any], writer: str) -> None:
    """Arrays and tensors of one number become that number: metrics are in files, and in every checkpoint."""
    for key, value in metrics.items():
        if isinstance(value, float | int | str | None):
            continue
        try:
            metrics[key] = value.item()
        except (AttributeError, ValueError, RuntimeError):
            raise ConfigError(
                f"{writer} wrote a {type(value).__name__} as the metric '{key}'; a metric is one number (or a text)"
            ) from None


def _made(named: Any) -> Callback:
    name, callback = made_of(named, "callbacks")
    if isinstance(callback, Callback):
        return callback
    raise ConfigError(
        f"callbacks: {name} made a {type(callback).__name__}; a callback is a subclass of rlplat.rl.callbacks.Callback"
    )
