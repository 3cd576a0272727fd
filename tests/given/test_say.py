"""What rlplat writes on stderr: where nothing can be written there, what it tells of is handled all the same."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied
from rlplat.given.say import say, say_traceback
from rlplat.runtime.link.dropped import Dropped
from tests.patience import soon


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def full() -> Any:
    return open("/dev/full", "w")


def none() -> None:
    return None


without_stderr = pytest.mark.parametrize("stderr", [closed, full, none])


@without_stderr
def test_what_cannot_be_written_stops_nothing(monkeypatch: pytest.MonkeyPatch, stderr: Callable[[], Any]) -> None:
    monkeypatch.delenv("RLPLAT_DROPS_FILE", raising=False)
    monkeypatch.setattr(sys, "stderr", stderr())
    say("an actor died")
    say_traceback()
    dropped = Dropped("driver")
    dropped.add("Done from", "w1", "senseless")
    assert dropped.count == 1


def test_a_line_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    say("an actor died")
    assert capsys.readouterr().err == "rlplat: an actor died\n"


@without_stderr
def test_callbacks_after_one_that_raises_are_called(
    cluster: None, monkeypatch: pytest.MonkeyPatch, stderr: Callable[[], Any]
) -> None:
    actor = rlplat.remote(Spoilt).remote(None)
    heard: list[Exception] = []
    actor.on_death(lambda error: {}["nothing"])
    actor.on_death(heard.append)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr())
        rlplat.kill(actor)
        assert soon(lambda: heard)


class Spoilt:
    """An actor whose own code leaves no stderr."""

    def __init__(self, stderr: Callable[[], Any] | None) -> None:
        if stderr is not None:
            sys.stderr = stderr()

    def leave(self, code: object) -> None:
        sys.exit(code)  # type: ignore[arg-type]


class SpoiltAsync(Spoilt):
    async def fail_beside(self) -> int:
        async def fail() -> None:
            sys.exit(3)

        beside = asyncio.ensure_future(fail())
        await asyncio.wait([beside])
        return 7


@without_stderr
def test_an_actor_without_stderr_ends_as_others(cluster: None, stderr: Callable[[], Any]) -> None:
    for code, told in (
        (5, "exited with code 5"),
        ("a reason", "exited with code 1"),
        (0, "it called sys.exit()"),
    ):
        actor = rlplat.remote(Spoilt).remote(stderr)
        with pytest.raises(ActorDied, match=told.replace("(", r"\(").replace(")", r"\)")):
            rlplat.get(actor.leave.remote(code), timeout=60)


@without_stderr
def test_an_event_loop_without_stderr_goes_on(cluster: None, stderr: Callable[[], Any]) -> None:
    actor = rlplat.remote(SpoiltAsync).remote(stderr)
    assert rlplat.get([actor.fail_beside.remote() for _ in range(2)], timeout=60) == [7, 7]


@pytest.mark.process
def test_a_program_without_streams_has_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import rlplat\n"
        "rlplat.init(num_cpus=1)\n"
        "open('answer', 'w').write(str(rlplat.get(rlplat.remote(len).remote('abc'))))\n"
    )
    done = subprocess.run(["bash", "-c", f"exec {sys.executable} program.py <&- >&- 2>&-"], cwd=tmp_path, check=False)
    assert (done.returncode, (tmp_path / "answer").read_text()) == (0, "3")


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "code"),
    [("train --algo nothing", 2), ("tune nothing.yaml", 2), ("no-such-command", 2), ("--version", 0)],
)
def test_a_full_disk_below_stderr_changes_no_exit_code(words: str, code: int) -> None:
    with full() as stderr:
        done = subprocess.run([sys.executable, "-m", "rlplat.cli", *words.split()], stderr=stderr, timeout=60)
    assert done.returncode == code


@pytest.mark.process
def test_a_program_goes_on_where_stderr_is_full() -> None:
    program = """
import sys
from rlplat.given.say import spare_stderr
spare_stderr()
print("warning: \\u00e4" * 10_000, file=sys.stderr)
sys.stderr.flush()
sys.exit(3)
"""
    with full() as stderr:
        assert subprocess.run([sys.executable, "-c", program], stderr=stderr, timeout=60).returncode == 3
    heard = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, timeout=60)
    assert heard.returncode == 3 and heard.stderr.count(b"warning") == 10_000
