"""Checkpoints: directories that are whole or absent, verified before use, and free of pickled code.

    checkpoints/step_204800/
        manifest.json          schema version, algorithm, env, versions, env_steps, SHA-256 and size of each file
        state.json             the state's shape: numbers, texts, and `{"$array": name}` where an array belongs
        <part>.safetensors     the arrays of each top-level part (learner, workers, ...), little endian
    checkpoints/latest         the name of the newest one; a hint, the manifests decide
    checkpoints/best/          the weights alone that played the best evaluation, in the same form

Writing: a temporary directory beside the target, fsync of every file, the manifest last, fsync of the directory,
rename, fsync of the parent. A reader therefore sees either no `step_N` or a complete one, whatever kills the
writer; and damage of any kind (bit flips, truncation, missing or extra files, links) shows in the manifest.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import rlplat
from rlplat.checkpoint_state import BadState, pack, unpack
from rlplat.errors import CheckpointError
from rlplat.paths import expanded

if TYPE_CHECKING:
    import numpy as np

SCHEMA_VERSION = 1
MAX_JSON_BYTES = 256 << 20
"""Largest manifest.json or state.json that is read."""

BEST = "best"
WEIGHTS = "weights"
"""The part of `best` that holds the arrays."""

_NAME = re.compile(r"step_(\d+)(\.replaced)?$")
_DIGEST_KEY = "manifest_sha256"


@dataclass(frozen=True)
class CheckpointInfo:
    """What the manifest says beside the files; `not_saved` names the state that could not be kept."""

    algorithm: str
    env: str
    env_steps: int
    spaces: str = ""
    not_saved: list[str] = field(default_factory=list)
    evaluation: dict[str, float] = field(default_factory=dict)
    """Of `best`: the figures of the evaluation that it won with."""


class _File(msgspec.Struct):
    bytes: int
    sha256: str


class _Manifest(msgspec.Struct):
    """What a manifest must hold; what an older rlplat did not write yet has a default."""

    algorithm: str
    env: str
    env_steps: int
    files: dict[str, _File]
    spaces: str = ""
    not_saved: list[str] = []
    evaluation: dict[str, float] = {}
    not_a_number: list[str] = []


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    state: dict[str, Any]
    info: CheckpointInfo
    manifest: dict[str, Any]

    @property
    def has_weights_only(self) -> bool:
        """Whether it is a `best`: enough to act, not to train on."""
        return set(self.state) == {WEIGHTS}


def save(directory: str | os.PathLike[str], state: dict[str, Any], info: CheckpointInfo, *, keep: int = 3) -> Path:
    """Write `directory/step_<env_steps>` and keep the newest `keep` good ones.

    state: nested dicts, lists and tuples of numpy arrays, numbers (integers of any size), texts, booleans, None.
    Raises OSError when the disk refuses (what was saved before stays, partial files go), CheckpointError when
    the state holds something else.
    """
    directory = expanded(directory)
    target = _write(directory, f"step_{info.env_steps}", state, info)
    _write_latest(directory, target.name)
    _prune(directory, keep)
    return target


def save_best(directory: str | os.PathLike[str], weights: dict[str, np.ndarray], info: CheckpointInfo) -> Path:
    """Write `directory/best` in place of the one before: whole or the old one, as with `save`.

    weights: all that acting needs, normaliser statistics included; nothing to train on with.
    """
    return _write(expanded(directory), BEST, {WEIGHTS: weights}, info)


def load_best(run_directory: str | os.PathLike[str]) -> Checkpoint | None:
    """The best weights of a run, None where there are none yet; CheckpointError where they are damaged."""
    directory = Path(run_directory) / "checkpoints"
    for name in (BEST, f"{BEST}.replaced"):  # the second, where the writer was killed between its two renames
        if os.path.lexists(directory / name):
            return load(directory / name)
    return None


def _write(directory: Path, name: str, state: dict[str, Any], info: CheckpointInfo) -> Path:
    try:
        packed = pack(state)
    except BadState as error:
        raise CheckpointError(f"cannot checkpoint the state of {info.algorithm}: {error}") from None
    directory.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(directory)
    temporary = directory / f".writing-{name}-{os.getpid()}"
    try:
        temporary.mkdir()
        files = {}
        for file_name, data in packed.files.items():
            write_file(temporary / file_name, data)
            files[file_name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest = {
            "schema_version": SCHEMA_VERSION,
            **asdict(info),
            "versions": _versions(),
            "files": files,
            "not_a_number": packed.not_a_number,
        }
        write_file(temporary / "manifest.json", _manifest_bytes(manifest))
        sync_directory(temporary)
        target = _publish(temporary, directory / name)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read one checkpoint directory; a damaged one is refused with the reason and the next older valid one."""
    path = expanded(path)
    try:
        return _read(path)
    except _Damaged as damage:
        older = next((good for good, _ in _newest_first(path.parent, older_than=path) if good), None)
        offer = f"; the next older valid one is {older.path}" if older else "; there is no older valid one beside it"
        raise CheckpointError(f"checkpoint {path} cannot be used: {damage}{offer}") from None


