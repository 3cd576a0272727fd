"""`rlplat train ... --profile start`: where the time goes from Enter to the first line of progress.

Measured from outside: three functions of the run are wrapped, and a finder stands before those of `sys.meta_path`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import rlplat
from rlplat.processes import start_time

_SLOWEST = 5


class StartProfile:
    """Begins when it is made, and ends with a table on stderr at the first result."""

    def __init__(self) -> None:
        now_s, cpu_s = time.monotonic(), time.process_time()
        self._rows = {"interpreter, command": [age_s(), cpu_s, 0.0]}
        """By stage: seconds, CPU seconds of this process, and how many of these are imports."""
        self._stage, self._since = "imports of the training", [now_s, cpu_s, 0.0]
        self._imported_s: dict[str, float] = {}
        """By module, in CPU seconds without those that it imports."""
        self._importing: list[float] = []
        self._ends = ExitStack()
        sys.meta_path.insert(0, self)
        self._ends.callback(sys.meta_path.remove, self)

    def callback(self) -> Any:
        """Of the run, which is imported; it wraps what that is about to call."""
        from rlplat.rl.callbacks import Callback
        from rlplat.rl.envs import check
        from rlplat.rl.run import training_loop

        for home, name, stage in (
            (training_loop, "prepare", "config"),
            (rlplat, "init", "runtime"),
            (check, "apart", "environment made and looked at"),
        ):
            whole = getattr(home, name)
            self._ends.callback(setattr, home, name, whole)
            setattr(home, name, self._timed(whole, stage))
        self._reach("learner and workers started")
        profile = self

        class AtFirstResult(Callback):
            def on_start(self, algorithm: Any, directory: Path | None) -> None:
                profile._reach("first round")

            def on_result(self, algorithm: Any, result: Any) -> None:
                if profile in sys.meta_path:
                    profile._ends.close()
                    profile._reach("")
                    print(profile, file=sys.stderr)

        return AtFirstResult()

    def __str__(self) -> str:
        rows = [*self._rows.items(), ("all", [sum(column) for column in zip(*self._rows.values(), strict=True)])]
        slowest = sorted(self._imported_s, key=lambda name: -self._imported_s[name])[:_SLOWEST]
        said = ", ".join(f"{name} {self._imported_s[name]:.3f}" for name in slowest)
        return "\n".join(
            [
                f"{'until the first result':<31}{'s':>7}{'CPU s here':>12}{'of it imports':>15}",
                *(f"{stage:<31}{wall:7.2f}{cpu:12.2f}{imports:15.2f}" for stage, (wall, cpu, imports) in rows),
                f"the slowest of {len(self._imported_s)} imports (CPU s, without what each imports): {said}",
            ]
        )

    def _reach(self, stage: str) -> None:
        now = [time.monotonic(), time.process_time(), sum(self._imported_s.values())]
        row = self._rows.setdefault(self._stage, [0.0] * 3)
        row[:] = [had + at - since for had, at, since in zip(row, now, self._since, strict=True)]
        self._stage, self._since = stage, now

    def _timed(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            before = self._stage
            self._reach(stage)
            try:
                return function(*arguments, **keywords)
            finally:
                self._reach(before)

        return call

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Of `sys.meta_path`: what the finders behind this one find, with a loader that is timed."""
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in behind)), None)
        with suppress(AttributeError):  # builtin and frozen modules, whose loaders are classes
            if spec and spec.loader and not isinstance(spec.loader, type):
                spec.loader.exec_module = self._loading(spec.loader.exec_module, name)  # type: ignore[assignment, method-assign]
        return spec

    def _loading(self, load: Callable[[Any], None], name: str) -> Callable[[Any], None]:
        def timed(module: Any) -> None:
            began_s = time.process_time()
            self._importing.append(0.0)
            try:
                load(module)
            finally:
                took_s = time.process_time() - began_s
                self._imported_s[name] = took_s - self._importing.pop()
                if self._importing:
                    self._importing[-1] += took_s

        return timed


def age_s() -> float:
    """Of this process."""
    started = start_time(os.getpid())
    if started is None:  # no /proc
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")
