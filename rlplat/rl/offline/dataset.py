"""Data sets of recorded episodes: a directory that is whole or absent, readable with numpy alone, free of pickle.

    data/
        manifest.json         environment, spaces, counts, returns, where it came from; size and SHA-256 of each file
        episodes-00000.npz    whole episodes, the columns of `Episodes`: obs (or obs/<path>), actions, rewards, lengths,
        episodes-00001.npz    terminated

    with DataWriter("data", env="CartPole-v1", spaces=spec) as writer:
        writer.add(episodes)
    manifest = read_manifest("data")                # cheap
    episodes = read_episodes("data")                # everything, checked

An episode is never divided between two files. Writing: a hidden directory beside the target, fsync of every file, the
manifest last, rename.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from rlplat.checkpoints import sync_directory, write_file
from rlplat.errors import UsageError
from rlplat.figures import figure
from rlplat.paths import expanded, user_path
from rlplat.rl.argument_values import as_plain
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.offline.episodes import Episodes, concat_episodes
from rlplat.rl.spaces import SpaceSpec

FORMAT = 1
FILE_BYTES = 64 << 20
"""Of columns in memory, after which a file is closed: what a writer holds, whatever the length of the recording."""
MINARI = "minari:"
"""Before the name of a data set of Minari's: `rlplat record` makes it one of ours (from_minari.py)."""


class DataFile(msgspec.Struct):
    name: str
    episodes: int
    env_steps: int
    bytes: int
    sha256: str


class Manifest(msgspec.Struct):
    """manifest.json"""

    format: int
    env: str
    """Empty: it is not known (a data set of Minari may lack it), and who learns names it."""
    env_kwargs: dict[str, Any]
    spaces: dict[str, Any]
    """`SpaceSpec.describe()`"""
    episodes: int
    env_steps: int
    terminated: int
    """Episodes that ended for good; the others were cut off."""
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    memory_bytes: int
    """Of all columns, once they are read."""
    source: dict[str, Any]
    """For people: run, checkpoint, algorithm, how it acted."""
    files: list[DataFile]

    @property
    def spec(self) -> SpaceSpec:
        return SpaceSpec.from_description(self.spaces)

    def __str__(self) -> str:
        env = self.env or "an unnamed environment"
        return (
            f"{self.episodes:,} episodes of {env}, {self.env_steps:,} env steps, return "
            f"{figure(self.return_mean)} ± {figure(self.return_std)} "
            f"(min {figure(self.return_min)}, max {figure(self.return_max)})"
        )


