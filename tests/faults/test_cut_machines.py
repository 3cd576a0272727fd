"""Machines in network namespaces: one is cut off for a moment, then its node process is killed, with all at work."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
_CABLE = ["unshare", "-n", "ip", "link", "add", "one", "type", "veth", "peer", "name", "other"]


def can_cut() -> bool:
    return (
        all(map(shutil.which, ("unshare", "nsenter", "ip")))
        and not subprocess.run(_CABLE, capture_output=True).returncode
    )


@pytest.mark.skipif(not can_cut(), reason="no network namespace can be made here (root, iproute2)")
def test_no_result_is_lost_and_none_comes_twice_when_a_machine_is_cut_off_or_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.faults.cut_machines", "--rounds", "2", "--faults", "short cut,kill"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none lost and none twice" in done.stdout