def latest_valid(run_directory: str | os.PathLike[str]) -> tuple[Checkpoint | None, list[str]]:
    """The newest valid checkpoint of a run, and a line about each newer one that had to be passed over."""
    refused: list[str] = []
    for good, reason in _newest_first(Path(run_directory) / "checkpoints"):
        if good:
            return good, refused
        refused.append(reason)
    return None, refused


class _Damaged(Exception):
    """Why a checkpoint cannot be used."""


def _newest_first(directory: Path, older_than: Path | None = None) -> Iterator[tuple[Checkpoint | None, str]]:
    """(checkpoint, "") for a valid one and (None, reason) for another, newest first; read on the way."""
    limit = _rank(older_than.name) if older_than else None
    for path in sorted(_candidates(directory), key=lambda path: _rank(path.name), reverse=True):
        if limit is not None and _rank(path.name) >= limit:
            continue
        try:
            checkpoint = _read(path)
            if names := checkpoint.manifest.get("not_a_number"):
                raise _Damaged(f"it holds NaN in {', '.join(names[:3])}")
        except _Damaged as damage:
            yield None, f"checkpoint {path} passed over: {damage}"
        else:
            yield checkpoint, ""


def _candidates(directory: Path) -> list[Path]:
    try:
        return [entry for entry in directory.iterdir() if _NAME.match(entry.name)]
    except OSError:
        return []


def _rank(name: str) -> tuple[int, bool]:
    """step_9 < step_10.replaced < step_10."""
    match = _NAME.match(name)
    return (int(match[1]), match[2] is None) if match else (-1, False)


def _read(path: Path) -> Checkpoint:
    manifest = _verify(path)
    info = CheckpointInfo(**{key: manifest[key] for key in CheckpointInfo.__dataclass_fields__ if key in manifest})
    try:
        state = unpack({name: (path / name).read_bytes() for name in manifest["files"]})
    except (BadState, OSError) as error:
        raise _Damaged(str(error)) from None
    return Checkpoint(path, state, info, manifest)


