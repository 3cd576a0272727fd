"""The programs of docs/data-parallel.md run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/data-parallel.md").read_text(), re.MULTILINE | re.DOTALL)


def run(program: str, directory: Path) -> str:
    (directory / "program.py").write_text(program)
    command = [sys.executable, "program.py"]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_programs_of_the_page(tmp_path: Path) -> None:
    """In one process, on one cluster."""
    function, creators, operator, serving, tuning = BLOCKS
    operator += """
x = torch.randn(64, 8)
config = {"lr": 0.1, "data": TensorDataset(x, x[:, :1])}
with TorchTrainer(training_operator_cls=Smooth, config=config) as trainer:
    print(trainer.train()["num_samples"])
"""
    (start,) = [line for line in tuning.splitlines() if line.startswith("rlplat.init(")]
    smaller = tuning.replace("num_samples=30", "num_samples=3").replace('"step": 10', '"step": 2')
    assert smaller.count("num_samples=3,") == smaller.count('"step": 2}') == 1
    smaller = smaller.replace(start, "")
    said = run(
        f"import rlplat\n{start}\n{function}\n{creators}\n{serving}\n{operator}\n{smaller}", tmp_path
    ).splitlines()
    assert said[0] == f"5 reports, 4 tensors in {tmp_path}/runs/sum/checkpoints/step_5"
    assert said[1] == "['batch_count', 'epoch', 'last_train_loss', 'num_samples', 'train_loss']"
    assert said[2:5] == ["64", "True", "64"]
    assert said[-1].startswith("{'lr': ")
    assert (tmp_path / "checkpoint.pt").exists() and (tmp_path / "classifier.onnx").exists()
