"""Programs of Ray's articles and documentation run when `ray` becomes `rlplat.compat.ray` in their import lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
OUTPUT = {
    "tasks": "[1, 2, 3]",
    "parameter_server": "updated",
    "simulators": "[28, 28, 28]",
    "experiments": "1 of 2 trials failed, the first one: ValueError: boom\ndone",
    "tune_2020": "Best config: ['lr', 'momentum']",
    "tuner_today": "{'a': 1} 6 3",
    "sgd": "success!",
    "train_today": "4",
    "serving": "[1, 3, 5, 7]",
    "utilities": "[0, 1, 4, 9, 16] 8",
}
PROCESSES = {"tasks", "parameter_server", "sgd", "train_today", "serving", "utilities"}
"""That need processes; the others run in one."""


def with_compat_imports(program: str) -> str:
    """The one change."""
    program = re.sub(r"^import ray$", "import rlplat.compat.ray as ray", program, flags=re.MULTILINE)
    return re.sub(r"^from ray([. ])", r"from rlplat.compat.ray\1", program, flags=re.MULTILINE)


@pytest.mark.process
@pytest.mark.parametrize("name", OUTPUT)
def test_a_program_runs_with_its_imports_changed(name: str, tmp_path: Path) -> None:
    program = with_compat_imports((PROGRAMS / f"{name}.py").read_text())
    (tmp_path / "program.py").write_text(program)
    backend = {} if name in PROCESSES else {"RLPLAT_BACKEND": "inproc"}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", **backend},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert OUTPUT[name] in done.stdout, done.stdout + done.stderr
