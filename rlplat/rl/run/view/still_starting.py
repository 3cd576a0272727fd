"""A line every ten seconds while a run starts: Ray takes a minute and more on a busy machine, and says nothing."""

from __future__ import annotations

import os
import threading
import time

import rlplat
from rlplat.rl.interfaces import Result
from rlplat.rl.run.view.progress import Progress


class StillStarting:
    """The same as `progress`, and until the first result a line where nothing was said for `period_s` seconds."""

    def __init__(self, progress: Progress, num_workers: int, period_s: float = 10.0) -> None:
        self._progress, self._num_workers, self._period_s = progress, num_workers, period_s
        self._is_on_ray = os.environ.get("RLPLAT_BACKEND") == "ray"
        self._began_s = self._said_s = time.monotonic()
        self.is_made = False
        """Whether the learner is there, so that the first rollouts are what is waited for."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlplat-still-starting", daemon=True)
        if num_workers:  # else everything is in this process
            self._thread.start()

    def show(self, result: Result, env_steps_per_s: float) -> None:
        self._end()
        self._progress.show(result, env_steps_per_s)

    def say(self, text: str) -> None:
        self._said_s = time.monotonic()
        self._progress.say(text)

    def finish(self, ended_by: str, env_steps_per_s: float) -> None:
        self._end()
        self._progress.finish(ended_by, env_steps_per_s)

    def close(self) -> None:
        self._end()
        self._progress.close()

    def _end(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(max(0.001, self._said_s + self._period_s - time.monotonic())):
            if time.monotonic() >= self._said_s + self._period_s:
                self.say(f"{self._what()}: {time.monotonic() - self._began_s:.0f} s so far")

    def _what(self) -> str:
        if not rlplat.is_initialized():
            address = os.environ.get("RLPLAT_ADDRESS")
            if self._is_on_ray and address:
                return f"connecting to the Ray cluster at {address}"
            return "Ray is starting" if self._is_on_ray else "the runtime is starting"
        if not self.is_made:
            where = " on Ray, which starts a Python process for each" if self._is_on_ray else ""
            return f"the learner and the parameter server are starting{where}"
        workers = f"{self._num_workers:,} rollout worker{'s' if self._num_workers > 1 else ''}"
        return f"waiting for the first steps of {workers}"
