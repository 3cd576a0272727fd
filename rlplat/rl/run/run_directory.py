"""The directory of a run: what is in it, who may write to it, how a run is found again.

    runs/NAME/  config.yaml (complete, resolved)  params.json  metrics.jsonl  progress.csv  tensorboard/  log.txt
                checkpoints/step_<env_steps>/  checkpoints/latest  checkpoints/best/  videos/

The process that trains holds a lock on log.txt, so that nobody resumes a run that is still going; and where that file
is not in its place any more, the directory is lost: the run ends, and what was learnt is saved in another one.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from rlplat.checkpoints import Checkpoint, CheckpointInfo, load_best, save, save_best
from rlplat.config import parse_yaml
from rlplat.errors import CheckpointError, ConfigError, EnvError, NonFiniteError, RlplatError, RuntimeFault
from rlplat.metrics import CsvWriter, JsonlWriter, MetricsLog, MetricsWriter, forget_after, read_records
from rlplat.paths import shown
from rlplat.rl.interfaces import Result, Weights
from rlplat.rl.run.view import Progress
from rlplat.tensorboard_events import TensorboardWriter

if TYPE_CHECKING:
    from rlplat.rl.run.algorithm import Algorithm


def refuse_existing(path: Path) -> None:
    """A new run needs a directory of its own: one that is not there yet, an empty one, or that of a run that ended
    before its first record and checkpoint."""
    where = shown(path)
    try:
        if path.is_dir() and (not any(path.iterdir()) or _came_to_nothing(path)):
            return
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise ConfigError(f"cannot write to the run directory {where}: {error.strerror or error}") from None
    if path.is_dir() and (path / "config.yaml").exists():
        raise ConfigError(
            f"a run is already in {where}; to resume it: --resume {shlex.quote(str(where))}; or choose another place: "
            "--out DIRECTORY"
        )
    if path.exists():
        what = "is a file" if path.is_file() else "already exists and holds something else than a run"
        raise ConfigError(f"{where} {what}; choose another place: --out DIRECTORY")


def _came_to_nothing(path: Path) -> bool:
    """Whether a run ended in this directory with nothing but its log.txt to lose."""
    if not (path / "config.yaml").exists() or is_running(path):
        return False
    kept = [*path.glob("checkpoints/[!.]*"), *path.glob("videos/[!.]*")]
    return not kept and not read_records(path / "metrics.jsonl")


AUTO = "auto"
"""`--resume auto`: begin in `--out`, or continue what is there."""


def has_checkpoints(path: Path) -> bool:
    """Whether a run is in this directory that saved one, valid or not."""
    return (path / "config.yaml").exists() and any((path / "checkpoints").glob("step_*"))


def put_aside(path: Path) -> Path | None:
    """Rename the directory of a run that ended with records and without a checkpoint: its new place; None where no such
    run is there."""
    if not (path / "config.yaml").exists() or is_running(path) or _came_to_nothing(path):
        return None
    names = (path.with_name(f"{path.name}-ended-{number}") for number in itertools.count(1))
    return path.rename(next(name for name in names if not name.exists()))


def not_a_run(path: Path) -> str:
    """Why there is no run to open in this directory, and what to open instead."""
    where = shown(path)
    if (path / "experiment.yaml").exists():
        trials = sorted(trial for trial in (path / "trials").glob("*") if (trial / "config.yaml").exists())
        if trials:
            listing = f"rlplat runs {shlex.quote(str(where))} lists them"
            return f"{where} is an experiment, whose trials are runs: {shown(trials[0])}, ... ({listing})"
        return f"{where} is an experiment, and none of its trials is a run; rlplat tune show {shlex.quote(str(where))}"
    for run in path.parents[:2]:
        if (run / "config.yaml").exists() and "checkpoints" in path.relative_to(run).parts[:1]:
            return f"{where} is of the run {shown(run)}: give that directory"
    return f"no run in {where}: it has no config.yaml; `rlplat runs` lists the runs"


def is_running(path: Path) -> bool:
    """Whether a process is training in this run directory now."""
    try:
        with open(path / "log.txt") as log:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class RunDirectoryLost(RlplatError):
    """It was removed, moved or replaced while the run was training."""


class RunDirectory:
    """An open run directory. `RunDirectory(path, ...)` makes it, or opens it where `resumed` is the last result."""

    def __init__(
        self,
        path: Path,
        *,
        config_yaml: str,
        info: Callable[[Any, int], CheckpointInfo],
        progress: Progress,
        resumed_wall_s: float | None = None,
        last: Result | None = None,
    ) -> None:
        """config_yaml: the text of config.yaml; info: (algorithm, env_steps) -> what the manifest says;
        resumed_wall_s: seconds trained so far where the run goes on, None where it begins."""
        self.path = path
        self.progress = progress
        self.last = last
        """The last result, also that of the checkpoint from which the run goes on."""
        self.last_record: dict[str, Any] = {}
        """The newest line of metrics.jsonl that this process has written."""
        self.wall_s = resumed_wall_s or 0.0
        self._info, self._config_yaml = info, config_yaml
        self._tried_env_steps = last.env_steps if last else 0
        self._tried_s = monotonic()
        self.saved_env_steps: int | None = None
        """Env steps of the newest checkpoint."""
        resumed = resumed_wall_s is not None
        if not resumed:
            refuse_existing(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._log = open(path / "log.txt", "a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write to the run directory {shown(path)}: {error.strerror or error}") from None
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_whole(path / "config.yaml", config_yaml)
            _write_whole(path / "params.json", _as_json(config_yaml))
            (path / "checkpoints").mkdir(exist_ok=True)
            self._remove_unfinished_videos()
            env_steps = last.env_steps if last else 0
            if resumed:
                forget_after(path, env_steps)
                self.saved_env_steps = env_steps
            writers: list[MetricsWriter] = [
                JsonlWriter(path / "metrics.jsonl"),
                CsvWriter(path / "progress.csv"),
                TensorboardWriter(path / "tensorboard", resumed_at=env_steps if resumed else None),
            ]
        except BlockingIOError:
            self._log.close()
            raise ConfigError(f"the run in {shown(path)} is still running: another process is training in it") from None
        except OSError as error:
            self._log.close()
            if not resumed:
                self.discard()
            raise ConfigError(f"cannot write to the run directory {shown(path)}: {error.strerror or error}") from None
        self._metrics = MetricsLog(writers, warn=self.say)

    def say(self, text: str) -> None:
        """To the user and to log.txt."""
        self.progress.say(text)
        self.log(text)

    def finish(self, ended_by: str) -> None:
        """The training has ended for this reason; its rate is from here on the mean of the whole run."""
        rate = self.last.env_steps / max(self.wall_s, 1e-9) if self.last else 0.0
        self.log(f"done: {ended_by}")
        self.progress.finish(ended_by, rate)

    def log(self, text: str) -> None:
        try:
            self._log.write(f"{datetime.now().isoformat(' ', 'seconds')}  {text}\n")
            self._log.flush()
        except (OSError, ValueError):
            pass  # a full disk must not end the training; the metrics' counter tells about it

    def record(self, result: Result, wall_s: float, env_steps_per_s: float) -> None:
        """One line of metrics; `result.metrics` carries the grouped names. RunDirectoryLost where it cannot be kept."""
        self.last, self.wall_s = result, wall_s
        self.require_there()
        self.last_record = {
            "iteration": result.iteration,
            "env_steps": result.env_steps,
            "wall_s": round(wall_s, 4),
            "env_steps_per_s": round(env_steps_per_s, 2),
            "episodes": result.episodes,
            "episode_return_mean": result.episode_return_mean,
            "episode_length_mean": result.episode_length_mean,
            **result.metrics,
        }
        self._metrics.write(self.last_record)
        self.progress.show(result, env_steps_per_s)

    def is_checkpoint_due(self, period: int, env_steps: int, period_s: float = 0.0) -> bool:
        """period: env steps between checkpoints, period_s: seconds between them; 0: not for that reason."""
        if 0 < period_s <= monotonic() - self._tried_s:
            return True
        return period > 0 and env_steps // period > self._tried_env_steps // period

    def save_checkpoint(
        self, algorithm: Algorithm[Any], evaluations: dict[str, Any], *, after_failure: bool = False
    ) -> Path | None:
        """Save now, unless just that state is saved (None); OSError and CheckpointError where it cannot be.

        evaluations: the state of the run's `Evaluations`; after_failure: a step has been begun and not finished.
        """
        env_steps = self.last.env_steps if self.last else 0
        if not after_failure:
            self.require_there()
        elif self._is_lost():
            self._go_elsewhere()
        if env_steps == self.saved_env_steps and (self.path / "checkpoints" / f"step_{env_steps}").exists():
            return None
        saved = self.save_to(self.path / "checkpoints", algorithm, evaluations, after_failure=after_failure)
        self.saved_env_steps = env_steps
        self.log(f"checkpoint step_{env_steps}")
        return saved

    def save_to(
        self,
        directory: Path,
        algorithm: Algorithm[Any],
        evaluations: dict[str, Any],
        *,
        keep: int = 3,
        after_failure: bool = False,
    ) -> Path:
        """A checkpoint `step_<env_steps>` in any directory, of which the newest `keep` stay there.

        after_failure: CheckpointError where the weights hold NaN or infinity, which would be resumed from."""
        env_steps = self.last.env_steps if self.last else 0
        learnt = algorithm.get_state()
        info = self._info(algorithm, env_steps)
        if after_failure:
            _require_finite(algorithm, learnt)
            begun = "the step that failed: what it had done so far is in, or is lost"
            info = replace(info, not_saved=[*info.not_saved, begun])
        state = {
            "algorithm": learnt,
            "training": {
                "wall_s": self.wall_s,
                "last": asdict(self.last) if self.last else None,
                "evaluations": evaluations,
            },
        }
        return save(directory, state, info, keep=keep)

    def try_save_checkpoint(self, algorithm: Algorithm[Any], evaluations: dict[str, Any]) -> Path | None:
        """Within a run: a checkpoint that cannot be written is a warning, the older ones stay; the next try is a
        period later, as on a full disk every try costs time. None where nothing was written."""
        self._tried_env_steps = self.last.env_steps if self.last else 0
        try:
            return self.save_checkpoint(algorithm, evaluations)
        except (OSError, CheckpointError, RuntimeFault) as error:
            if isinstance(error, EnvError | NonFiniteError):
                raise  # of a step that was still going on: it ends the run
            self.say(
                f"warning: no checkpoint at {self._tried_env_steps:,} env steps: {error}; "
                "training continues, the older checkpoints stay"
            )
            return None
        finally:
            self._tried_s = monotonic()

    def best_evaluation(self) -> dict[str, float]:
        """The figures of the weights in checkpoints/best; empty where there are none (or damaged ones)."""
        try:
            best = load_best(self.path)
        except CheckpointError as error:
            self.say(f"warning: {error}; the next evaluation replaces it")
            return {}
        return best.info.evaluation if best else {}

    def save_best(
        self, algorithm: Algorithm[Any], weights: Weights, env_steps: int, evaluation: dict[str, float]
    ) -> None:
        """Acting weights into checkpoints/best; a full disk is a warning, and the older best stays."""
        info = replace(self._info(algorithm, env_steps), not_saved=[], evaluation=evaluation)
        if self._is_lost():  # the next record says so
            return
        try:
            save_best(self.path / "checkpoints", weights, info)
        except (OSError, CheckpointError) as error:
            self.say(f"warning: checkpoints/best was not written at {env_steps:,} env steps: {error}")
        else:
            self.log(f"best so far: evaluation {evaluation['eval/return_mean']:g} at {env_steps:,} env steps")

    def require_there(self) -> None:
        """RunDirectoryLost where the directory is not the one that this run began in."""
        if self._is_lost():
            where = self._moved_to()
            what = f"was moved to {where}" if where else "was removed, or replaced by another one,"
            raise RunDirectoryLost(f"the run directory {shown(self.path)} {what} while the run was training in it")

    def _is_lost(self) -> bool:
        try:
            return not os.path.samestat(os.stat(self.path / "log.txt"), os.fstat(self._log.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError):  # a file system that does not answer has not lost it
            return False

    def _moved_to(self) -> Path | None:
        """Where the directory is under another name; None where it is gone."""
        with suppress(OSError, ValueError):
            log = Path(os.readlink(f"/proc/self/fd/{self._log.fileno()}"))
            if os.path.samestat(os.stat(log), os.fstat(self._log.fileno())) and (log.parent / "config.yaml").exists():
                return log.parent
        return None

    def _go_elsewhere(self) -> None:
        """To where the directory was moved, else to a new one beside it, else to one for temporary files."""
        if moved := self._moved_to():
            self.path = moved
            return
        lost = self.path
        number = 1
        while (place := lost.with_name(f"{lost.name}-saved{f'-{number}' if number > 1 else ''}")).exists():
            number += 1
        try:
            place.mkdir(parents=True)
            log = open(place / "log.txt", "a", encoding="utf-8")
        except OSError:
            place = Path(tempfile.mkdtemp(prefix=f"{lost.name}-saved-"))
            log = open(place / "log.txt", "a", encoding="utf-8")
        self._log.close()
        self.path, self._log, self.saved_env_steps = place, log, None
        fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write_whole(place / "config.yaml", self._config_yaml)
        _write_whole(place / "params.json", _as_json(self._config_yaml))
        if self.last_record:
            (place / "metrics.jsonl").write_text(json.dumps(self.last_record, default=float) + "\n")

    def discard(self) -> None:
        """Remove what this object has written, and the directory if nothing else is in it; after `close`."""
        for name in ("config.yaml", "params.json", "metrics.jsonl", "progress.csv", "log.txt"):
            (self.path / name).unlink(missing_ok=True)
        for name in ("tensorboard", "checkpoints", "videos", "tracking"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        with suppress(OSError):
            self.path.rmdir()

    def close(self) -> None:
        self._metrics.close()
        self.progress.close()
        self._remove_unfinished_videos()
        try:
            self._log.close()
        except OSError:
            pass  # what was buffered does not fit on the disk

    def _remove_unfinished_videos(self) -> None:
        """What an evaluation leaves that was ended while it filmed."""
        for unfinished in (self.path / "videos").glob(".*.new"):
            unfinished.unlink(missing_ok=True)


def _require_finite(algorithm: Algorithm[Any], state: dict[str, Any]) -> None:
    """Where the algorithm can say what it acts with."""
    if not algorithm.acts_alone():
        return
    for name, array in algorithm.policy_weights(state).items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(f"the weights hold NaN or infinity ({name})")


def _as_json(config_yaml: str) -> str:
    """The same settings, where rllab's VisKit looks for them beside progress.csv."""
    values = parse_yaml(config_yaml, "config.yaml").values
    values.pop("code", None)
    return json.dumps(values, indent=1)


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def restore(algorithm: Algorithm[Any], checkpoint: Checkpoint) -> None:
    """Give the algorithm the checkpoint's state; CheckpointError, naming both sides, when it belongs to another one."""
    saved = checkpoint.info
    for what, theirs, ours in (
        ("algorithm", saved.algorithm, algorithm.name),
        ("spaces", saved.spaces, str(algorithm.spaces)),
    ):
        if theirs != ours:
            raise CheckpointError(
                f"{checkpoint.path} cannot be loaded: its {what} is {theirs!r}, and now it is {ours!r} "
                f"({algorithm.config.env})"
            )
    algorithm.set_state(checkpoint.state["algorithm"])
