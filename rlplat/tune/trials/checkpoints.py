"""Checkpoints of a trial on the disk: whole or absent, verified before use, the newest two.

    trials/00003/checkpoints/
        step_7/                          as `rlplat.checkpoints` writes it: manifest.json, state.json, arrays
        step_8/state/                    the same, where something lies beside it:
        step_8/files/0/model.pt          copies of the files and directories that the state names
        step_8/seed_0/step_8/            the checkpoints of the programs of a trial with several seeds
        exploit_1_from_2_step_5/         another trial's, copied here by the tuner

A number is the reports up to it, or more where that would not be the highest in the directory: a trial that goes on
from another one's checkpoint may have been further itself.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlplat import checkpoints
from rlplat.errors import CheckpointError

_NAME = re.compile(r"step_(\d+)$")
_IS_OURS = re.compile(r"(step|exploit)_\d+")
_BLOCK_BYTES = 1 << 20
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""Another file system, one without hard links, or too many links."""
FileEntry = list[Any]
"""[bytes, SHA-256]; [] for a directory."""


class TrialCheckpoints:
    """Of one program: what it has written, what it began from, and what of all that is still needed."""

    def __init__(self, trial: int) -> None:
        self._trial = trial
        self._began_from: Path | None = None
        self._last = ""

    def save(self, directory: Path, state: Any, step: int) -> str:
        """Write a checkpoint below `directory` and return its name; the one before it stays, older ones go.

        state: or a function of the directory to put things in that lie beside the state, which returns the state.
        Raises CheckpointError for a state that cannot be kept, OSError when the disk refuses; what was there before
        stays.
        """
        before = self._before(directory)
        number = max([step, *(number + 1 for number in _numbers(directory))])
        temporary = directory / f".writing-step_{number}-{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            if callable(state):
                temporary.mkdir(parents=True)
                state = state(temporary)
            files: list[Path] = []
            tree = {"step": step, "trial": self._trial, "state": self._encoded(state, files)}
            if files:
                tree["files"] = [
                    {"name": path.name or "files", "entries": _copy(path, temporary / "files" / str(index))}
                    for index, path in enumerate(files)
                ]
            info = checkpoints.CheckpointInfo(algorithm=f"trial {self._trial}", env="", env_steps=number)
            if temporary.is_dir():
                # Kept are those that are needed, not the newest by number; so it is to remove none.
                written = checkpoints.save(temporary, tree, info, keep=sys.maxsize)
                written.rename(temporary / "state")
                (temporary / "latest").unlink(missing_ok=True)
                checkpoints.sync_directory(temporary)
                temporary.rename(directory / written.name)
                checkpoints.sync_directory(directory)
            else:
                checkpoints.save(directory, tree, info, keep=sys.maxsize)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._last = f"step_{number}"
        for old in directory.iterdir():
            if _IS_OURS.match(old.name) and old.name not in (self._last, before):
                with suppress(OSError):  # the new one is there; the next save tries this again
                    remove(old)
        return self._last

    def _encoded(self, state: Any, files: list[Path]) -> Any:
        try:
            return encode(state, files)
        except TypeError as error:
            raise CheckpointError(f"cannot checkpoint the state of trial {self._trial}: {error}") from None

    def _before(self, directory: Path) -> str:
        """The checkpoint that is still needed while the next one is written. Those after the one that we began from
        were written by an attempt that did not live to tell: they are nobody's."""
        if self._last:
            return self._last
        if self._began_from is not None and self._began_from.parent == directory:
            return self._began_from.name
        return f"step_{max(numbers)}" if (numbers := _numbers(directory)) else ""

    def load(self, path: Path, restore_to: Path) -> tuple[Any, int]:
        """(the state, reports up to it). Files that it names are copied below `restore_to`, where the trial may keep
        and change them. CheckpointError where the checkpoint is damaged or not a trial's."""
        self._began_from = path
        has_more = (path / "state").is_dir()
        saved = checkpoints.load(path / "state" if has_more else path).state
        if "state" not in saved or "step" not in saved:
            raise CheckpointError(f"checkpoint {path} is not one of a trial")
        files: list[Path] = []
        if listed := saved.get("files"):
            shutil.rmtree(restore_to, ignore_errors=True)
            for index, file in enumerate(listed):
                files.append(restore_to / str(index) / file["name"])
                entries = _copy(path / "files" / str(index) / file["name"], restore_to / str(index))
                if entries != file["entries"]:
                    raise CheckpointError(f"checkpoint {path} cannot be used: {file['name']} was altered")
        return decode(saved["state"], files), int(saved["step"])


