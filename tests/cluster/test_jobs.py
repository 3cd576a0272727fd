"""Files of jobs that were cut, or that another version wrote: the job is named as damaged, and the others are shown."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rlplat.cluster.jobs import Jobs

JOB = {"command": ["true"], "workdir": "/", "submitted": time.time()}
RESULT = {"exit_code": 3, "ended": time.time(), "stopped": False}


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    for number in (1, 2):
        (tmp_path / "jobs" / str(number)).mkdir(parents=True)
        (tmp_path / "jobs" / str(number) / "job.json").write_text(json.dumps(JOB))
        (tmp_path / "jobs" / str(number) / "result.json").write_text(json.dumps(RESULT))
    return Jobs(tmp_path)


@pytest.mark.parametrize("name", ["job.json", "result.json"])
@pytest.mark.parametrize(
    "text", ["", '{"comm', "\0" * 40, "[]", "{}", '{"command": 3, "exit_code": "x"}', b"\xff\xfe"]
)
def test_a_damaged_job_hides_no_other(jobs: Jobs, tmp_path: Path, name: str, text: str | bytes) -> None:
    (tmp_path / "jobs" / "1" / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    damaged, other = jobs.all()
    assert (damaged["id"], damaged["state"], damaged["exit_code"]) == ("1", "damaged", None)
    assert (other["id"], other["state"], other["exit_code"]) == ("2", "failed", 3)
    assert all({"command", "submitted", "log"} <= set(each) for each in (damaged, other))
