"""Where a program reports to: the trial, or the rank, that runs in this process."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from rlplat.errors import UsageError


class Checkpoint:
    """A directory of files (Ray 2), or a dict (Ray 1's `from_dict`)."""

    def __init__(self, path: str) -> None:
        self.path = str(path)

    @classmethod
    def from_directory(cls, path: Any) -> Checkpoint:
        return cls(path)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Checkpoint:
        import cloudpickle

        folder = Path(tempfile.mkdtemp(prefix="rlplat-checkpoint-"))
        (folder / "dict.pkl").write_bytes(cloudpickle.dumps(data))
        return cls(str(folder))

    def to_dict(self) -> dict[str, Any]:
        import cloudpickle

        found: dict[str, Any] = cloudpickle.loads((Path(self.path) / "dict.pkl").read_bytes())
        return found

    def to_directory(self, path: Any = None) -> str:
        target = Path(path) if path else Path(tempfile.mkdtemp(prefix="rlplat-checkpoint-"))
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return str(target)

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        yield self.path

    def __repr__(self) -> str:
        return f"Checkpoint({self.path})"


class Session(Protocol):
    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None) -> None: ...
    @property
    def checkpoint(self) -> Checkpoint | None: ...
    @property
    def trial_dir(self) -> str: ...


_current: list[Session] = []


def current() -> Session:
    if not _current:
        raise UsageError("report() and its siblings are for a function that Tune or Train runs")
    return _current[-1]


@contextlib.contextmanager
def running(session: Session) -> Iterator[None]:
    _current.append(session)
    try:
        yield
    finally:
        _current.remove(session)


def report(
    metrics: Mapping[str, Any] | None = None, *, checkpoint: Checkpoint | None = None, **named: Any
) -> None:
    """`tune.report(loss=0.1)` of Ray 1, `tune.report({"loss": 0.1}, checkpoint=...)` of Ray 2."""
    current().report({**(metrics or {}), **named}, checkpoint)


def get_checkpoint() -> Checkpoint | None:
    return current().checkpoint


def get_context() -> Any:
    return current()
