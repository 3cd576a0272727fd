"""The start of a cluster: what becomes of a node, or a driver, that does not do its part."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rlplat
from rlplat.errors import NodeLost
from rlplat.runtime.node import node
from rlplat.runtime.start import driver, start


@pytest.mark.process
def test_a_node_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_START_S", 0.2)
    monkeypatch.setattr(start, "main_of", lambda module: "import time; time.sleep(600)")
    with pytest.raises(NodeLost, match=r"did not start within 0\.2 s"):
        rlplat.init(num_cpus=1, num_gpus=0)


@pytest.mark.process
def test_a_node_that_is_killed_before_it_reads_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.kill()
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Popen)
    with pytest.raises(NodeLost, match=r"could not start \(ended by SIGKILL\)"):
        rlplat.init(num_cpus=1, num_gpus=0)
    _leaves_no_folder()


@pytest.mark.process
def test_a_node_that_cannot_be_made_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError("no process left")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(BlockingIOError):
        rlplat.init(num_cpus=1, num_gpus=0)
    _leaves_no_folder()


@pytest.mark.process
def test_a_node_whose_zygote_is_killed_during_the_start_is_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It has said that it is ready, and removes the folder in which this process is about to make its socket."""
    init = driver.Driver.__init__

    def late(self: Any, session: str, process: Any) -> None:
        (zygote,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(zygote), signal.SIGKILL)
        process.wait()
        init(self, session, process)

    monkeypatch.setattr(driver.Driver, "__init__", late)
    with pytest.raises(NodeLost, match="ended during the start"):
        rlplat.init(num_cpus=1, num_gpus=0)
    _leaves_no_folder()
    assert "the zygote, which starts the workers of this cluster, has ended" in capfd.readouterr().err


def _leaves_no_folder() -> None:
    for root in ("/dev/shm", tempfile.gettempdir()):
        assert not list(Path(root).glob(f"rlplat-{os.getpid()}-*"))


@pytest.mark.process
@pytest.mark.parametrize("env_vars", [{}, {"OMP_NUM_THREADS": "1"}], ids=["forked", "executed"])
def test_workers_find_what_the_driver_finds_and_not_the_current_folder(
    env_vars: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("queue", "random", "signal")
    for name in names:
        (tmp_path / f"{name}.py").write_text("raise ImportError('a file of the user, not Python's')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    rlplat.init(num_cpus=1, num_gpus=0)

    @rlplat.remote(runtime_env={"env_vars": env_vars})
    def search_path() -> list[str]:
        for name in names:
            importlib.import_module(name)
        return sys.path

    try:
        assert set(rlplat.get(search_path.remote())) == {*sys.path}
        assert rlplat.get(search_path.remote())[0] == str(tmp_path / "mine")
    finally:
        rlplat.shutdown()


@pytest.mark.process
def test_a_program_in_a_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    """As of an old file server; the folder is on the search path, which the workers are told."""
    folder = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(folder)
    program = os.path.join(folder, b"program.py")
    Path(os.fsdecode(program)).write_text(
        "import rlplat, sys\n"
        "rlplat.init(num_cpus=1, num_gpus=0, hang_timeout_s=float('inf'))\n"
        "print(ascii(rlplat.get(rlplat.remote(lambda: sys.path[0]).remote())))\n"
    )
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert run.stdout == ascii(os.fsdecode(folder)) + "\n", run.stderr


@pytest.mark.process
def test_a_preload_that_starts_threads_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No fork of the zygote may inherit a lock that another thread holds."""
    (tmp_path / "has_a_pool.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (tmp_path / "has_none.py").write_text("import has_nothing\n")
    (tmp_path / "has_nothing.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    rlplat.init(num_cpus=1, num_gpus=0, preload=["has_none", "has_a_pool", "has_nothing"])

    @rlplat.remote
    def modules() -> list[str]:
        return [name for name in ("has_none", "has_a_pool", "has_nothing") if name in sys.modules]

    assert rlplat.get(modules.remote(), timeout=60) == ["has_none", "has_nothing"]
    rlplat.shutdown()
    said = capfd.readouterr().err
    assert "preload: 'has_a_pool' starts 1 thread(s)" in said and "'has_none'" not in said


def test_a_node_whose_driver_was_killed_during_the_start_ends_quietly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(descriptor: int, data: bytes) -> int:
        raise BrokenPipeError

    made: Any = node.Node.__new__(node.Node)
    made._config, made.head, made.agent = (
        {"total": {"CPU": 1.0}},
        SimpleNamespace(node_joined=lambda *_: None),
        None,
    )
    monkeypatch.setattr(os, "write", write)
    made.run()


@pytest.mark.process
def test_a_new_worker_has_little_of_its_own() -> None:
    """What it shares with the zygote stays shared: it imports nothing that it was not asked for, and a collection of
    garbage writes to none of it."""

    @rlplat.remote
    def look() -> tuple[bool, int, int]:
        loaded, before = "numpy.random" in sys.modules, len(gc.get_objects())
        return loaded, before, gc.get_freeze_count()

    rlplat.init(num_cpus=1, num_gpus=0)
    try:
        has_random, num_watched, num_frozen = rlplat.get(look.remote())
        assert not has_random
        assert num_watched < 0.2 * num_frozen
    finally:
        rlplat.shutdown()
