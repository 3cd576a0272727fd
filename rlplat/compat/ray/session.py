"""What runs in this thread, a trial of Tune or a rank of Train: where `report` goes, whichever of them it is."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from rlplat.errors import RlplatError


class Session(Protocol):
    trial_id: str
    directory: Path
    rank: int
    world_size: int

    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None = None) -> None: ...

    def get_checkpoint(self) -> Checkpoint | None: ...


_here = threading.local()


def current() -> Session:
    found: Session | None = getattr(_here, "session", None)
    if found is None:
        raise RlplatError("there is no trial or training in this thread: report from the function that was given to it")
    return found


@contextlib.contextmanager
def running(session: Session) -> Iterator[None]:
    _here.session = session
    try:
        yield
    finally:
        _here.session = None


class Checkpoint:
    """A directory of files."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    @classmethod
    def from_directory(cls, path: str | Path) -> Checkpoint:
        return cls(path)

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        yield self.path

    def to_directory(self, path: str | Path | None = None) -> str:
        target = path or tempfile.mkdtemp()
        return str(shutil.copytree(self.path, target, dirs_exist_ok=True))

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r})"


def report(metrics: Any = None, *, checkpoint: Checkpoint | None = None, **named: Any) -> None:
    """`tune.report(loss=0.1)`, `train.report({"loss": 0.1}, checkpoint=Checkpoint.from_directory(path))`."""
    if not isinstance(metrics, dict):
        metrics = {} if metrics is None else {"_metric": metrics}
    current().report({**metrics, **named}, checkpoint)


log = report  # `tune.track.log(mean_accuracy=0.9)`, of 2019 and 2020


def trial_dir() -> str:
    return str(current().directory)


def trial_name() -> str:
    return current().trial_id


def get_checkpoint() -> Checkpoint | None:
    return current().get_checkpoint()


class Context:
    def get_world_rank(self) -> int:
        return current().rank

    get_local_rank = get_world_rank  # ranks are processes of one machine

    def get_world_size(self) -> int:
        return current().world_size

    get_local_world_size = get_world_size

    get_trial_id = get_trial_name = staticmethod(trial_name)
    get_trial_dir = staticmethod(trial_dir)


def get_context() -> Context:
    current()
    return Context()