def _verify(path: Path) -> dict[str, Any]:
    """Check every file against the manifest before anything is parsed beyond it."""
    manifest = _read_manifest(path)
    listed = manifest["files"]
    try:
        present = {entry.name for entry in path.iterdir()} - {"manifest.json"}
    except OSError as error:
        raise _Damaged(error.strerror or str(error)) from None
    if missing := sorted(listed.keys() - present):
        raise _Damaged(f"file {missing[0]} is missing")
    if extra := sorted(present - listed.keys()):
        raise _Damaged(f"file {extra[0]} does not belong to it")
    for name, entry in listed.items():
        data = _read_regular(path / name, max_bytes=entry["bytes"])
        if len(data) != entry["bytes"]:
            raise _Damaged(f"file {name} has {len(data)} bytes, not {entry['bytes']}")
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise _Damaged(f"file {name} was altered (its SHA-256 differs from the manifest's)")
    return manifest


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise _Damaged("it is not a directory")
    except OSError as error:
        raise _Damaged(error.strerror or str(error)) from None
    data = _read_regular(path / "manifest.json", max_bytes=MAX_JSON_BYTES)
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError):
        raise _Damaged("manifest.json is not JSON") from None
    if not isinstance(manifest, dict) or "schema_version" not in manifest:
        raise _Damaged("manifest.json is not a checkpoint's manifest")
    version = manifest["schema_version"]
    digest = manifest.pop(_DIGEST_KEY, None)
    try:
        is_same = data == _manifest_bytes(manifest)
    except RecursionError:  # writing goes less deep than reading
        is_same = False
    if not is_same or not digest:
        raise _Damaged("manifest.json was altered (its own SHA-256 differs)")
    if version != SCHEMA_VERSION:
        raise _Damaged(f"its schema version is {version}, this rlplat reads {SCHEMA_VERSION}")
    try:
        msgspec.convert(manifest, _Manifest)
    except msgspec.ValidationError as error:
        raise _Damaged(f"manifest.json is not a checkpoint's manifest: {error}") from None
    return manifest


def _manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """The one spelling of a manifest, with a digest of itself, so that any changed bit shows."""
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return (json.dumps({**manifest, _DIGEST_KEY: digest}, indent=1, sort_keys=True) + "\n").encode()


def _read_regular(path: Path, max_bytes: int) -> bytes:
    """The bytes of a plain file; links, devices and files beyond `max_bytes` are refused unread."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        reason = "is a symbolic link" if error.errno == errno.ELOOP else (error.strerror or str(error)).lower()
        raise _Damaged(f"file {path.name}: {reason}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        what = "is a directory" if stat.S_ISDIR(status.st_mode) else "is not a plain file"
        raise _Damaged(f"file {path.name}: {what}")
    with open(descriptor, "rb") as file:
        if status.st_size > max_bytes:
            raise _Damaged(f"file {path.name} has {status.st_size} bytes, more than {max_bytes}")
        try:
            return file.read()
        except OSError as error:
            raise _Damaged(f"file {path.name}: {error.strerror}") from None


def write_file(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(temporary: Path, target: Path) -> Path:
    """Rename into place. An older `step_N` of the same number steps aside under a name that readers know too."""
    aside = target.with_name(target.name + ".replaced")
    if os.path.lexists(target):
        _remove(aside)
        os.rename(target, aside)
    os.rename(temporary, target)
    sync_directory(target.parent)
    _remove(aside)
    return target


def _write_latest(directory: Path, name: str) -> None:
    """`latest` is for people and scripts; failing to write it loses nothing."""
    temporary = directory / f".writing-latest-{os.getpid()}"
    try:
        _remove(temporary)
        write_file(temporary, f"{name}\n".encode())
        os.rename(temporary, directory / "latest")
    except OSError:
        _remove(temporary)


def _prune(directory: Path, keep: int) -> None:
    """Delete what is older than the newest `keep` checkpoints whose manifests are good and free of NaN."""
    good = 0
    for path in sorted(_candidates(directory), key=lambda path: _rank(path.name), reverse=True):
        if good >= max(keep, 1):
            _remove(path)
            continue
        try:
            good += not _read_manifest(path)["not_a_number"]
        except _Damaged:
            continue


def _remove(path: Path) -> None:
    """Remove a file or directory; a directory first loses its name, so that no half of it can be mistaken."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    gone = path.with_name(f".removing-{path.name}-{os.getpid()}")
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _remove_leftovers(directory: Path) -> None:
    """What a killed writer left. One run directory has one writer (the run's lock sees to it)."""
    for pattern in (".writing-*", ".removing-*"):
        for path in directory.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


@functools.cache  # it reads the metadata of packages: 5 ms
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "rlplat": rlplat.__version__}
    for package in ("numpy", "torch", "gymnasium", "ale-py", "mujoco"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
