"""Checkpoints are whole or absent: whatever damages a file or kills the writer, a valid one is found."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlplat import checkpoints
from rlplat.checkpoint_state import BadState, pack, unpack
from rlplat.checkpoints import CheckpointInfo, latest_valid, load, load_best, save, save_best
from rlplat.errors import CheckpointError


def info(env_steps: int = 1000) -> CheckpointInfo:
    return CheckpointInfo("ppo", "CartPole-v1", env_steps, spaces="Box(4) -> Discrete(2)", not_saved=["env state"])


def some_state(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "learner": {
            "actor.0.weight": rng.normal(size=(16, 4)).astype(np.float32),
            "actor": {"0": {"weight": rng.normal(size=3)}},  # its dotted name is taken by the one above
            "empty": np.zeros((0, 3), np.int64),
            "zero_d": np.array(5, np.int16),
            "fortran": np.asfortranarray(rng.normal(size=(3, 4))),
            "big_endian": np.arange(4, dtype=">f4"),
            "optimizer": {0: {"betas": (0.9, 0.999), "step": np.float32(7)}, "$odd": None},
        },
        "rng": rng.bit_generator.state,  # 128-bit integers
        "flags": [True, False, None, "text", 1.5, float("inf"), [[], {}]],
        "mask": np.array([True, False]),
    }


def assert_same(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if isinstance(left, np.ndarray):
        assert left.dtype.newbyteorder("=") == right.dtype.newbyteorder("=") and left.shape == right.shape
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left == right


def test_a_state_comes_back_equal_in_values_dtypes_and_containers(tmp_path: Path) -> None:
    path = save(tmp_path, some_state(), info())
    loaded = load(path)
    assert_same(loaded.state, some_state())
    assert loaded.info == info()
    assert (tmp_path / "latest").read_text() == "step_1000\n"
    assert sorted(entry.name for entry in path.iterdir()) == [
        "learner.safetensors", "manifest.json", "mask.safetensors", "state.json",
    ]  # fmt: skip


def test_the_generator_continues_the_same_stream(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rng.normal(size=10)
    path = save(tmp_path, {"rng": rng.bit_generator.state}, info())
    again = np.random.default_rng()
    again.bit_generator.state = load(path).state["rng"]
    np.testing.assert_array_equal(again.normal(size=5), rng.normal(size=5))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "'a.b' is a builtins.object"),
        (np.array([None]), "'a.b' is an array of object"),
        (b"bytes", "'a.b' is a builtins.bytes"),
        ({1, 2}, "'a.b' is a builtins.set"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(tmp_path: Path, value: Any, said: str) -> None:
    with pytest.raises(CheckpointError, match="cannot checkpoint the state of ppo") as caught:
        save(tmp_path, {"a": {"b": value}}, info())
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_contains_itself_is_refused() -> None:
    state: dict[str, Any] = {}
    state["self"] = state
    with pytest.raises(BadState, match="does it contain itself"):
        pack(state)


def test_one_flipped_bit_anywhere_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, some_state(), info())
    chooser = random.Random(0)
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for _ in range(40):
            place, bit = chooser.randrange(len(whole)), chooser.randrange(8)
            file.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
            with pytest.raises(CheckpointError, match="cannot be used"):
                load(path)
        file.write_bytes(whole)
    load(path)


def _truncate(path: Path) -> None:
    os.truncate(path / "learner.safetensors", 100)


def _append(path: Path) -> None:
    with open(path / "state.json", "ab") as file:
        file.write(b" ")


def _add_file(path: Path) -> None:
    (path / "extra.pkl").write_bytes(b"x")


def _link_file(path: Path) -> None:
    (path / "state.json").rename(path.parent / "elsewhere.json")
    (path / "state.json").symlink_to(path.parent / "elsewhere.json")


def _directory_for(name: str) -> Any:
    def damage(path: Path) -> None:
        (path / name).unlink()
        (path / name).mkdir()

    return damage


def _forged(*without: str, **changed: Any) -> Any:
    """A manifest with a digest that agrees with it."""

    def damage(path: Path) -> None:
        manifest = json.loads((path / "manifest.json").read_text()) | changed
        for key in ("manifest_sha256", *without):
            del manifest[key]
        (path / "manifest.json").write_bytes(checkpoints._manifest_bytes(manifest))

    return damage


def _forged_state(text: bytes) -> Any:
    """A manifest that agrees with a `state.json` of this text."""

    def damage(path: Path) -> None:
        (path / "state.json").write_bytes(text)
        entry = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        files = json.loads((path / "manifest.json").read_text())["files"]
        _forged(files=files | {"state.json": entry})(path)

    return damage


def _huge_header(path: Path) -> None:
    """A manifest that agrees with a tensor file whose header length is a lie."""
    data = (1 << 60).to_bytes(8, "little") + b"{}"
    (path / "learner.safetensors").write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    files = json.loads((path / "manifest.json").read_text())["files"]
    _forged(files=files | {"learner.safetensors": entry})(path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_truncate, "file learner.safetensors has 100 bytes"),
        (_append, "file state.json has"),
        (lambda path: (path / "state.json").unlink(), "file state.json is missing"),
        (lambda path: (path / "manifest.json").unlink(), "file manifest.json: no such file"),
        (lambda path: (path / "manifest.json").write_text("{}"), "not a checkpoint's manifest"),
        (lambda path: os.mkfifo(path / "pipe"), "file pipe does not belong to it"),
        (_add_file, "file extra.pkl does not belong to it"),
        (_link_file, "file state.json: is a symbolic link"),
        (_forged(schema_version=99), "its schema version is 99, this rlplat reads 1"),
        (_huge_header, "claims a header of 1152921504606846976 bytes"),
        (_directory_for("state.json"), "file state.json: is a directory"),
        (_directory_for("learner.safetensors"), "file learner.safetensors: is a directory"),
        (_directory_for("manifest.json"), "file manifest.json: is a directory"),
        (lambda path: shutil.rmtree(path) or path.write_text(""), "it is not a directory"),
        (_forged(files=True), "not a checkpoint's manifest: Expected `object`, got `bool` - at `$.files`"),
        (_forged(files={"state.json": {"bytes": 1}}), "missing required field `sha256`"),
        (_forged(files={"../step_1000/state.json": {"bytes": 1, "sha256": ""}}), "state.json is missing"),
        (_forged("files"), "missing required field `files`"),
        (_forged("algorithm"), "missing required field `algorithm`"),
        (_forged(env_steps="2000"), "Expected `int`, got `str` - at `$.env_steps`"),
        (_forged(not_a_number=7), "Expected `array`, got `int` - at `$.not_a_number`"),
        (_forged(evaluation={"eval/return_mean": "9"}), "Expected `float`, got `str`"),
        (_forged_state(b'{"$scalar": ["|V1000000000000", 0]}'), "file state.json cannot be read"),
        (_forged_state(b'{"x": {"$scalar": ["|i1", 1000]}}'), "file state.json cannot be read"),
        (_forged_state(b'{"x": {"$array": ["learner", "nobody"]}}'), "file state.json cannot be read"),
        (_forged_state(b"[" * 100_000), "file state.json cannot be read"),
        (lambda path: (path / "manifest.json").write_text("[" * 100_000), "manifest.json is not JSON"),
    ],
)
def test_damage_is_named_and_the_older_valid_one_offered_and_taken(tmp_path: Path, damage: Any, said: str) -> None:
    directory = tmp_path / "checkpoints"
    older = save(directory, some_state(1), info(1000))
    newer = save(directory, some_state(2), info(2000))
    damage(newer)
    with pytest.raises(CheckpointError) as caught:
        load(newer)
    assert f"checkpoint {newer} cannot be used: " in str(caught.value)
    assert said in str(caught.value)
    assert str(caught.value).endswith(f"the next older valid one is {older}")
    taken, refused = latest_valid(tmp_path)
    assert taken is not None and taken.path == older
    assert_same(taken.state, some_state(1))
    [reason] = refused
    assert reason.startswith(f"checkpoint {newer} passed over: ") and said in reason
    newest = save(directory, some_state(3), info(3000), keep=1)  # which removes the others, whatever they are
    assert [entry.name for entry in directory.glob("step_*")] == [newest.name]


def test_the_newest_valid_one_is_found_and_the_bad_ones_named(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    for steps in (9, 10, 100):  # by number, not by text
        save(directory, {"steps": steps}, info(steps))
    os.truncate(directory / "step_100" / "state.json", 3)
    checkpoint, refused = latest_valid(tmp_path)
    assert checkpoint is not None and checkpoint.state == {"steps": 10}
    assert len(refused) == 1 and "step_100 passed over: file state.json has 3 bytes" in refused[0]
    assert latest_valid(tmp_path / "nowhere") == (None, [])


def test_a_checkpoint_with_nan_is_passed_over_and_does_not_count_as_kept(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    save(directory, {"w": np.zeros(2)}, info(1), keep=1)
    save(directory, {"w": np.array([0, np.nan])}, info(2), keep=1)
    checkpoint, refused = latest_valid(tmp_path)
    assert checkpoint is not None and checkpoint.info.env_steps == 1
    assert "holds NaN in w" in refused[0]


def test_only_the_newest_are_kept_and_leftovers_of_a_killed_writer_go(tmp_path: Path) -> None:
    (tmp_path / ".writing-step_1-99").mkdir()
    (tmp_path / ".writing-step_1-99" / "state.json").write_text("{}")
    for steps in range(5):
        save(tmp_path, {"steps": steps}, info(steps), keep=2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["latest", "step_3", "step_4"]


def test_the_same_step_again_replaces_it_and_never_leaves_neither(tmp_path: Path, monkeypatch: Any) -> None:
    directory = tmp_path / "checkpoints"
    save(directory, {"version": 1}, info())
    save(directory, {"version": 2}, info())
    assert load(directory / "step_1000").state == {"version": 2}

    renames = []

    def rename_then_die(source: Any, target: Any, rename: Any = os.rename) -> None:
        rename(source, target)
        renames.append(target)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.os, "rename", rename_then_die)
    with pytest.raises(KeyboardInterrupt):
        save(directory, {"version": 3}, info())
    monkeypatch.undo()
    assert [path.name for path in renames] == ["step_1000.replaced"]
    checkpoint, _ = latest_valid(tmp_path)
    assert checkpoint is not None and checkpoint.state == {"version": 2}


def test_the_best_weights_are_apart_from_the_checkpoints(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    assert load_best(tmp_path) is None
    for steps in range(3):
        save(directory, {"steps": steps}, info(steps), keep=1)
        figures = {"eval/return_mean": 4.0 + steps}
        best_info = CheckpointInfo("ppo", "CartPole-v1", steps, spaces="S", evaluation=figures)
        save_best(directory, {"actor.weight": np.full(3, steps, np.float32)}, best_info)
    best = load_best(tmp_path)
    assert best is not None and best.has_weights_only and best.info == best_info
    assert_same(best.state, {"weights": {"actor.weight": np.full(3, 2, np.float32)}})
    assert sorted(entry.name for entry in directory.iterdir()) == ["best", "latest", "step_2"]
    newest, refused = latest_valid(tmp_path)
    assert newest is not None and newest.path.name == "step_2" and not newest.has_weights_only and not refused
    assert newest.info.evaluation == {}


def test_a_killed_writer_of_the_best_weights_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: Any) -> None:
    directory = tmp_path / "checkpoints"
    save_best(directory, {"w": np.zeros(1)}, info(1))
    for survived in (0, 1):  # renames until the killing: the old one steps aside, the new one takes its place
        renames = []

        def rename_then_die(
            source: Any,
            target: Any,
            rename: Any = os.rename,
            renames: Any = renames,
            survived: int = survived,
        ) -> None:
            rename(source, target)
            renames.append(target)
            if len(renames) > survived:
                raise KeyboardInterrupt

        monkeypatch.setattr(checkpoints.os, "rename", rename_then_die)
        with pytest.raises(KeyboardInterrupt):
            save_best(directory, {"w": np.ones(1) * (survived + 1)}, info(2))
        monkeypatch.undo()
        best = load_best(tmp_path)
        assert best is not None and best.state["weights"]["w"].item() == (2.0 if survived else 0.0)
    save_best(directory, {"w": np.ones(1) * 9}, info(3))
    assert [entry.name for entry in directory.iterdir()] == ["best"]
    os.truncate(directory / "best" / "state.json", 2)
    with pytest.raises(CheckpointError, match=r"cannot be used: file state\.json has 2 bytes"):
        load_best(tmp_path)


def test_a_manifest_from_before_a_field_was_added_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, {"a": 1}, info())
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["evaluation"], manifest["manifest_sha256"]
    (path / "manifest.json").write_bytes(checkpoints._manifest_bytes(manifest))
    assert load(path).info == info()


@pytest.mark.parametrize("failing_write", [1, 2, 3])
def test_a_full_disk_keeps_the_old_one_and_leaves_no_partial_files(
    tmp_path: Path, monkeypatch: Any, failing_write: int
) -> None:
    directory = tmp_path / "checkpoints"
    save(directory, some_state(), info(1))
    writes = 0

    def write(path: Path, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes == failing_write:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_bytes(data)

    monkeypatch.setattr(checkpoints, "write_file", write)
    with pytest.raises(OSError, match="No space left"):
        save(directory, some_state(), info(2))
    assert sorted(entry.name for entry in directory.iterdir()) == ["latest", "step_1"]
    checkpoint, refused = latest_valid(tmp_path)
    assert checkpoint is not None and checkpoint.info.env_steps == 1 and refused == []


WRITER = """
import sys, numpy as np
from rlplat.checkpoints import CheckpointInfo, save
for step in range(1, 100_000):
    state = {"learner": {f"w{i}": np.full(20_000, step, np.float32) for i in range(5)}, "step": step}
    save(sys.argv[1], state, CheckpointInfo("ppo", "X", step), keep=2)
    print(step, flush=True)
