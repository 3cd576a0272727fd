"""An algorithm as a trial: `trials/00007/` is a run directory like any other, and one `step()` of it is a report.

    trials/00007/  config.yaml  metrics.jsonl  progress.csv  tensorboard/  log.txt  checkpoints/step_<env_steps>/

So `rlplat evaluate`, `rlplat play` and `rlplat train --resume` work on it. A report is the line of metrics.jsonl.

With `num_rollout_workers: 0` all of the algorithm lives in the trial host's process, in a cluster of its own there;
with more its actors run in the trial's placement group, which captures them.
"""

from __future__ import annotations

import contextlib
import gc
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import rlplat
from rlplat import checkpoints
from rlplat.errors import CheckpointError, RlplatError
from rlplat.metrics import finite_or_none
from rlplat.rl.interfaces import Result
from rlplat.rl.run.evaluation_schedule import Evaluations
from rlplat.rl.run.run_directory import RunDirectory
from rlplat.rl.run.training_loop import open_run, stop_reason, stop_rules, training_loop
from rlplat.rl.run.view import Progress
from rlplat.tune.trials import TrialContext
from rlplat.tune.trials.checkpoints import remove
from rlplat.tune.trials.rl_config import plan_trial

_CHECKPOINT = re.compile(r"step_(\d+)$")
_COPY = "exploit_"
"""How the checkpoints begin that the tuner copied from another trial."""
LAST_SAVE_SHARE = 0.1
"""Of a trial's time that a last checkpoint, which only people may want, may take."""


class RLProgram:
    """Nothing starts before the first `step` or `load_from`."""

    can_save = True

    def __init__(self, algo: str, config: Mapping[str, Any], context: TrialContext) -> None:
        self._plan = plan_trial(algo, config, context.seed)
        self._context = context
        self._stack = contextlib.ExitStack()
        self._algorithm: Any = None
        self._run: RunDirectory | None = None
        self._evaluations: Evaluations | None = None
        self._results: Iterator[Result] | None = None
        self._kept: list[str] = []
        """Names of the checkpoints that are needed: the newest, and the one before it or from which we began."""
        self._copies: set[str] = set()
        """Checkpoints copied from other trials before this program began. One that comes later is what the next program
        of this trial begins from: not ours to remove, whatever we save at our end."""
        self._saved_env_steps = -1
        self._began_s = time.monotonic()
        self._save_s = 0.0
        self._has_failed = False

    # ------------------------------------------------------------ a turn

    def step(self) -> dict[str, Any] | None:
        if self._results is None:
            self._open(None)
        assert self._results is not None and self._run is not None
        try:
            result = next(self._results, None)
        except BaseException:
            self._has_failed = True
            raise
        if result is None:
            return None
        if stop_reason(stop_rules(self._plan.config), result, self._run.wall_s):
            self._save_for_people(self._run)  # the next step is the end
        return {name: finite_or_none(value) for name, value in self._run.last_record.items()}

    def _open(self, checkpoint: checkpoints.Checkpoint | None) -> None:
        plan = self._plan
        try:
            plan.config = _within_booking(plan.config)
            if _fits_in_one_process(plan.config):
                self._stack.enter_context(cluster_in_this_process())
            opened = open_run(plan, self._context.directory, checkpoint, Progress(), takes_over=True)
            self._algorithm, self._run, self._evaluations = self._stack.enter_context(opened)
        except BaseException:
            self._has_failed = True
            self.close()
            raise
        for note in plan.notes:
            self._run.log(note)
        # Written by an attempt that did not live to tell, or by what this trial was before it went on from another one.
        _forget_beyond(self._run.path / "checkpoints", checkpoint.info.env_steps if checkpoint else 0)
        self._results = training_loop(
            self._algorithm, run=self._run, evaluations=self._evaluations, saves_by_clock=False
        )

    # ------------------------------------------------------------ checkpoints

    def save_to(self, directory: Path) -> str:
        name = self._write(directory)
        if name not in self._kept:
            self._kept = [*self._kept[-1:], name]
        for old in list(directory.iterdir()):
            is_one = _CHECKPOINT.match(old.name) or old.name in self._copies
            if is_one and old.name not in self._kept:
                with contextlib.suppress(OSError):  # the new one is there; the next save tries this again
                    remove(old)
        return name

    def _write(self, directory: Path) -> str:
        """A checkpoint of the state as it is, unless that is there; none is removed by its number."""
        if self._run is None or self._run.last is None or self._evaluations is None:
            raise CheckpointError(f"trial {self._context.number} has not begun: there is nothing to save yet")
        env_steps = self._run.last.env_steps
        name = f"step_{env_steps}"
        if env_steps == self._saved_env_steps and (directory / name).is_dir():
            return name
        started = time.monotonic()
        self._run.save_to(directory, self._algorithm, self._evaluations.get_state(), keep=1 << 30)
        self._run.log(f"checkpoint {name}")
        self._saved_env_steps, self._save_s = env_steps, time.monotonic() - started
        return name

    def load_from(self, path: Path) -> None:
        checkpoint = checkpoints.load(path)
        self._kept, self._saved_env_steps = [path.name], checkpoint.info.env_steps
        self._copies = {other.name for other in path.parent.iterdir() if other.name.startswith(_COPY)}
        self._open(checkpoint)

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        run, self._results = self._run, None
        try:
            if run and not self._has_failed and self._save_s <= LAST_SAVE_SHARE * (time.monotonic() - self._began_s):
                self._save_for_people(run)
        finally:
            self._run = self._algorithm = self._evaluations = None
            self._stack.close()
            gc.collect()  # environments and networks are in circles, and the host lives on

    def _save_for_people(self, run: RunDirectory) -> None:
        """The last state, which the experiment does not need: to evaluate, to play, to train on with.

        It takes nobody's place: what the tuner has ordered last may not be on its record yet, and then it needs the one
        before.
        """
        try:
            if run.last is not None:
                self._write(run.path / "checkpoints")
        except (OSError, RlplatError) as error:
            run.log(f"no checkpoint at the end: {error}")


