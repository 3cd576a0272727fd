"""The loop that turns an algorithm until it should stop, and `train`, which does all that the command does.

with PPO(PPOConfig(env="CartPole-v1")) as ppo:
    for result in rlplat.training_loop(ppo, stop={"episode_return_mean": 475}):
        print(result.env_steps, result.episode_return_mean)

rlplat.train("ppo", env="CartPole-v1", out="runs/demo", learning_rate=1e-3)
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import rlplat
from rlplat.checkpoints import BEST, Checkpoint, CheckpointInfo, latest_valid
from rlplat.config import Layer, closest, layer_from_arguments, with_origins
from rlplat.errors import CheckpointError, ConfigError, RlplatError
from rlplat.figures import figure
from rlplat.paths import shown, user_path
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.argument_values import as_plain
from rlplat.rl.callbacks import Callback, Callbacks
from rlplat.rl.class_path import forget_changed, require_class
from rlplat.rl.env_objects import is_same_env, what_it_takes
from rlplat.rl.info_metrics import split_reduction
from rlplat.rl.interfaces import Result
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan
from rlplat.rl.policies.spec import bounds_advice, said_of_observations
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.run.bottleneck import add_seconds, bottleneck
from rlplat.rl.run.evaluation_schedule import Evaluations
from rlplat.rl.run.interruption import Interrupted, Interruption
from rlplat.rl.run.run_directory import (
    AUTO,
    RunDirectory,
    RunDirectoryLost,
    has_checkpoints,
    not_a_run,
    put_aside,
    refuse_existing,
    restore,
)
from rlplat.rl.run.trained_agent import InitialWeights, find_initial
from rlplat.rl.run.training_plan import TrainingPlan, default_directory, plan_from_file, plan_training
from rlplat.rl.run.view import Progress
from rlplat.rl.run.view.progress import StillStarting, open_progress, showing_log
from rlplat.rl.schedules import with_horizon
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.user_code import home_of, names_in

if TYPE_CHECKING:
    from rlplat.rl.run.typed_settings import AnySettings

SAVE_ATTEMPTS = 3
"""For the checkpoint at the end of a run, and the one after a failure."""
SAVE_AFTER_FAILURE_S = 120.0

EPISODES_FOR_STOP = 100
"""A stop on the return waits for this many finished episodes: the mean is over the last 100."""

LEAST_S_FOR_HINT = 60.0
"""Of a shorter training most is start-up, and nobody waits for it."""

_STOP_KEYS = ("env_steps", "episode_return_mean", "wall_s")
_STOP_ALIASES = {"episode_return": "episode_return_mean"}
_STOP_WORDS = {"env_steps": "{:,} env steps", "episode_return_mean": "return {:g}", "wall_s": "{:g} s"}


def training_loop(
    algorithm: Algorithm[Any],
    stop: Mapping[str, float | None] | None = None,
    run: RunDirectory | None = None,
    evaluations: Evaluations | None = None,
    *,
    callbacks: Callbacks | Sequence[Callback] = (),
    saves_by_clock: bool = True,
) -> Iterator[Result]:
    """Step until the first stop rule holds; yields after every step.

    stop: `env_steps`, `episode_return_mean` (alias `episode_return`; over the last 100 episodes, and only once 100
    have finished), `wall_s` (training time, earlier parts of a resumed run included). The rules of the algorithm's
    config hold beside them; a key given here replaces the config's, None takes it away.
    run: where to write metrics and checkpoints; also continues that run's clock.
    evaluations: those of the run, where they are to outlive the loop; else they end with it.
    callbacks: more than those of the config; as `Callbacks` all of them, which are told of start and end elsewhere.
    saves_by_clock: false where somebody else saves: `checkpoint_period_s` counts for nothing.
    """
    rules = stop_rules(algorithm.config, stop)
    with contextlib.ExitStack() as stack:
        if evaluations is None:
            evaluations = stack.enter_context(Evaluations(algorithm, run=run))
        if not isinstance(callbacks, Callbacks):
            callbacks = stack.enter_context(
                Callbacks(algorithm.config.callbacks, callbacks).around(algorithm, run.path if run else None)
            )
        checkpoint_period = algorithm.config.checkpoint_period
        checkpoint_period_s = algorithm.config.checkpoint_period_s if saves_by_clock else 0.0
        earlier_wall_s = run.wall_s if run else 0.0
        previous_env_steps = run.last.env_steps if run and run.last else 0
        if run and run.last and stop_reason(rules, run.last, earlier_wall_s):
            return
        started_s = before_s = time.monotonic()
        evaluations.begin_again(previous_env_steps)
        untold = {split_reduction(each)[0] for each in algorithm.config.env_metrics}
        while True:
            result = algorithm.step()
            now_s = time.monotonic()
            wall_s = earlier_wall_s + now_s - started_s
            rate = (result.env_steps - previous_env_steps) / max(now_s - before_s, 1e-9)
            evaluated = evaluations.after_step(previous_env_steps, result)
            result.metrics.update(evaluated)
            wish = callbacks.on_result(algorithm, result, is_evaluated=bool(evaluated))
            if run:
                run.record(result, wall_s, rate)
                if run.is_checkpoint_due(checkpoint_period, result.env_steps, checkpoint_period_s):
                    if saved := run.try_save_checkpoint(algorithm, evaluations.get_state()):
                        callbacks.on_checkpoint(algorithm, saved)
            ended_by = f"ended by {wish}" if wish else stop_reason(rules, result, wall_s)
            is_last = bool(ended_by)
            if run and is_last:
                run.finish(ended_by)
            untold = {name for name in untold if f"env/{name}_mean" not in result.metrics}
            if untold and result.episodes and (is_last or result.episodes >= EPISODES_FOR_STOP):
                _say_untold(untold, result, run)
                untold = set()
            previous_env_steps, before_s = result.env_steps, time.monotonic()
            yield result
            if is_last:
                return


def _say_untold(names: set[str], result: Result, run: RunDirectory | None) -> None:
    listed = ", ".join(f"'{name}'" for name in sorted(names))
    text = (
        f"warning: env_metrics names {listed}, but no info of step() had a number of that name in the first "
        f"{result.episodes:,} episodes (rlplat check-env ENV lists the numbers that there are)"
    )
    if run:
        run.say(text)
    else:
        print(text, file=sys.stderr)


def stop_reason(rules: Mapping[str, float], result: Result, wall_s: float) -> str:
    """`200,000 env steps reached` or `return 475 reached` for the first rule that holds, or the empty string."""
    reached: dict[str, float | None] = {
        "env_steps": result.env_steps,
        "episode_return_mean": result.episode_return_mean if result.episodes >= EPISODES_FOR_STOP else None,
        "wall_s": wall_s,
    }
    for key, limit in rules.items():
        value = reached[key]
        if value is not None and value >= limit:
            return f"{_STOP_WORDS[key].format(limit)} reached"
    return ""


def stop_rules(config: Any, stop: Mapping[str, float | None] | None = None) -> dict[str, float]:
    """Those of the config with those of `stop` over them, as `training_loop` says."""
    rules: dict[str, float | None] = {key: getattr(config.stop, key, None) for key in _STOP_KEYS}
    for key, value in (stop or {}).items():
        name = _STOP_ALIASES.get(key, key)
        if name not in rules:
            raise ConfigError(f"unknown stop rule '{key}'{closest(key, rules)}; rules: {', '.join(rules)}")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value)):
            raise ConfigError(f"stop rule '{key}' is a number or None, not {value!r}")
        rules[name] = value
    return {key: value for key, value in rules.items() if value is not None}


@dataclass(frozen=True, repr=False)
class TrainedRun:
    """What `train` brought."""

    directory: Path
    result: Result | None
    """The last one; None where the run stopped before its first step."""
    num_iterations: int
    """Steps of the algorithm in this call; 0 where a resumed run had already reached its stop."""
    wall_s: float
    evaluation: dict[str, float]
    """`eval/...` of the greedy episodes at the end; empty where there was no evaluation."""
    config: Any
    hint: str = ""
    """What took the time and what would help, where something stands out in a run of a minute or more."""

    @property
    def summary(self) -> str:
        """`118,332 env steps in 54.4 s, return 475, evaluation 500 over 20 episodes`."""
        if self.result is None:
            return "no step"
        mean = self.result.episode_return_mean
        parts = [f"{self.result.env_steps:,} env steps in {self.wall_s:.1f} s"]
        parts.append("no episode finished" if mean is None else f"return {figure(mean)}")
        if "eval/return_mean" in self.evaluation:
            count = self.evaluation["eval/episodes"]
            evaluated = figure(self.evaluation["eval/return_mean"])
            parts.append(f"evaluation {evaluated} over {count:,.0f} episode{'s' if count != 1 else ''}")
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"<TrainedRun {self.directory}: {self.summary}>"


def train(
    algo: str | None = None,
    env: Any = None,
    *,
    out: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | Literal[False] | None = None,
    resume: str | os.PathLike[str] | None = None,
    init_from: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Any] = (),
    **settings: Unpack[AnySettings],
) -> TrainedRun:
    """The same as the command `rlplat train`: settings, run directory, training, checkpoints, final evaluation.

    algo: a name (`ppo`) or `pkg.mod:Class`; env: a name, a class, a function that makes an environment, or one that can
    be copied (a run of those that no name leads to needs `env` again where it is resumed or loaded);
    config: a YAML file (default: the tuned one of algo and env, if any; False: none, the algorithm's own defaults);
    out: the run directory (default: runs/<algo>-<env>-<time>); resume: a run directory to resume, or "auto": the run
    in `out` begins, or continues where it has a checkpoint (the same call every time);
    init_from: RUN, RUN:best or RUN:step_N, whose weights (and normaliser statistics) the run begins with;
    callbacks: `Callback`s, and names of such as in a config (docs/callbacks.md);
    settings: the algorithm's by name, `stop={"wall_s": 60}` (`rlplat settings ppo` lists them).

    Ctrl-C once ends the run with a checkpoint and raises `Interrupted` (a KeyboardInterrupt); twice leaves at once.
    """
    given: dict[str, Any] = {"env": env, **settings} if env is not None else {**settings}
    callbacks = [callbacks] if isinstance(callbacks, str | Callback) else callbacks
    objects = [each for each in callbacks if isinstance(each, Callback)]
    if names := [each for each in callbacks if not isinstance(each, Callback)]:
        if strange := [each for each in names if not isinstance(each, str | Mapping)]:
            fix = "give an object of a subclass of rlplat.rl.callbacks.Callback (docs/callbacks.md)"
            raise ConfigError(f"callbacks: {strange[0]!r} is not a callback; {fix}")
        given = {**given, "callbacks": names}
    options = TrainOptions(out=out, config=config, resume=resume, init_from=init_from)
    return train_layers(algo, [layer_from_arguments(given)], options, objects)


@dataclass(frozen=True)
class TrainOptions:
    """What `train` takes beside the settings of the algorithm."""

    out: str | os.PathLike[str] | None = None
    config: str | os.PathLike[str] | Literal[False] | None = None
    resume: str | os.PathLike[str] | None = None
    init_from: str | os.PathLike[str] | None = None


@dataclass(frozen=True)
class Prepared:
    """What a call of `train` comes to, before anything is started or written."""

    plan: TrainingPlan
    directory: Path | None
    """None: one of its own, by name and date."""
    checkpoint: Checkpoint | None
    """That the run goes on from."""
    initial: InitialWeights | None
    callbacks: Callbacks


def train_layers(
    algo: str | None, layers: Sequence[Layer], options: TrainOptions, callbacks: Sequence[Callback] = ()
) -> TrainedRun:
    """`train` with settings that know where they were written."""
    prepared = prepare(algo, layers, options, callbacks)
    if isinstance(prepared, TrainedRun):
        return prepared
    if prepared.directory is not None:
        return _run(prepared, prepared.directory)
    directory = default_directory(prepared.plan)
    try:
        return _run(prepared, directory)
    finally:
        with contextlib.suppress(OSError):  # it holds a run
            directory.rmdir()
            directory.parent.rmdir()


def prepare(
    algo: str | None, layers: Sequence[Layer], options: TrainOptions, callbacks: Sequence[Callback] = ()
) -> Prepared | TrainedRun:
    """A run, where one is to be resumed that has reached its stop."""
    out, config, resume, init_from = options.out, options.config, options.resume, options.init_from
    forget_changed()
    checkpoint: Checkpoint | None = None
    initial: InitialWeights | None = None
    planned: TrainingPlan | None = None
    notes: list[str] = []
    if resume == AUTO:
        if out is None:
            raise ConfigError("--resume auto needs --out DIRECTORY: the run that begins there, or continues")
        resume = None
        if has_checkpoints(user_path(out)):
            if algo is not None or config:
                planned = plan_training(algo, config, layers)
            resume, config, init_from = out, None, None
        elif kept := put_aside(user_path(out)):
            notes.append(f"{shown(user_path(out))} has no checkpoint: it is now {kept.name}, and begins again")
    if resume is not None:
        if init_from is not None:
            raise ConfigError(f"--resume {resume} uses the run's own weights; omit --init-from")
        directory = user_path(resume)
        if out is not None and user_path(out) != directory:
            raise ConfigError(f"--resume {directory} continues in that directory; omit --out")
        plan, other_seed = _plan_of_run(directory, layers, algo, config, planned)
        checkpoint, refused = latest_valid(directory)
        plan.notes += [f"warning: {line}" for line in refused]
        if checkpoint is None:
            raise CheckpointError("\n".join([*refused, f"no checkpoint in {directory} to resume from"]))
        if finished := _finished(plan, directory, checkpoint):
            if other_seed:
                raise ConfigError(other_seed)
            return finished
        if other_seed:
            plan.notes.append(f"warning: {other_seed}")
        plan.notes.append(f"resuming {shown(directory)} at {checkpoint.info.env_steps:,} env steps")
    else:
        plan = plan_training(algo, config, layers)
        if out is not None:
            refuse_existing(user_path(out))
        if source := init_from or plan.init_from:
            initial = find_initial(source)
            plan.init_from = initial.path
    plan.notes = [*notes, *plan.notes]
    _require_code(plan)
    plan.notes += filter(None, [what_it_takes(getattr(plan.config, "env", ""))])
    told = Callbacks(getattr(plan.config, "callbacks", ()), callbacks)
    place = resume if resume is not None else out
    return Prepared(plan, None if place is None else user_path(place), checkpoint, initial, told)


def _require_code(plan: TrainingPlan) -> None:
    """ConfigError where a name leads to no code, or a value cannot be written into config.yaml, before anything is
    started or written. (Environments, which may be ids of gymnasium's registry in a module, are looked at by the
    algorithm.)"""
    settings = plan.config.model_dump()
    for key in ("env_kwargs", "callbacks"):
        try:
            as_plain(settings.get(key), key)
        except ConfigError as error:
            raise ConfigError(with_origins(str(error), plan.origins)) from None
    places = dict.fromkeys(names_in({"policy": settings.get("policy")}), "policy")
    places |= dict.fromkeys(names_in({"multi_agent": settings.get("multi_agent")}), "multi_agent")
    wrappers = (settings.get("env_kwargs") or {}).get("wrappers", [])
    places |= dict.fromkeys(names_in({"env_kwargs": {"wrappers": wrappers}}), "env_kwargs.wrappers")
    for name, setting in places.items():
        if home_of(name):
            try:
                require_class(name)
            except ConfigError as error:
                raise ConfigError(with_origins(f"{setting}: {error}", plan.origins)) from None


def _plan_of_run(
    directory: Path, layers: Sequence[Layer], algo: str | None, config: Any, planned: TrainingPlan | None
) -> tuple[TrainingPlan, str]:
    """The run's own config.yaml under the layers, or what is planned already, and what to say if that has another seed.
    What the weights depend on cannot change."""
    if config is not None:
        raise ConfigError("--resume takes the run's own config.yaml; omit the config file")
    saved = directory / "config.yaml"
    if directory.name == BEST and directory.parent.name == "checkpoints":
        best, run = shown(directory), shlex.quote(str(shown(directory.parent.parent)))
        raise ConfigError(
            f"{best} holds weights only, to act with (rlplat evaluate, rlplat play), nothing to train on with; "
            f"resume the run from its newest checkpoint: --resume {run}, or begin another one with "
            f"these weights: --init-from {shlex.quote(str(best))}"
        )
    if not saved.exists():
        raise ConfigError(not_a_run(directory))
    begun = plan_from_file(saved, [])
    before = begun.config
    plan = planned or plan_from_file(saved, layers, algo)
    if plan.algo.rpartition(":")[2] != begun.algo.rpartition(":")[2]:  # its file may have moved
        raise ConfigError(f"the run in {shown(directory)} is of {begun.algo}, not of {plan.algo}")
    _require_resumable(before, plan.config)
    first_env_steps = getattr(before.stop, "env_steps", None)
    if first_env_steps and first_env_steps != plan.config.stop.env_steps:
        pinned = with_horizon(plan.config, first_env_steps)
        if pinned is not plan.config:
            plan.config = pinned
            plan.notes.append(
                f"schedules keep their horizon of {first_env_steps:,} env steps, and stay at their end beyond it (to "
                'change one: --set "learning_rate={schedule: linear, start: A, end: B, horizon: N}")'
            )
    frameworks = [getattr(config, "framework", None) for config in (before, plan.config)]
    if frameworks[0] != frameworks[1]:
        plan.notes.append(
            f"framework {frameworks[0]} -> {frameworks[1]}: weights, the optimizer's moments and counters continue "
            "exactly; the sampling of actions starts again"
        )
    was, now = (getattr(config, "seed", None) for config in (before, plan.config))
    told = f"the run in {shown(directory)} began with seed {was}, not {now}: give each seed an --out of its own"
    return plan, "" if planned is None or was == now else told


def _finished(plan: TrainingPlan, directory: Path, checkpoint: Checkpoint) -> TrainedRun | None:
    """The run, where nothing is left to do: its directory stays as it is, with the evaluation at its end."""
    saved = checkpoint.state["training"]
    last = Result(**saved["last"]) if saved["last"] else None
    if last is None or not stop_reason(stop_rules(plan.config), last, saved["wall_s"]):
        return None
    return TrainedRun(directory, last, 0, saved["wall_s"], {}, plan.config, "")


def _require_resumable(before: Any, now: Any) -> None:
    """ConfigError names a setting that a checkpoint's state depends on, and that is not what it was."""
    fixed: tuple[str, ...] = getattr(now, "fixed_on_resume", AlgorithmConfig.fixed_on_resume)
    for key in fixed:
        path = key.split(".")
        was, wanted = (reduce(lambda at, name: getattr(at, name, None), path, each) for each in (before, now))
        if _has_changed(was, wanted, key) and not (key == "env" and is_same_env(str(wanted), str(was))):
            raise ConfigError(f"'{key}' cannot change when a run is resumed; start a new one with --out")
    if not (getattr(before, "save_replay", False) and getattr(now, "save_replay", False)):
        return
    for key in getattr(now, "shapes_replay", ()):
        was, wanted = getattr(before, key), getattr(now, key)
        if key == "num_rollout_workers":  # 0 fills the replay as one does
            was, wanted = max(1, was), max(1, wanted)
        if was != wanted:
            raise ConfigError(
                f"'{key}' cannot change from {was} to {wanted} when a run is resumed: the replay that it saved does "
                "not fit. Omit it, or begin with an empty replay: --set save_replay=false"
            )


def _has_changed(before: Any, now: Any, key: str) -> bool:
    if isinstance(before, dict):  # arrays in it have no one truth
        before, now = as_plain(before, key), as_plain(now, key)
    return bool(before != now)


def _run(prepared: Prepared, directory: Path) -> TrainedRun:
    plan, checkpoint, callbacks = prepared.plan, prepared.checkpoint, prepared.callbacks
    num_workers = getattr(plan.config, "num_rollout_workers", 0)
    progress = StillStarting(open_progress(getattr(plan.config.stop, "env_steps", None)), num_workers)
    for note in plan.notes:
        progress.say(note)
    begun: RunDirectory | None = None
    try:
        with (
            Interruption(progress.say) as interruption,
            showing_log("rlplat.start", progress),
            one_blas_thread(),
            open_run(plan, directory, checkpoint, progress, initial=prepared.initial) as (algorithm, run, evaluations),
        ):
            begun, progress.is_made = run, True
            try:
                with callbacks.around(algorithm, run.path):
                    return _turn(plan, algorithm, run, evaluations, interruption, callbacks)
            except Interrupted as signal:
                run.log(f"ended by {signal}")
                if run.last:
                    run.say(what_is_saved(run))
                raise
            except Exception:
                run.log("failed:\n" + traceback.format_exc())
                with interruption.deferred():
                    save_after_failure(algorithm, run, evaluations)
                raise
    except Exception as error:
        # Here, not above: where the cluster has ended, its own end raises too, and that is what arrives.
        if begun is not None and "advice" not in error.__dict__:
            advice = what_is_saved(begun)
            error.add_note(advice)
            error.__dict__["advice"] = [advice]  # for the command, which shows no other notes
        raise
    except Interrupted:
        if checkpoint is not None and begun is None:
            progress.say(f"interrupted before the first step; the run in {shown(directory)} is as it was")
        elif begun is None or not begun.last:
            if begun is not None:
                begun.discard()
            progress.say("interrupted before the first step was finished; nothing was saved")
        raise
    finally:
        progress.close()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Numpy's products in this process take one thread, as in workers: their sums, and with them a run, depend on the
    number; and two threads of several processes that spin for each other take ten times as long. OPENBLAS_NUM_THREADS
    counts, here as there."""
    if os.environ.get("OPENBLAS_NUM_THREADS"):
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield


@contextlib.contextmanager
def open_run(
    plan: TrainingPlan,
    directory: Path,
    checkpoint: Checkpoint | None,
    progress: Progress,
    *,
    takes_over: bool = False,
    initial: InitialWeights | None = None,
) -> Iterator[tuple[Algorithm[Any], RunDirectory, Evaluations]]:
    """The algorithm, its run directory and its evaluations; from a checkpoint, of this run or of another, they go on.

    initial: without a checkpoint, the weights to begin with.
    takes_over: without a checkpoint, begin in a directory where a run may be already, and forget what that one wrote.
    """
    nothing: dict[str, Any] = {"wall_s": 0.0 if takes_over else None, "last": None}
    saved = checkpoint.state["training"] if checkpoint else nothing
    try:
        made = plan.algorithm_class(plan.config)
    except ConfigError as error:
        error.args = (with_origins(str(error), plan.origins),)
        raise
    with made as algorithm:
        if checkpoint:
            restore(algorithm, checkpoint)
        told = initial.give_to(algorithm) if initial and not checkpoint else ""
        run = RunDirectory(
            directory,
            config_yaml=plan.to_yaml(directory),
            info=_checkpoint_info,
            progress=progress,
            resumed_wall_s=saved["wall_s"],
            last=Result(**saved["last"]) if saved["last"] else None,
        )
        try:
            plan_of_game = algorithm.spaces if isinstance(algorithm.spaces, MultiAgentPlan) else None
            of_game = (plan_of_game.about_returns(), plan_of_game.about_critic()) if plan_of_game else ()
            about = () if checkpoint else (_about_actions(algorithm), *of_game)
            for line in (told, *_about_observations(algorithm), *about, *algorithm.notes):
                if line:
                    run.say(line)
            with Evaluations(algorithm, run=run) as evaluations:
                if saved.get("evaluations"):
                    evaluations.set_state(saved["evaluations"])
                yield algorithm, run, evaluations
        finally:
            run.close()


def _turn(
    plan: TrainingPlan,
    algorithm: Algorithm[Any],
    run: RunDirectory,
    evaluations: Evaluations,
    interruption: Interruption,
    callbacks: Callbacks,
) -> TrainedRun:
    """Train, save, evaluate; in that order, so that nothing that was learnt can be lost any more."""
    num_iterations = 0
    seconds: dict[str, float] = {}
    started_s = time.monotonic()
    with interruption.deferred():
        for result in training_loop(algorithm, run=run, evaluations=evaluations, callbacks=callbacks):
            num_iterations += 1
            add_seconds(seconds, result.metrics)
            if interruption.signal_number:
                break
        trained_s = time.monotonic() - started_s
        save_at_end(algorithm, run, evaluations, callbacks)
    if interruption.signal_number:
        raise Interrupted(interruption.signal_number)
    evaluation = evaluate_at_end(algorithm, run, evaluations, callbacks) if num_iterations else {}
    num_cpus = rlplat.cluster_resources()["CPU"] if rlplat.is_initialized() else 1
    hint = ""
    if trained_s >= LEAST_S_FOR_HINT:
        hint = bottleneck(seconds, plan.config, int(num_cpus), is_tuned=bool(plan.base))
    if hint:
        run.say(hint)
    run.log("done")
    run.require_there()
    return TrainedRun(run.path, run.last, num_iterations, run.wall_s, evaluation, plan.config, hint)


def evaluate_at_end(
    algorithm: Algorithm[Any], run: RunDirectory, evaluations: Evaluations, callbacks: Callbacks
) -> dict[str, float]:
    """`eval/...` of the evaluation after the training, which the closing line of the metrics has."""
    if run.last is None or not (evaluation := evaluations.final(run.last)):
        return {}
    run.last.metrics.update(evaluation)
    callbacks.on_evaluation(algorithm, run.last)
    # the closing line: the last iteration's figures, the evaluation, and the mean speed of the whole run
    run.record(run.last, run.wall_s, run.last.env_steps / max(run.wall_s, 1e-9))
    run.log(f"evaluation at the end: return {figure(evaluation.get('eval/return_mean', math.nan))}")
    return evaluation


def save_at_end(algorithm: Algorithm[Any], run: RunDirectory, evaluations: Evaluations, callbacks: Callbacks) -> None:
    if saved := _save_last_checkpoint(algorithm, run, evaluations):
        callbacks.on_checkpoint(algorithm, saved)


def _save_last_checkpoint(algorithm: Algorithm[Any], run: RunDirectory, evaluations: Evaluations) -> Path | None:
    """Tried again while the actors live: the weights of the whole run are in them."""
    for attempt in range(1, SAVE_ATTEMPTS + 1):
        try:
            return run.save_checkpoint(algorithm, evaluations.get_state())
        except RunDirectoryLost:
            raise
        except (OSError, RlplatError) as error:
            if attempt < SAVE_ATTEMPTS:
                run.say(f"warning: the last checkpoint failed: {error}; trying again")
            elif isinstance(error, OSError):
                text = f"the last checkpoint could not be written to {run.path}: {error}"
                raise CheckpointError(text) from error
            else:
                raise
    return None


def save_after_failure(algorithm: Algorithm[Any], run: RunDirectory, evaluations: Evaluations) -> None:
    """A checkpoint of what the learner has, whatever failed beside it; a warning where it cannot be had.

    In a thread, because a learner that waits for a lost one might never answer.
    """
    if run.last is None:
        return
    failures: list[Exception] = []

    def save() -> None:
        while len(failures) < SAVE_ATTEMPTS:
            try:
                run.save_checkpoint(algorithm, evaluations.get_state(), after_failure=True)
                return
            except Exception as error:  # what failed may show anywhere
                failures.append(error)

    thread = threading.Thread(target=save, name="save-after-failure", daemon=True)
    thread.start()
    thread.join(SAVE_AFTER_FAILURE_S)
    if thread.is_alive():
        run.say(f"warning: no checkpoint of the failed run: no answer within {SAVE_AFTER_FAILURE_S:g} s")
    elif len(failures) == SAVE_ATTEMPTS:
        first = str(failures[-1]).partition("\n")[0]
        run.say(f"warning: no checkpoint of the failed run: {first}")


def _about_observations(algorithm: Algorithm[Any]) -> list[str]:
    """What each observation is taken for and the encoder it gets, of every policy; and what is doubtful about that."""
    spaces, policy = algorithm.spaces, algorithm.config.policy.model_dump()
    if "policy.encoder" in algorithm.config.unused:
        policy["encoder"] = "mlp"
    networks: dict[str, Any] = {}
    if isinstance(spaces, SpaceSpec):
        networks = {"": (spaces.obs, policy)}
    elif isinstance(spaces, MultiAgentPlan):
        networks = {f"{each.name}: ": (each.spaces.obs, policy | each.section) for each in spaces.policies.values()}
    found: list[str] = []
    for name, (obs, section) in networks.items():
        lines, warnings = said_of_observations(obs, section["encoder"], section["custom"])
        found += [f"{name}{line}" for line in lines] + [f"warning: {name}{warning}" for warning in warnings]
    return found


def _about_actions(algorithm: Algorithm[Any]) -> str:
    """One line where Box actions have bounds that a policy does not learn well in as it is, or the empty string."""
    spaces, policy = algorithm.spaces, algorithm.config.policy
    if not isinstance(spaces, SpaceSpec) or policy.squash_actions or policy.rescale_actions:
        return ""
    return bounds_advice(spaces.action, "policy.rescale_actions" not in algorithm.config.unused)


def what_is_saved(run: RunDirectory) -> str:
    """Where a run that has ended early stands: what is saved, what is lost, how to resume."""
    env_steps = run.last.env_steps if run.last else 0
    if run.saved_env_steps is None:
        if not env_steps:
            log = shown(run.path / "log.txt")
            return f"nothing was learnt yet; the log is {log}, and the directory may be used again"
        return f"no checkpoint was saved: {env_steps:,} env steps are lost; metrics are in {shown(run.path)}"
    resume = f"to resume: rlplat train --resume {shlex.quote(str(shown(run.path)))}"
    if env_steps > run.saved_env_steps:
        lost = f"{env_steps - run.saved_env_steps:,} env steps since the checkpoint at {run.saved_env_steps:,}"
        return f"{lost} are lost; {resume}"
    return f"checkpoint saved at {run.saved_env_steps:,} env steps; {resume}"


def _checkpoint_info(algorithm: Algorithm[Any], env_steps: int) -> CheckpointInfo:
    return CheckpointInfo(
        algorithm=algorithm.name,
        env=algorithm.config.env,
        env_steps=env_steps,
        spaces=str(algorithm.spaces),
        not_saved=list(algorithm.not_saved),
    )