"""


@pytest.mark.process
def test_killing_the_writer_at_any_moment_leaves_the_last_confirmed_one_or_a_newer(tmp_path: Path) -> None:
    chooser = random.Random(7)
    for attempt in range(20):
        directory = tmp_path / str(attempt) / "checkpoints"
        with subprocess.Popen([sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            # a moment within the next write, by spinning a random number of times: no clock, no sleeping
            for _ in range(chooser.randrange(200_000)):
                pass
            writer.send_signal(signal.SIGKILL)
            confirmed = int((writer.stdout.read().split() or [b"1"])[-1])
        checkpoint, refused = latest_valid(directory.parent)
        assert refused == []
        assert checkpoint is not None and checkpoint.info.env_steps >= confirmed
        weights = checkpoint.state["learner"]["w3"]
        assert checkpoint.state["step"] == checkpoint.info.env_steps and (weights == checkpoint.info.env_steps).all()


def test_names_that_the_files_cannot_bear_are_no_limit_of_a_state(tmp_path: Path) -> None:
    names = [
        "__metadata__",
        "__metadata__'",
        "",
        ".",
        "arrays",
        "a" + "\u4e00" * 63,
        "\ud800",
        "a/../b",
        "state",
    ]
    state: dict[str, Any] = {name: np.full(3, i) for i, name in enumerate(names)}
    state |= {"nested": {"__metadata__": np.ones(2), "$array": np.zeros(2)}, "a": {"": {"": np.zeros(1)}}}
    assert_same(load(save(tmp_path, state, info())).state, state)
    for name in [*names, "$array"]:
        assert_same(unpack(pack({name: np.ones(1)}).files), {name: np.ones(1)})


_NUMBERS = st.one_of(
    st.integers(-(2**130), 2**130),
    st.floats(allow_nan=False),
    st.sampled_from([np.float32(1.5), np.int8(-3), np.bool_(True), np.uint64(2**64 - 1), np.float16(0.1)]),
)
_KEYS = st.one_of(st.sampled_from(["__metadata__", "a.b", "a", "b", "arrays", "$array"]), st.text(max_size=4))


@st.composite
def _arrays(draw: st.DrawFn) -> np.ndarray:
    """Every dtype that can be saved, empty, without axes, in any order in memory."""
    dtype = np.dtype(draw(st.sampled_from("?bBhHiIlLefd")))
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 8, 9]), max_size=3))
    array = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 2, shape).astype(dtype)
    layout = draw(st.sampled_from(["C", "F", "steps", "back", "swapped"]))
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "steps":
        return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
    if layout == "back":
        return array[::-1] if array.ndim else array
    return array.astype(dtype.newbyteorder()) if layout == "swapped" else array


_STATES = st.dictionaries(
    _KEYS.filter(lambda key: key[:1] != "$"),  # of a dict with such a key the names are no part of a place
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.text(max_size=5), _NUMBERS, _arrays()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(_KEYS, inner, max_size=4),
            st.dictionaries(st.one_of(st.integers(), st.tuples(_KEYS, st.booleans())), inner, max_size=3),
        ),
        max_leaves=12,
    ),
    max_size=5,
)


@pytest.mark.slow
@settings(max_examples=60, database=None, derandomize=True)
@example({"__metadata__": np.ones(2)})
@given(state=_STATES)
def test_any_state_comes_back_equal(state: dict[str, Any]) -> None:
    assert_same(unpack(pack(state).files), state)


def test_unpack_refuses_what_is_no_state() -> None:
    for files in (
        {},
        {"state.json": b"[1]"},
        {"state.json": b'{"$array": ["a", "b"]}'},
        {"state.json": b"\xff"},
    ):
        with pytest.raises(BadState):
            unpack(files)
