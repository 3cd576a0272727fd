"""onnxruntime tells its maker nothing, and writes nowhere, when rlplat has imported it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

OPENS_A_FILE = "from rlplat.export.model_file import open_session as call; import contextlib, psutil, time"
OPENS_A_POLICY = "from rlplat.rl.envs.external.client import LocalPolicy; import contextlib, psutil, time\n"
OPENS_A_POLICY += "call = lambda model, name: LocalPolicy._open(LocalPolicy.__new__(LocalPolicy), model)"
LOOKS = """
with contextlib.suppress(Exception):
    call(b"no model", "x.onnx")
import onnxruntime
for _ in range(40):
    assert not psutil.Process().net_connections(), psutil.Process().net_connections()
    time.sleep(0.05)
"""


@pytest.mark.process
@pytest.mark.parametrize("opens", [OPENS_A_FILE, OPENS_A_POLICY], ids=["file", "simulator's policy"])
def test_nothing_is_sent_or_written(opens: str, tmp_path: Path) -> None:
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    (tmp_path / "victim").write_text("mine")
    (temporary / ".ses").symlink_to(tmp_path / "victim")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    environment |= {"HOME": str(home), "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", opens + LOOKS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(home.rglob("*")) == []
    assert [path.name for path in temporary.iterdir()] == [".ses"]
    assert (tmp_path / "victim").read_text() == "mine"
