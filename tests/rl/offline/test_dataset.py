"""Data sets on real files: what is written is read again, wherever the files are cut; what is damaged is named."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from rlplat.errors import UsageError
from rlplat.rl.offline import dataset
from rlplat.rl.offline.dataset import DataWriter, read_episodes, read_manifest
from rlplat.rl.offline.episodes import Episodes, concat_episodes
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec

PLAIN = SpaceSpec(ObsSpec("vector", (2,), "float64"), ActionSpec("discrete", n=3))
TREE = SpaceSpec(
    {
        "robot/joints": ObsSpec("vector", (2,), "float32"),
        "camera": ObsSpec("image", (4, 4, 1), "uint8", "HWC"),
        "action_mask": ObsSpec("mask", (2,), "bool"),
    },
    ActionSpec(
        "composite",
        parts=(
            ("gear", ActionSpec("discrete", n=2)),
            ("arm", ActionSpec("box", shape=(2,), low=(-1.0, -np.inf), high=(1.0, np.inf))),
        ),
    ),
)


def plain(lengths: Sequence[int], seed: int = 0) -> Episodes:
    rng, steps = np.random.default_rng(seed), sum(lengths)
    return Episodes(
        obs=rng.normal(size=(steps + len(lengths), 2)),
        actions=rng.integers(3, size=steps),
        rewards=rng.normal(size=steps).astype(np.float32),
        lengths=np.array(lengths, np.int64),
        terminated=rng.random(len(lengths)) < 0.5,
    )


def tree(lengths: Sequence[int], seed: int = 0) -> Episodes:
    rng, steps = np.random.default_rng(seed), sum(lengths)
    rows = steps + len(lengths)
    return Episodes(
        obs={
            "robot/joints": rng.normal(size=(rows, 2)).astype(np.float32),
            "camera": rng.integers(256, size=(rows, 4, 4, 1)).astype(np.uint8),
            "action_mask": rng.random((rows, 2)) < 0.5,
        },
        actions=np.stack([rng.integers(2, size=steps), *rng.uniform(-1, 1, (2, steps))], 1).astype(np.float32),
        rewards=rng.normal(size=steps).astype(np.float32),
        lengths=np.array(lengths, np.int64),
        terminated=rng.random(len(lengths)) < 0.5,
    )


def assert_equal(one: Episodes, other: Episodes) -> None:
    assert isinstance(one.obs, dict) == isinstance(other.obs, dict)
    for a, b in zip(arrays(one), arrays(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def arrays(episodes: Episodes) -> list[np.ndarray]:
    obs = episodes.obs if isinstance(episodes.obs, dict) else {"": episodes.obs}
    rest = [episodes.actions, episodes.rewards, episodes.lengths, episodes.terminated]
    return [*(obs[path] for path in sorted(obs)), *rest]


def write(path: Path, parts: Sequence[Episodes], spaces: SpaceSpec = PLAIN, file_bytes: int = 1 << 20) -> None:
    with DataWriter(path, env="Toy", spaces=spaces, file_bytes=file_bytes) as writer:
        for part in parts:
            writer.add(part)
        writer.close()


@pytest.mark.parametrize(("make", "spaces"), [(plain, PLAIN), (tree, TREE)], ids=["plain", "tree"])
def test_what_is_written_is_read_again_wherever_files_are_cut(
    make: Callable[..., Episodes], spaces: SpaceSpec, tmp_path: Path
) -> None:
    """Episodes of 1, of many steps, around the size at which a file is closed: no row is lost, none moves."""
    one_step = make([1]).num_bytes
    for case, lengths in enumerate([[1], [1, 1], [7], [3, 1, 4, 1, 5], [1] * 9, [2, 3, 2]]):
        parts = [make([length], seed) for seed, length in enumerate(lengths)]
        sizes = np.cumsum([part.num_bytes for part in parts]).tolist()
        limits = {1, one_step - 1, one_step, one_step + 1, sizes[-1] - 1, sizes[-1], sizes[-1] + 1}
        for limit in limits:
            path = tmp_path / f"{case}-{limit}"
            write(path, parts, spaces, file_bytes=limit)
            manifest, read = read_manifest(path), read_episodes(path)
            assert_equal(read, concat_episodes(parts))
            assert (manifest.episodes, manifest.env_steps) == (len(lengths), sum(lengths))
            assert sum(file.env_steps for file in manifest.files) == sum(lengths)
            assert len(manifest.files) == (len(lengths) if limit == 1 else len(manifest.files))
            np.testing.assert_allclose(manifest.return_mean, read.returns().mean(), rtol=1e-6)
            assert str(manifest.spec) == str(spaces)
            assert not list(tmp_path.glob(".writing*"))


def test_a_step_finds_its_observation_and_the_next(tmp_path: Path) -> None:
    """Episodes of 2, 1 and 3 steps, whose observations count up: 0 1 2 | 3 4 | 5 6 7 8."""
    episodes = Episodes(
        obs=np.arange(9.0).repeat(2).reshape(9, 2),
        actions=np.zeros(6, np.int64),
        rewards=np.array([1, 2, 4, 8, 16, 32], np.float32),
        lengths=np.array([2, 1, 3]),
        terminated=np.array([True, False, True]),
    )
    assert episodes.problem(PLAIN) == ""
    assert episodes.obs_rows().tolist() == [0, 1, 3, 5, 6, 7]
    assert episodes.ends().tolist() == [False, True, False, False, False, True]
    assert episodes.returns().tolist() == [3.0, 4.0, 56.0]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def pickled(path: Path) -> None:
    """A file with a pickle in it, and a manifest that fits."""
    from hashlib import sha256

    with open(path / "episodes-00000.npz", "wb") as file:
        columns = {name: np.zeros(1) for name in ("actions", "rewards", "lengths", "terminated")}
        np.savez(file, obs=np.array([{"a": 1}], object), **columns)
    data = (path / "episodes-00000.npz").read_bytes()
    [first, *rest] = json.loads((path / "manifest.json").read_text())["files"]
    first |= {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    edit(path / "manifest.json", files=[first, *rest])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: flip(path / "episodes-00001.npz"), "episodes-00001.npz was altered"),
        (lambda path: os.truncate(path / "episodes-00000.npz", 50), "episodes-00000.npz was altered"),
        (lambda path: (path / "episodes-00001.npz").unlink(), "episodes-00001.npz: no such file"),
        (lambda path: os.truncate(path / "manifest.json", 100), "manifest.json cannot be read"),
        (
            lambda path: edit(path / "manifest.json", spaces={"obs": {}}),
            "manifest.json cannot be read: 'kind'",
        ),
        (lambda path: edit(path / "manifest.json", episodes=9), "counts 9 episodes"),
        (lambda path: edit(path / "manifest.json", files=[]), "counts 2 episodes"),
        (
            lambda path: edit(path / "manifest.json", spaces=TREE.describe()),
            "observations are one array, not a dict",
        ),
        (lambda path: edit(path / "manifest.json", format=2), "has format 2, and this rlplat reads 1"),
        (lambda path: edit(path / "manifest.json", memory_bytes=1 << 60), "MiB are free: record fewer"),
        (pickled, "does not hold the columns of episodes: Object arrays cannot be loaded"),
    ],
)
def test_damage_is_named_with_the_way_out(tmp_path: Path, damage: Callable[[Path], object], says: str) -> None:
    path = tmp_path / "data"
    write(path, [plain([2]), plain([3], 1)], file_bytes=1)
    damage(path)
    with pytest.raises(UsageError) as caught:
        read_episodes(path)
    assert says in str(caught.value) and str(path) in str(caught.value) and "record" in str(caught.value)


def test_a_place_without_a_data_set(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no data set in .*: rlplat record RUN --out .*none"):
        read_episodes(tmp_path / "none")
    with pytest.raises(UsageError, match=r"rlplat record RUN --out data/NAME makes one"):
        read_episodes(tmp_path)  # it is there, and would be refused as --out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lengths": np.array([2, 1])}, "one array|float64\\[4, 2\\], not float64\\[5, 2\\]|terminated"),
        ({"lengths": np.array([0])}, "a length of 1 at least"),
        ({"actions": np.array([0, 3, 0])}, "actions: row 1 is .3.*, which is not in Discrete\\(3\\)"),
        ({"actions": np.zeros(3, np.float32)}, "actions: float32\\[3\\], not int64\\[3\\]"),
        ({"rewards": np.array([0, np.nan, 0], np.float32)}, "rewards: NaN or infinity in row 1"),
        ({"obs": np.zeros((3, 2))}, "observations: float64\\[3, 2\\], not float64\\[4, 2\\]"),
    ],
)
def test_what_does_not_fit_is_not_written(tmp_path: Path, changes: dict[str, np.ndarray], says: str) -> None:
    columns = vars(plain([3])) | changes
    with (
        DataWriter(tmp_path / "data", env="Toy", spaces=PLAIN, file_bytes=1) as writer,
        pytest.raises(UsageError, match=says),
    ):
        writer.add(plain([3]))
        writer.add(Episodes(**columns))
    assert list(tmp_path.iterdir()) == [], "whole or absent"


def test_a_place_that_cannot_be_written_is_named_before_anything_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file/data cannot be written: Not a directory"):
        with DataWriter(tmp_path / "file/data", env="E", spaces=PLAIN):
            pytest.fail("the episodes would be played for nothing")


def test_a_full_disk_is_one_message_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_file(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(dataset, "write_file", write_file)
    with pytest.raises(UsageError, match="data cannot be written: No space left on device"):
        with DataWriter(tmp_path / "data", env="E", spaces=PLAIN) as writer:
            writer.add(plain([3]))
            writer.close()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_and_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".writing-data-999999999"
    left.mkdir()
    write(tmp_path / "data", [plain([3])])
    assert not left.exists()
    with pytest.raises(UsageError, match="exists already: choose another --out, or remove it"):
        write(tmp_path / "data", [plain([3])])
    with pytest.raises(UsageError, match="no episode was recorded"):
        write(tmp_path / "other", [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
