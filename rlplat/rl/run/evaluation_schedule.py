"""`Evaluations`: when a run evaluates, and what becomes of it: metrics, `checkpoints/best`, films.

    with Evaluations(algorithm, run=run) as evaluations:
        while training:
            result = algorithm.step()
            result.metrics |= evaluations.after_step(before, result)     # figures of one that has finished, if any
        figures = evaluations.final(result)

1. An evaluation is due where env steps pass a multiple of `evaluation.period`; it plays beside the training, with the
   weights of that moment. Its figures come with a later line: `eval/env_steps`, `eval/weights_version` say whose.
2. One at a time: one that falls due meanwhile waits, and begins with the weights of then. A second one that falls due
   while one waits is left out, and counted: `eval/skipped`.
3. With `deterministic: true` the training waits, and the figures are in the line of the iteration that they are due in.
4. Weights that play the best evaluation so far (ties: the newer ones) go to `checkpoints/best`. An evaluation in which
   episodes were cut off cannot be compared, and is none of these. The one at the end of the run, whose figures are the
   run's, plays other episodes (`Purpose`): the newest weights play those of the choice before, if they have not.
5. An evaluation that fails is a warning. It begins once more with the same weights in a new actor; failing again,
   it is given up (`eval/failures`). Only the one at the end of the run may end it with an error.
6. What runs or waits when a checkpoint is saved begins anew, with that checkpoint's weights, when the run resumes.

An algorithm that does not act without its actors (`Algorithm.acts_alone`) evaluates by its own `evaluate()`, while the
training waits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rlplat
from rlplat.errors import RlplatError
from rlplat.rl.interfaces import Closing, Episode, Result
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.run.evaluation import Evaluated, evaluation_metrics, what_was_cut
from rlplat.rl.run.run_directory import RunDirectory
from rlplat.rl.saved import Saved
from rlplat.rl.seeding import Purpose

if TYPE_CHECKING:
    from rlplat import ObjectRef


@dataclass
class _Running:
    env_steps: int
    weights: ObjectRef
    """Of (version, weights): pins them until the evaluation is through."""
    outcome: ObjectRef
    video: Path | None
    """Where the video is to be."""
    purpose: Purpose = "choice"
    attempt: int = 1


class Evaluations(Saved, Closing):
    saved = {
        "is_waiting": "_is_waiting", "started": "_started", "skipped": "_skipped", "failures": "_failures",
    }  # fmt: skip

    def __init__(self, algorithm: Algorithm[Any], *, run: RunDirectory | None = None) -> None:
        """run: where films and best weights go; without one there are neither."""
        config = algorithm.config
        section = config.evaluation
        self._algorithm = algorithm
        self._run = run
        self._period: int = section.period
        self._episodes: int = section.episodes
        self._max_episode_steps: int = section.max_episode_steps
        self._video_period: int = section.video_period if run else 0
        self._waits: bool = config.deterministic
        self._evaluation = algorithm.new_evaluation() if algorithm.acts_alone() else None
        self._best: dict[str, float] = run.best_evaluation() if run else {}
        self._running: _Running | None = None
        self._is_waiting = False
        self._started = self._skipped = self._failures = 0
        nothing: tuple[int, dict[str, float]] = (-1, {})  # env steps, figures
        self._last: dict[Purpose, tuple[int, dict[str, float]]] = {"choice": nothing, "final": nothing}

    def after_step(self, before: int, result: Result) -> dict[str, float]:
        """before: env steps before this step. Figures of an evaluation that is through, or nothing."""
        figures = self._collect(wait=False)
        if passes(self._period, before, result.env_steps) and self._episodes:
            self._skipped += self._is_waiting
            self._is_waiting = True
        return figures | self._begin_waiting(result.env_steps)

    def begin_again(self, env_steps: int) -> None:
        """In a resumed run, before its first step: what was cut off by the checkpoint."""
        if self._is_waiting:
            self._begin_waiting(env_steps)

    def final(self, result: Result) -> dict[str, float]:
        """The evaluation at the end of a run, with the newest weights; waits for it.

        What is under way with older ones is given up: it would only hold up the end.
        """
        if not self._episodes:
            return {}
        env_steps = result.env_steps
        if self._running is not None and self._running.env_steps != env_steps:
            self._say(f"the evaluation of {self._running.env_steps:,} env steps was still running at the end: given up")
            self.close()
        self._is_waiting = False
        last = self._last["choice" if self._evaluation is None else "final"]
        if last[0] == env_steps:
            return last[1]
        if self._evaluation is None:
            return self._begin(env_steps)
        if self._running is not None:
            self._collect(wait=True)
        elif self._period and self._last["choice"][0] != env_steps:
            self._begin(env_steps, waits=True)  # the newest weights may be the best ones
        return self._begin(env_steps, purpose="final", waits=True)

    def _begin_waiting(self, env_steps: int) -> dict[str, float]:
        if not self._is_waiting or self._running is not None:
            return {}
        self._is_waiting = False
        return self._begin(env_steps)

    def _begin(self, env_steps: int, *, purpose: Purpose = "choice", waits: bool = False) -> dict[str, float]:
        self._started += 1
        if self._evaluation is None:
            return self._finished(env_steps, self._algorithm.evaluate(self._episodes))
        weights = self._algorithm.acting_weights()
        video, is_final = None, purpose == "final"
        if self._run and self._video_period and (is_final or (not waits and self._started % self._video_period == 0)):
            video = self._run.path / "videos" / f"eval_{env_steps}.mp4"
        waits = waits or self._waits
        outcome = self._evaluation.start(weights, self._episodes, video is not None, purpose=purpose, tells=waits)
        self._running = _Running(env_steps, weights, outcome, video, purpose)
        return self._collect(wait=True, may_fail=not is_final) if waits else {}

    def _collect(self, *, wait: bool, may_fail: bool = True) -> dict[str, float]:
        """Figures of the running evaluation once it is through."""
        running = self._running
        while running is not None and (wait or rlplat.wait([running.outcome], timeout=0)[0]):
            try:
                evaluated: Evaluated = rlplat.get(running.outcome)
            except RlplatError as error:
                running = self._failed(running, error, may_fail=may_fail)
                continue
            self._running = None
            if running.video and evaluated.video:
                running.video.parent.mkdir(exist_ok=True)
                whole = running.video.with_name(f".{running.video.name}.new")
                whole.write_bytes(evaluated.video)
                whole.replace(running.video)
            if evaluated.no_video:
                self._no_more_videos(evaluated.no_video)
            return self._finished(
                running.env_steps,
                evaluated.episodes,
                running.weights,
                evaluated.weights_version,
                running.purpose,
            )
        return {}

    def _failed(self, running: _Running, error: RlplatError, *, may_fail: bool) -> _Running | None:
        """Once more in a new actor, without a film; None: given up."""
        assert self._evaluation is not None
        self._evaluation.close()
        self._running = None
        self._failures += 1
        if running.attempt > 1 and not may_fail:
            raise error
        reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        what = f"warning: the evaluation of {running.env_steps:,} env steps failed: {reason.strip()}"
        if running.attempt > 1:
            self._say(f"{what}; given up, training continues")
            return None
        self._say(f"{what}; it begins once more")
        if running.video:
            self._no_more_videos("the evaluation failed while it recorded a video")
        outcome = self._evaluation.start(running.weights, self._episodes, purpose=running.purpose)
        self._running = replace(running, outcome=outcome, video=None, attempt=2)
        return self._running

    def _finished(
        self,
        env_steps: int,
        episodes: list[Episode],
        weights: ObjectRef | None = None,
        version: int | None = None,
        purpose: Purpose = "choice",
    ) -> dict[str, float]:
        figures = evaluation_metrics(episodes) | {"eval/env_steps": env_steps}
        if version is not None:
            figures["eval/weights_version"] = version
        if cut := what_was_cut(episodes, self._episodes, self._max_episode_steps):
            self._say(f"warning: in the evaluation of {env_steps:,} env steps, {cut}")
        mean = figures.get("eval/return_mean", math.nan)
        # Without evaluations during the training the one at the end has nothing to be chosen from.
        chooses = purpose == "choice" or not self._period
        if chooses and self._run and weights is not None and not cut and math.isfinite(mean):
            if mean >= self._best.get("eval/return_mean", -math.inf):
                self._best = dict(figures)
                self._run.save_best(self._algorithm, rlplat.get(weights)[1], env_steps, dict(figures))
        if self._skipped:
            figures["eval/skipped"] = self._skipped
        if self._failures:
            figures["eval/failures"] = self._failures
        self._last[purpose] = (env_steps, figures)
        return dict(figures)

    def _no_more_videos(self, reason: str) -> None:
        self._video_period = 0
        self._say(f"no videos: {reason}; training continues without")

    def _say(self, text: str) -> None:
        if self._run:
            self._run.say(text)

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"is_waiting": self._is_waiting or self._running is not None}

    def close(self) -> None:
        """End the evaluation actor, whatever it is doing."""
        self._running = None
        if self._evaluation is not None:
            self._evaluation.close()


def passes(period: int, before: int, after: int) -> bool:
    """Whether a multiple of `period` lies in (before, after]; period 0 has none."""
    return period > 0 and after // period > before // period