class DataWriter:
    """Within `with`; an exception leaves nothing behind."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        env: str,
        spaces: SpaceSpec,
        env_kwargs: Mapping[str, Any] | None = None,
        source: Mapping[str, Any] | None = None,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """Raises UsageError where the directory exists already. source: JSON values for people."""
        self.path = user_path(directory)
        self._env, self._env_kwargs, self._spaces = env, as_plain(env_kwargs or {}, "env_kwargs"), spaces
        self.source, self._file_bytes = dict(source or {}), file_bytes
        if os.path.lexists(self.path):
            raise UsageError(f"{self.path} exists already: choose another --out, or remove it first")
        self._temporary = self.path.with_name(f".writing-{self.path.name}-{os.getpid()}")
        self._waiting: list[Episodes] = []
        self._waiting_bytes = 0
        self._files: list[DataFile] = []
        self._returns: list[Array] = []
        self._num_terminated = self._memory_bytes = 0

    def add(self, episodes: Episodes) -> None:
        """Raises UsageError where they are not of these spaces."""
        if problem := episodes.problem(self._spaces):
            raise UsageError(f"these episodes cannot be written to {self.path}: {problem}")
        self._waiting.append(episodes)
        self._waiting_bytes += episodes.num_bytes
        if self._waiting_bytes >= self._file_bytes:
            self._write_file()

    def close(self) -> Manifest:
        """Writes what is waiting and the manifest; the data set is there when this returns."""
        if self._waiting:
            self._write_file()
        if not self._files:
            raise UsageError(f"no episode was recorded: {self.path} was not written")
        returns = np.concatenate(self._returns)
        manifest = Manifest(
            format=FORMAT,
            env=self._env,
            env_kwargs=self._env_kwargs,
            spaces=self._spaces.describe(),
            episodes=len(returns),
            env_steps=sum(file.env_steps for file in self._files),
            terminated=self._num_terminated,
            return_mean=float(returns.mean()),
            return_std=float(returns.std()),
            return_min=float(returns.min()),
            return_max=float(returns.max()),
            memory_bytes=self._memory_bytes,
            source=self.source,
            files=self._files,
        )
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        try:
            write_file(self._temporary / "manifest.json", text)
            sync_directory(self._temporary)
            self._temporary.rename(self.path)
        except OSError as error:
            raise self._cannot_write(error) from None
        sync_directory(self.path.absolute().parent)
        return manifest

    def _write_file(self) -> None:
        episodes, self._waiting, self._waiting_bytes = concat_episodes(self._waiting), [], 0
        observed = episodes.obs if isinstance(episodes.obs, dict) else {"": episodes.obs}
        columns: dict[str, Any] = {"obs" if not path else f"obs/{path}": leaf for path, leaf in observed.items()}
        for name in ("actions", "rewards", "lengths", "terminated"):
            columns[name] = getattr(episodes, name)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **columns)
        data, name = buffer.getvalue(), f"episodes-{len(self._files):05d}.npz"
        try:
            write_file(self._temporary / name, data)
        except OSError as error:
            raise self._cannot_write(error) from None
        digest = hashlib.sha256(data).hexdigest()
        self._files.append(DataFile(name, episodes.num_episodes, episodes.num_steps, len(data), digest))
        self._returns.append(episodes.returns())
        self._num_terminated += int(episodes.terminated.sum())
        self._memory_bytes += episodes.num_bytes

    def _cannot_write(self, error: OSError) -> UsageError:
        return UsageError(f"{self.path} cannot be written: {error.strerror or error}")

    def __enter__(self) -> DataWriter:
        for left in self.path.parent.glob(f".writing-{self.path.name}-*"):  # by writers that were killed
            if not psutil.pid_exists(int(left.name.rpartition("-")[2])):
                shutil.rmtree(left, ignore_errors=True)
        try:  # before episodes are played for it
            self._temporary.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._cannot_write(error) from None
        return self

    def __exit__(self, *exc_info: object) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)


def read_manifest(directory: str | os.PathLike[str]) -> Manifest:
    """Raises UsageError where there is no data set, or not one that this rlplat reads."""
    path = expanded(directory)
    try:
        manifest = msgspec.json.decode((path / "manifest.json").read_bytes(), type=Manifest)
        str(manifest.spec)
    except OSError:
        if str(directory).startswith(MINARI):
            raise UsageError(
                f"{directory} is copied once into a data set that rlplat learns from: rlplat record {directory} --out "
                "data/NAME, then --data data/NAME"
            ) from None
        place = "data/NAME" if os.path.lexists(path) else shlex.quote(str(path))  # `DataWriter` makes a new one
        raise UsageError(
            f"there is no data set in {path} (no manifest.json): rlplat record RUN --out {place} makes one"
        ) from None
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"manifest.json cannot be read: {error}") from None
    if manifest.format != FORMAT:
        raise UsageError(f"{path} has format {manifest.format}, and this rlplat reads {FORMAT}: record it again")
    return manifest


def read_episodes(directory: str | os.PathLike[str]) -> Episodes:
    """All episodes, in the order of the files. UsageError where they do not fit into memory, or a file is damaged."""
    path, manifest = expanded(directory), read_manifest(directory)
    available = psutil.virtual_memory().available
    if manifest.memory_bytes > available:
        raise UsageError(
            f"{path} needs {manifest.memory_bytes >> 20:,} MiB of memory, and {available >> 20:,} MiB are free: record "
            "fewer episodes"
        )
    parts = [_read_file(path, file, manifest.spec) for file in manifest.files]
    if sum(part.num_episodes for part in parts) != manifest.episodes or not parts:
        raise _damaged(path, f"manifest.json counts {manifest.episodes:,} episodes, its files hold others")
    return concat_episodes(parts)


def _read_file(path: Path, file: DataFile, spaces: SpaceSpec) -> Episodes:
    if Path(file.name).name != file.name:
        raise _damaged(path, f"manifest.json names a file outside of it, {file.name}")
    try:
        data = (path / file.name).read_bytes()
    except OSError as error:
        raise _damaged(path, f"{file.name}: {(error.strerror or str(error)).lower()}") from None
    if len(data) != file.bytes or hashlib.sha256(data).hexdigest() != file.sha256:
        raise _damaged(path, f"{file.name} was altered (its size or SHA-256 differs from the manifest's)")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as columns:
            leaves = {
                name.removeprefix("obs").removeprefix("/"): columns[name]
                for name in columns.files
                if name.partition("/")[0] == "obs"
            }
            obs: Obs = leaves[""] if set(leaves) == {""} else leaves
            rest = {name: columns[name] for name in ("actions", "rewards", "lengths", "terminated")}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _damaged(path, f"{file.name} does not hold the columns of episodes: {error}") from None
    episodes = Episodes(obs=obs, **rest)
    if problem := episodes.problem(spaces):
        raise _damaged(path, f"{file.name}: {problem}")
    return episodes


def _damaged(path: Path, what: str) -> UsageError:
    return UsageError(f"the data set {path} is damaged: {what}; copy it again, or record it again (rlplat record)")