def _forget_beyond(directory: Path, env_steps: int) -> None:
    for path in list(directory.iterdir()):
        match = _CHECKPOINT.match(path.name)
        if match and int(match[1]) > env_steps:
            remove(path)


# ---------------------------------------------------------------- where it runs


def _within_booking(config: Any) -> Any:
    """`learner.num_gpus: auto` means the GPUs that the trial has booked, not those of the machine."""
    learner: Any = getattr(config, "learner", None)
    if getattr(learner, "num_gpus", None) != "auto" or not rlplat.is_initialized():
        return config
    group = rlplat.get_current_placement_group()
    booked = rlplat.cluster_resources() if group is None else group.bundle_specs[0]
    num_gpus = booked.get("GPU", 0.0)
    if num_gpus >= 1:
        return config
    return config.model_copy(update={"learner": learner.model_copy(update={"num_gpus": num_gpus})})


def _fits_in_one_process(config: Any) -> bool:
    """Nothing of it needs a process of its own: rollout workers, a GPU, learners that share their work."""
    learner = getattr(config, "learner", None)
    return (
        getattr(config, "num_rollout_workers", None) == 0
        and (getattr(learner, "num_gpus", 0) == 0 or not rlplat.is_initialized())
        and getattr(learner, "num_learners", 1) == 1
    )


_sharing = threading.Lock()
_num_users = 0
_is_ours = False


@contextlib.contextmanager
def cluster_in_this_process() -> Iterator[None]:
    """The verbs work inside this process; programs that live in it side by side share it."""
    global _num_users, _is_ours
    with _sharing:
        if not _num_users:
            _is_ours = not rlplat.is_initialized() or _is_in_a_worker()
            if _is_ours:
                rlplat.init(backend="inproc")
        _num_users += 1
    try:
        yield
    finally:
        with _sharing:
            _num_users -= 1
            if not _num_users and _is_ours:
                rlplat.shutdown()


def _is_in_a_worker() -> bool:
    return rlplat.get_runtime_context().is_worker
