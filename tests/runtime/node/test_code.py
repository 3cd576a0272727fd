"""When a machine takes an environment for defined, whose folders lie with the program."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlplat.runtime.envs.spec import archive, segment_of, unpack
from rlplat.runtime.node.code import Code
from rlplat.runtime.wire.messages import NODE, Pull, Pulled
from rlplat.runtime.wire.values import ErrorInfo


class There:
    def __init__(self, tmp_path: Path) -> None:
        self.session, self.snapshots = tmp_path / "session", tmp_path / "snapshots"
        self.session.mkdir()
        self.pulls: list[Pull] = []
        self.defined: list[str] = []
        self.failed: dict[str, ErrorInfo] = {}
        self.code = Code(
            str(self.session),
            str(tmp_path),
            self.pulls.append,
            lambda key, spec: self.defined.append(key),
            self.failed.__setitem__,
        )

    def answer(self, pull: Pull, is_there: bool = True, error: str = "") -> None:
        if is_there:
            (self.session / pull.name).write_text("")
        self.code.pulled(Pulled(pull.request, is_there, error))


@pytest.fixture
def there(tmp_path: Path) -> There:
    return There(tmp_path)


def spec(*names: str) -> str:
    return json.dumps({"working_dir": names[0], "py_modules": names[1:]})


def test_once_all_folders_are_here(there: There) -> None:
    there.code.define("plain", json.dumps({"env_vars": {"A": "1"}}))
    assert there.defined == ["plain"]
    there.code.define("two", spec("a", "b"))
    there.code.define("one", spec("a"))  # which is on its way
    assert sorted((pull.creator, pull.name) for pull in there.pulls) == [(NODE, "s-node-a"), (NODE, "s-node-b")]
    pulls = {pull.name[-1]: pull for pull in there.pulls}
    there.answer(pulls["a"])
    assert there.defined == ["plain", "one"]
    there.answer(pulls["b"])
    there.code.define("again", spec("b"))
    assert there.defined == ["plain", "one", "two", "again"]
    assert len(there.pulls) == 2
    (there.session / segment_of("a")).unlink()  # a copy makes way for others
    assert os.path.exists(there.snapshots / "a.tar")


def test_one_that_does_not_come_fails_what_needs_it(there: There) -> None:
    there.code.define("two", spec("a", "b"))
    there.code.define("one", spec("b"))
    pulls = {pull.name[-1]: pull for pull in there.pulls}
    there.answer(pulls["a"], is_there=False, error="no room")
    assert [*there.failed] == ["two"]
    assert "no room" in there.failed["two"].message
    there.answer(pulls["b"])
    assert there.defined == ["one"]


def test_an_archive_is_the_folder_again(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    (snapshot / "below").mkdir(parents=True)
    (snapshot / "below" / "run.sh").write_text("x")
    (snapshot / "below" / "run.sh").chmod(0o700)
    (snapshot / "link").symlink_to("below/run.sh")
    archive(str(snapshot), str(tmp_path))
    place = tmp_path / segment_of(str(snapshot))
    unpack(str(place), str(tmp_path / "made"))
    made = tmp_path / "made"
    assert os.access(made / "below" / "run.sh", os.X_OK)
    assert os.readlink(made / "link") == "below/run.sh"
    assert not place.exists()
    unpack(str(place), str(made))  # somebody was faster
