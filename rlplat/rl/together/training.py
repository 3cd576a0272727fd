"""Many seeds of one run in one program: what `rlplat train --seeds 0-31 --together` does.

    runs = rlplat.train_together("ppo", env="CartPole-v1", seeds=range(32), out="runs/many")
    [run.result.episode_return_mean for run in runs]

Every seed is a run of its own: an algorithm with its learner, its workers and their generators, a run directory with
metrics and checkpoints, as alone. Only what costs a small run most is done for all of them at once: the steps of the
environments and of the policies (`rollouts.JointRollouts`). A round is

    joint.roll_out_all(...)         every worker of every seed has its batch
    next(each.loop)                 seed by seed: its learner's update, metrics, evaluations, checkpoints

Learners stay as they are. A gradient step on 256 rows is arithmetic and no overhead any more: 32 of them as one
product of matrices took no less time than one after the other (benchmarks/results/together_xeon-2c_202611.md), and so
any loss and any update that a class made of PPO has is trained as it is alone, in the very same code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import numpy as np

import rlplat
from rlplat.config import Layer, layer_from_arguments
from rlplat.errors import ConfigError, UsageError
from rlplat.paths import user_path
from rlplat.rl.callbacks import Callback
from rlplat.rl.interfaces import Result
from rlplat.rl.multi_agent.policy_map import look_at_env, policy_specs
from rlplat.rl.run.algorithm import OnPolicy
from rlplat.rl.run.interruption import Interrupted, Interruption
from rlplat.rl.run.training_loop import (
    Prepared,
    TrainedRun,
    TrainOptions,
    evaluate_at_end,
    one_blas_thread,
    open_run,
    prepare,
    save_after_failure,
    save_at_end,
    training_loop,
)
from rlplat.rl.run.view import Progress
from rlplat.rl.run.view.progress import open_progress, showing_log
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.sampling.worker_group import RolloutWorkers
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.together.rollouts import JointRollouts, Seat, can_join


def train_together(
    algo: str | None = None,
    env: Any = None,
    *,
    seeds: Iterable[int],
    out: str | os.PathLike[str],
    config: str | os.PathLike[str] | Literal[False] | None = None,
    init_from: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> list[TrainedRun]:
    """A run for each of these seeds, all in this process: `out`/seed-0, `out`/seed-1, ... The same call again goes on
    where it was cut off. Other arguments as of `train`. A seed that fails raises when the others have ended."""
    given: dict[str, Any] = {"env": env, **settings} if env is not None else {**settings}
    options = TrainOptions(config=config, init_from=init_from)
    done = train_seeds(algo, [layer_from_arguments(given)], list(seeds), user_path(out), options)
    for ended in done.values():
        if isinstance(ended, Exception):
            raise ended
    return [ended for ended in done.values() if isinstance(ended, TrainedRun)]


def train_seeds(
    algo: str | None,
    layers: Sequence[Layer],
    seeds: Sequence[int],
    base: Path,
    options: TrainOptions,
    callbacks: Sequence[Callback] = (),
) -> dict[int, TrainedRun | Exception]:
    """By seed: its run in base/seed-N, or what it failed with. Ctrl-C saves every run, and raises `Interrupted`."""
    prepared: dict[int, Prepared] = {}
    ended: dict[int, TrainedRun | Exception] = {}
    for seed in seeds:
        own = replace(options, out=base / f"seed-{seed}", resume="auto")
        ready = prepare(algo, [*layers, layer_from_arguments({"seed": seed})], own, callbacks)
        if isinstance(ready, TrainedRun):
            ended[seed] = ready
        else:
            prepared[seed] = ready
    if not prepared:
        return ended
    first = next(iter(prepared.values())).plan
    _require_joinable(first.algorithm_class, first.config)
    num_env_steps = first.config.stop.env_steps
    progress = open_progress(num_env_steps and num_env_steps * len(prepared))
    said: set[str] = set()
    try:
        with (
            Interruption(progress.say) as interruption,
            showing_log("rlplat.start", progress),
            one_blas_thread(),
            _in_this_process(),
            contextlib.ExitStack() as opened,
        ):
            runs: list[_Run] = []
            for seed, ready in prepared.items():
                alike = {name: getattr(runs[0].algorithm, name) for name in _ALIKE} if runs else {}
                runs.append(_Run(seed, ready, _OfSeed(progress, said), opened, alike))
            with interruption.deferred():
                _turn(runs, progress, interruption)
                for run in runs:
                    run.leave(interruption.signal_number)
            if interruption.signal_number:
                raise Interrupted(interruption.signal_number)
    finally:
        progress.close()
    ended |= {run.seed: run.failure or run.trained() for run in runs}
    return {seed: ended[seed] for seed in seeds}


def _turn(runs: Sequence[_Run], progress: Progress, interruption: Interruption) -> None:
    """Rounds, until all have ended or a signal has come."""
    joint: JointRollouts | None = None
    while (live := [run for run in runs if run.is_live]) and not interruption.signal_number:
        started, before = monotonic(), sum(run.env_steps for run in live)
        seats = [seat for run in live for seat in run.seats]
        if joint is None or joint.seats != seats:
            joint = JointRollouts(seats)
        latest = [(rlplat.get(run.algorithm.learners.weights()), len(run.seats)) for run in live]
        joint.roll_out_all([newest for newest, count in latest for _ in range(count)])
        for run in live:
            run.turn()
        rate = (sum(run.env_steps for run in live) - before) / max(monotonic() - started, 1e-9)
        if results := [run.result for run in runs if run.result]:
            progress.show(_mean_of(results), rate)


def _mean_of(results: Sequence[Result]) -> Result:
    """Env steps and episodes of all, means over those that have one."""
    returns, lengths = (
        [getattr(each, name) for each in results if getattr(each, name) is not None]
        for name in ("episode_return_mean", "episode_length_mean")
    )
    return Result(
        iteration=max(each.iteration for each in results),
        env_steps=sum(each.env_steps for each in results),
        episodes=sum(each.episodes for each in results),
        episode_return_mean=float(np.mean(returns)) if returns else None,
        episode_length_mean=float(np.mean(lengths)) if lengths else None,
        metrics={},
    )


def _require_joinable(algorithm_class: type[Any], config: Any) -> None:
    """ConfigError names what is in the way."""
    if why := _why_not(algorithm_class, config):
        raise ConfigError(f"--together trains small policies by PPO in environments of arrays, but {why}: omit it")


def _why_not(algorithm_class: type[Any], config: Any) -> str:
    if not (issubclass(algorithm_class, OnPolicy) and algorithm_class.can_sample_in_learner):
        return f"the algorithm is {algorithm_class.name}"
    if rlplat.is_initialized() and not rlplat.get_runtime_context().is_one_process:
        return "the runtime has processes"
    for key, is_hindered in {
        "framework": config.framework != "torch",
        "learner.num_learners": config.learner.num_learners > 1,
        "learner.device": config.learner.device == "cuda",
        "overlap_sampling": config.overlap_sampling is True,
        "random_start_steps": config.random_start_steps > 0,
        "vectorization": config.vectorization not in ("auto", "native"),
        "deterministic": config.deterministic,
    }.items():
        if is_hindered:
            return f"{key} is {reduce(getattr, key.split('.'), config)}"
    settings = config.model_dump()
    spaces = look_at_env(settings)
    if not isinstance(spaces, SpaceSpec):
        return f"{config.env} has several agents"
    if not policy_specs(settings, spaces)[0].is_plain_mlp:
        return "the policy is no plain MLP (one vector in, one categorical or Gaussian head out, no core)"
    try:
        with RolloutWorker.make_envs({**settings, "vectorization": "native"}, 0, 1) as env:
            return "" if can_join(env) else f"{config.env} is none of those"
    except UsageError:
        return f"{config.env} is none of those"


@contextlib.contextmanager
def _in_this_process() -> Iterator[None]:
    """The runtime, whatever number of rollout workers the config has."""
    if rlplat.is_initialized():
        yield
        return
    rlplat.init(backend="inproc")
    try:
        yield
    finally:
        rlplat.shutdown()


class _OfSeed(Progress):
    """What a run says is said once for all of them."""

    def __init__(self, whole: Progress, said: set[str]) -> None:
        self._whole, self._said = whole, said
        self.has_ended = False

    def say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._whole.say(text)

    def finish(self, ended_by: str, env_steps_per_s: float) -> None:
        self.has_ended = True


_ALIKE = ("looked_at", "computation")
"""Attributes of an algorithm that do not depend on its seed, and take the longest of its start."""


class _Run:
    """Of one seed."""

    def __init__(
        self,
        seed: int,
        prepared: Prepared,
        progress: _OfSeed,
        opened: contextlib.ExitStack,
        alike: Mapping[str, Any],
    ) -> None:
        """opened: closes what a run that never ends leaves open; alike: what another seed's algorithm has found out."""
        self.seed, self._progress, self._callbacks = seed, progress, prepared.callbacks
        self._ends = opened.enter_context(contextlib.ExitStack())
        self.failure: Exception | None = None
        self._num_iterations, self._evaluation = 0, dict[str, float]()
        written = prepared.plan.algorithm_class
        joined = type(written.__name__, (_Joined, written), {"__module__": written.__module__, **alike})
        plan = replace(prepared.plan, algorithm_class=joined)
        for note in plan.notes:
            progress.say(note)
        assert prepared.directory is not None
        self.algorithm, self._directory, self._evaluations = self._ends.enter_context(
            open_run(plan, prepared.directory, prepared.checkpoint, progress, initial=prepared.initial)
        )
        self.result: Result | None = self._directory.last
        self._ends.enter_context(self._callbacks.around(self.algorithm, self._directory.path))
        self._loop = training_loop(
            self.algorithm, run=self._directory, evaluations=self._evaluations, callbacks=self._callbacks
        )
        self.seats = [Seat.numbered(rlplat.get(each.number.remote())) for each in self.algorithm.workers.handles]

    @property
    def env_steps(self) -> int:
        return self.result.env_steps if self.result else 0

    @property
    def is_live(self) -> bool:
        return self.failure is None and not self._progress.has_ended

    def turn(self) -> None:
        """Learn from what was sampled; where that was the last round, save and evaluate."""
        with self._failing():
            self.result = next(self._loop)
            self._num_iterations += 1
            if self._progress.has_ended:
                next(self._loop, None)  # to its end
                save_at_end(*self._parts)
                self._evaluation = evaluate_at_end(*self._parts)
                self._directory.log("done")
                self._ends.close()

    def leave(self, signal_number: int | None) -> None:
        """Save, where a signal has ended the run before its end."""
        if signal_number is None or not self.is_live:
            return
        with self._failing():
            save_at_end(*self._parts)
            self._directory.log(f"ended by {signal.Signals(signal_number).name}")

    def trained(self) -> TrainedRun:
        run = self._directory
        return TrainedRun(run.path, run.last, self._num_iterations, run.wall_s, self._evaluation, self.algorithm.config)

    @property
    def _parts(self) -> tuple[Any, Any, Any, Any]:
        return self.algorithm, self._directory, self._evaluations, self._callbacks

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """What fails here fails this seed, and no other."""
        try:
            yield
        except Exception as error:
            self.failure = error
            self._directory.log("failed:\n" + traceback.format_exc())
            self._progress.say(f"seed {self.seed} failed: {error}")
            save_after_failure(self.algorithm, self._directory, self._evaluations)
            self._ends.close()


class _Joined(OnPolicy[Any]):
    """In front of the algorithm's class: its workers are `Seat`s."""

    def start_rollout_workers(self, worker_class: type = Seat, **more: Any) -> RolloutWorkers:
        return super().start_rollout_workers(worker_class, **more)
