"""A newcomer's path: the commands and programs of the README's first section and of four pages (install, train, make an
environment, load the agent), copied in their order into a clone. What a step makes, the next ones find.

Each command is as the page has it, plus what `SMALLER` appends. Installing is passed over.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.house.test_docs import BLOCK, ROOT

pytest.importorskip("torch")

PATH = ["README.md", "docs/install.md", "docs/first-agent.md", "docs/custom-env.md", "docs/load-and-act.md"]
TRAINED = ["--evaluation.episodes", "1", "--num-rollout-workers", "0", "--rollout-length", "16"]
SMALLER = {
    "train": ["--stop.env-steps", "64", *TRAINED],
    "train --resume": ["--stop.env-steps", "1000"],
    "evaluate": ["--episodes", "1"],
    "tune": ["--num-samples", "1", "--set", "stop.env_steps=64", "scheduler.min_progress=32"],
    "dashboard": ["--port", "0"],
}
FEWER = {
    "50_000": "64", "20_000": "64", "num_rollout_workers=2": "num_rollout_workers=0", "--seeds 1-5": "--seeds 1-2",
}  # fmt: skip
"""What is replaced in programs and commands."""
INSTALLS = ("./scripts/install", "source")
ELSEWHERE = ("--framework tf", "--env Pong", "--env CarRacing", "rlplat export")
"""What tests of its own run: TensorFlow, episodes of pixels and torch's exporter take longer than all the rest."""


def first_section(page: str) -> str:
    """Of the README its five minutes; other pages whole."""
    text = (ROOT / page).read_text()
    return text if page != "README.md" else text.split("\n## Five minutes\n")[1].split("\n## ")[0]


def steps(page: str) -> Iterator[list[Any]]:
    """What a reader of the page does, in order. A python block is a file where the text before it ends with a name."""
    text = first_section(page)
    yield ["page", page]
    for found in BLOCK.finditer(text):
        language, body = found.groups()
        named = re.search(r"`(\w+\.py)`[^`]*(\(`[^`]*`[^`]*\))?:\n*\Z", text[: found.start()])
        for large, small in FEWER.items():
            body = body.replace(large, small)
        if language == "python":
            yield ["file", named[1], body] if named else ["python", body]
        elif language == "sh":
            for line in body.splitlines():
                words = shlex.split(line, comments=True)
                if words and words[0] not in INSTALLS and not any(each in line for each in ELSEWHERE):
                    yield [
                        "command",
                        words + (SMALLER.get(" ".join(words[1:3])) or SMALLER.get(words[1], [])),
                    ]


def clone(folder: Path) -> None:
    """What git has of this checkout, as the files are now; its packages are those of this interpreter."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(300)
def test_every_step_works_in_a_clone(tmp_path: Path) -> None:
    clone(tmp_path)
    path = [step for page in PATH for step in steps(page)]
    assert sum(step[0] == "command" for step in path) > 20 and sum(step[0] == "python" for step in path) > 8
    done = subprocess.run(
        [sys.executable, "tests/house/walking.py"], input=json.dumps(path), cwd=tmp_path, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    assert done.stdout.count("no problems found") == 3 and "episode 1: return" in done.stdout
    assert (tmp_path / "runs" / "mine" / "checkpoints" / "latest").exists()  # of the own environment
    assert "\n(16,)\n" in done.stdout and "\n1\n" in done.stdout  # of the own program: a batch, a masked action