def _numbers(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(match[1]) for entry in directory.iterdir() if (match := _NAME.match(entry.name))]


def _copy(source: Path, into: Path) -> dict[str, FileEntry]:
    """Copy a file or a directory with all that is in it into the directory `into`, synced; what was copied, by its
    path there. CheckpointError where there is none, or something in it is neither."""
    entries: dict[str, FileEntry] = {}
    target = into / (source.name or "files")
    into.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        target.mkdir()
        entries[target.name] = []
        for folder, folders, names in os.walk(source):
            inside = Path(folder).relative_to(source)
            for name in folders:
                (target / inside / name).mkdir()
                entries[str(target.name / inside / name)] = []
            for name in names:
                entries[str(target.name / inside / name)] = _copy_file(Path(folder) / name, target / inside / name)
            checkpoints.sync_directory(target / inside)
    else:
        entries[target.name] = _copy_file(source, target)
    checkpoints.sync_directory(into)
    return entries


def copy_checkpoint(source: Path, target: Path) -> None:
    """Hard links (copies where there can be none) under a temporary name, then a rename: whole or absent.

    Raises OSError when the disk refuses.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".copying-{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        shutil.copytree(source, temporary, copy_function=_link)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def why_not_copied(error: OSError) -> str:
    """The cause in one line; `copytree` raises all that it met in one error, as (source, target, text) each."""
    if isinstance(error, shutil.Error):
        return str(error.args[0][0][-1])
    return str(error)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy_file(Path(source), Path(target))


def _copy_file(source: Path, target: Path) -> FileEntry:
    if not source.is_file():
        is_there = "is neither a file nor a directory" if source.exists() else "is not there"
        raise CheckpointError(f"a checkpoint names the file {source}, which {is_there}")
    digest, num_bytes = hashlib.sha256(), 0
    with open(source, "rb") as reading, open(target, "xb") as writing:
        while block := reading.read(_BLOCK_BYTES):
            digest.update(block)
            num_bytes += len(block)
            writing.write(block)
        writing.flush()
        os.fsync(writing.fileno())
    return [num_bytes, digest.hexdigest()]


def remove(path: Path) -> None:
    """A directory first loses its name, so that no half of it can be mistaken for a checkpoint; the next writer in
    the directory removes what is left of it."""
    gone = path.with_name(f".removing-{path.name}-{os.getpid()}")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


_TENSOR, _PATH, _ESCAPED = "$tensor", "$path", "$escaped"


def encode(value: Any, files: list[Path]) -> Any:
    """`files` gets the paths that were met, to be copied. TypeError for a tensor that is not plain."""
    if isinstance(value, dict):
        encoded = {key: encode(inner, files) for key, inner in value.items()}
        is_ours = len(encoded) == 1 and next(iter(encoded)) in (_TENSOR, _PATH, _ESCAPED)
        return {_ESCAPED: encoded} if is_ours else encoded
    if type(value) in (list, tuple):
        return type(value)(encode(inner, files) for inner in value)
    if isinstance(value, Path):
        files.append(value)
        return {_PATH: len(files) - 1}
    if "torch" in sys.modules and type(value).__module__.startswith("torch"):
        from rlplat.data_parallel.torch import states

        if states.is_tensor(value):
            return {_TENSOR: list(states.to_array(value))}
    return value


def decode(value: Any, files: list[Path]) -> Any:
    if isinstance(value, dict):
        kind = next(iter(value)) if len(value) == 1 else None
        if kind == _TENSOR:
            from rlplat.data_parallel.torch import states

            return states.from_array(*value[_TENSOR])
        if kind == _PATH:
            return files[value[_PATH]]
        inside = value[_ESCAPED] if kind == _ESCAPED else value
        return {key: decode(inner, files) for key, inner in inside.items()}
    if type(value) in (list, tuple):
        return type(value)(decode(inner, files) for inner in value)
    return value
