"""A cluster's folders are not taken for those of a dead one where its processes cannot be seen: in another PID
namespace, as of containers that share /dev/shm. What the cluster holds is a lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rlplat
from rlplat.runtime.machine import session, worker_logs
from tests.runtime.machine.test_planted_links import age

ENTER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
LOOK = "import sys; from rlplat.runtime.machine.session import is_abandoned; print(is_abandoned(sys.argv[1]))"
HOLD = "import sys, time; from rlplat.runtime.machine.session import hold; hold(sys.argv[1]); print(flush=True)"
DEAD = f"rlplat-{2**22 + 1}-1-x"  # of a pid that cannot live: here, as a living one looks from elsewhere


def can_enter() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run([*ENTER, "true"], capture_output=True).returncode == 0


@pytest.mark.process
@pytest.mark.skipif(not can_enter(), reason="no PID namespace can be made here (root, or user namespaces)")
def test_a_start_in_another_pid_namespace_leaves_a_living_cluster_alone() -> None:
    rlplat.init(num_cpus=1)
    try:
        [folder] = [path for path in session.running_sessions() if session.driver_pid(path) == os.getpid()]
        spilled = os.path.realpath(os.path.join(folder, session.SPILL_LINK))
        for path in (folder, spilled):
            look = subprocess.run([*ENTER, sys.executable, "-c", LOOK, path], capture_output=True, text=True)
            assert look.stdout == "False\n", look.stderr
    finally:
        rlplat.shutdown()
    assert not os.path.exists(folder) and not os.path.exists(spilled)


@pytest.fixture
def held(tmp_path: Path) -> Path:
    folder = tmp_path / DEAD
    (folder / worker_logs.SNAPSHOTS).mkdir(parents=True)
    age(folder)
    return folder


@pytest.mark.process
def test_a_held_folder_stays_until_its_holder_ends(held: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", f"{HOLD}; time.sleep(60)", str(held)], stdout=subprocess.PIPE
    ) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline()
            session.remove_dead_sessions(str(held.parent))
            worker_logs.make_session_folder("rlplat-1-1-new", str(held.parent))
            assert (held / worker_logs.SNAPSHOTS).exists()
        finally:
            holder.kill()
    session.remove_dead_sessions(str(held.parent))
    assert not held.exists()


def test_what_cannot_be_held_is_left_out(tmp_path: Path) -> None:
    session.hold(str(tmp_path / "missing"))
    assert not session.is_held(tmp_path / "missing")
