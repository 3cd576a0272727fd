"""Files of jobs that were cut, or that another version wrote: the job is named as damaged, and the others are shown.
Logs that are full."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlplat.cluster import jobs as module
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
@pytest.mark.parametrize("text", ["", '{"comm', "\0" * 40, "[]", "{}", '{"command": 3, "exit_code": "x"}', b"\xff\xfe"])
def test_a_damaged_job_hides_no_other(jobs: Jobs, tmp_path: Path, name: str, text: str | bytes) -> None:
    (tmp_path / "jobs" / "1" / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    damaged, other = jobs.all()
    assert (damaged["id"], damaged["state"], damaged["exit_code"]) == ("1", "damaged", None)
    assert (other["id"], other["state"], other["exit_code"]) == ("2", "failed", 3)
    assert all({"command", "submitted", "log"} <= set(each) for each in (damaged, other))


def test_a_full_log_is_cut_and_a_reader_that_follows_it_reads_on(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 10)
    log = tmp_path / "jobs" / "1" / "log"
    prints = iter([["a" * 4], ["b" * 9], ["c" * 3], ["d" * 25, "e" * 12], ["f"], []])
    """Between two looks of the reader; the supervisor looks after each."""

    def look(job_id: str) -> dict[str, object]:
        texts = next(prints, [])
        for text in texts:
            with open(log, "a") as file:
                file.write(text)
            module.bound_log(log)
        return {"log": str(log), "state": "running" if texts else "done"}

    monkeypatch.setattr(jobs, "look", look)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    seen: list[bytes] = []
    jobs.logs("1", True, seen.append)
    assert b"".join(seen) == b"aaaabbbbbbbbbccceeeeeeeeeef"
    assert sorted(path.name for path in log.parent.glob("log*")) == ["log", "log-before-53"]
    seen.clear()
    jobs.logs("1", False, seen.append)
    assert b"".join(seen) == b"eeeeeeeeeef"


@pytest.mark.process
def test_a_job_that_prints_without_end_fills_no_disk(jobs: Jobs, tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "1"
    command = [sys.executable, "-c", "for n in range(40_000): print(n, flush=True)\nprint('last')\n1 / 0"]
    (folder / "job.json").write_text(json.dumps(JOB | {"command": command}))
    code = "from rlplat.cluster import jobs; jobs.MAX_LOG_BYTES = 20_000; jobs.supervise(jobs.Path('.'))"
    with open(folder / "log", "ab") as log:
        subprocess.run([sys.executable, "-c", code], cwd=folder, stdout=log, stderr=log, check=True)
    kept: list[bytes] = []
    assert jobs.logs("1", False, kept.append)["exit_code"] == 1
    lines = b"".join(kept).decode().splitlines()
    assert sum(path.stat().st_size for path in folder.glob("log*")) <= 60_000
    assert lines[-1].startswith("ZeroDivisionError") and "last" in lines and "39999" in lines
