"""How actors end by themselves: `exit_actor`, `__ray_terminate__`, and the last handle."""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import time
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied
from tests.patience import soon


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def make(log: Path, kind: str) -> Any:
    def write(line: Any) -> None:
        with open(log, "a") as file:
            file.write(f"{line}\n")

    class Plain:
        def __init__(self) -> None:
            atexit.register(write, "atexit")

        def pid(self) -> int:
            return os.getpid()

        def work(self, x: int, gate: str = "") -> int:
            while gate and not os.path.exists(gate):
                time.sleep(0.005)
            write(x)
            return x

        def leave(self) -> None:
            try:
                rlplat.exit_actor()
            finally:
                write("left")
            write("not reached")

    class Async(Plain):
        async def work(self, x: int, gate: str = "") -> int:  # type: ignore[override]
            while gate and not os.path.exists(gate):
                await asyncio.sleep(0.005)
            write(x)
            return x

        async def leave(self) -> None:  # type: ignore[override]
            try:
                rlplat.exit_actor()
            finally:
                write("left")

    if kind == "async":
        return rlplat.remote(Async)
    return rlplat.remote(Plain).options(max_concurrency=4 if kind == "threaded" else None)


KINDS = ["plain", "threaded", "async"]


def is_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize("kind", KINDS)
def test_exit_actor_ends_it_for_good(cluster: None, tmp_path: Path, kind: str) -> None:
    log = tmp_path / "log"
    actor = make(log, kind).options(max_restarts=3, name="leaver").remote()
    pid = rlplat.get(actor.pid.remote(), timeout=60)
    leaving = actor.leave.remote()
    with pytest.raises(ActorDied, match=r"rlplat.exit_actor\(\)"):
        rlplat.get(leaving, timeout=60)
    with pytest.raises(ActorDied, match="exit_actor"):
        rlplat.get(actor.pid.remote(), timeout=60)
    assert soon(lambda: is_gone(pid))
    assert lines(log) == ["left", "atexit"]
    with pytest.raises(ActorDied):
        rlplat.get_actor("leaver")


@pytest.mark.parametrize("kind", KINDS[1:])
def test_calls_that_run_beside_exit_actor_end_first(cluster: None, tmp_path: Path, kind: str) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    actor = make(log, kind).remote()
    running = actor.work.remote(1, str(gate))
    leaving = actor.leave.remote()
    assert soon(lambda: lines(log) == ["left"])
    gate.touch()
    assert rlplat.get(running, timeout=60) == 1
    with pytest.raises(ActorDied, match="exit_actor"):
        rlplat.get(leaving, timeout=60)
    assert lines(log) == ["left", "1", "atexit"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["__ray_terminate__", "__rlplat_terminate__"])
def test_terminate_waits_for_the_calls_before_it(cluster: None, tmp_path: Path, kind: str, name: str) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    actor = make(log, kind).remote()
    pid = rlplat.get(actor.pid.remote(), timeout=60)
    refs = [actor.work.remote(i, str(gate)) for i in range(10)]
    end = getattr(actor, name).remote()
    behind = actor.work.remote(99)
    gate.touch()
    assert rlplat.get(refs, timeout=60) == list(range(10))
    for ref in (end, behind):
        with pytest.raises(ActorDied, match="asked to end"):
            rlplat.get(ref, timeout=60)
    assert soon(lambda: is_gone(pid))
    assert sorted(lines(log)) == sorted([*map(str, range(10)), "atexit"])
    assert lines(log)[-1] == "atexit"


@pytest.mark.parametrize("kind", KINDS)
def test_calls_made_before_the_last_handle_goes_are_executed(cluster: None, tmp_path: Path, kind: str) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    actor = make(log, kind).remote()
    pid = rlplat.get(actor.pid.remote(), timeout=60)
    kept = [actor.work.remote(i, str(gate)) for i in range(5)]
    for i in range(5, 10):
        actor.work.remote(i)  # nobody holds these
    del actor
    gc.collect()
    time.sleep(0.1)
    gate.touch()
    assert rlplat.get(kept, timeout=60) == list(range(5))
    assert soon(lambda: is_gone(pid))
    assert sorted(lines(log)) == sorted([*map(str, range(10)), "atexit"])
