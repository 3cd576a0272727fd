"""Two nodes of Ray on this machine, where Ray is installed and $RLPLAT_TEST_RAY is set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlplat.cli import main

pytestmark = [pytest.mark.process, pytest.mark.on_ray, pytest.mark.timeout(400)]
if "RLPLAT_TEST_RAY" not in os.environ:
    pytest.skip("$RLPLAT_TEST_RAY is not set", allow_module_level=True)


def test_programs_find_the_nodes_and_others_are_refused(
    write: Callable[[str], Path], home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(f"provider: local\nlocal: {{nodes: 2}}\nnum_cpus: 1\nfolder: {home}\nstart_timeout_s: 120\n")
    try:
        assert main(["up", str(path)]) == 0
        assert "a request without the cluster's token is refused" in capfd.readouterr().out
        program = (
            "import rlplat\nrlplat.init(log_to_driver=False)\n"
            "print('answer', rlplat.get(rlplat.remote(lambda: 41 + 1).remote()), len(rlplat.nodes()))"
        )
        assert main(["submit", str(path), "--wait", "--", "python", "-c", program]) == 0
        assert "answer 42 2" in capfd.readouterr().out
        address = json.loads((home / "nodes" / "node-1" / "node.json").read_text())["address"]
        stranger = f"import ray; ray.init({address!r}, log_to_driver=False); print('in')"
        other = home / "guess"
        other.write_text("0" * 64)
        done = subprocess.run(
            [sys.executable, "-c", stranger],
            env=os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(other)},
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0 and "in" not in done.stdout.split()
        assert "uthentication" in done.stderr
    finally:
        assert main(["down", str(path)]) == 0
