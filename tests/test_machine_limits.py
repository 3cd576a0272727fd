"""Limits of containers: version 1 and 2, at the own group and above it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlplat import machine_limits

CPUS = len(os.sched_getaffinity(0))


class Groups:
    """A tree like /sys/fs/cgroup, and what /proc/self/cgroup says."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, folder: str, **files: object) -> None:
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (self.root / folder / name.replace("__", ".")).write_text(f"{text}\n")

    def own(self, *lines: str) -> None:
        (self.root / "own").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    monkeypatch.setattr(machine_limits, "ROOT", tmp_path)
    monkeypatch.setattr(machine_limits, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    return Groups(tmp_path)


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [("100000 100000", 1), ("150000 100000", 2), ("max 100000", 64), ("1000 100000", 1)],
)
def test_a_quota_of_version_2(groups: Groups, quota: str, cpus: int) -> None:
    groups.own("0::/")
    groups.write(".", cpu__max=quota)
    assert machine_limits.cpu_count() == cpus


def test_a_quota_of_version_1(groups: Groups) -> None:
    groups.own("7:cpu,cpuacct:/docker/abc", "3:cpuset:/", "0::/")
    groups.write("cpu,cpuacct", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    assert machine_limits.cpu_count() == 64
    groups.write("cpu,cpuacct", cpu__cfs_quota_us=300000)  # the container sees its own group as the root
    assert machine_limits.cpu_count() == 3


@pytest.mark.parametrize(
    "limited", [".", "system.slice", "system.slice/job_1", "system.slice/job_1/step_0/user/task_0"]
)
def test_a_limit_counts_at_any_level(groups: Groups, limited: str) -> None:
    own = "system.slice/job_1/step_0/user/task_0"
    groups.own(f"0::/{own}")
    for level in (own, "system.slice/job_1", "system.slice", "."):
        groups.write(level, cpu__max="max 100000", memory__max="max", memory__current=7 << 20, memory__stat="anon 1")
    assert (machine_limits.cpu_count(), machine_limits.memory_groups()) == (64, [])
    groups.write(limited, cpu__max="200000 100000", memory__max=1 << 30, memory__stat=f"inactive_file {2 << 20}")
    assert machine_limits.cpu_count() == 2
    assert machine_limits.memory_limit() == 1 << 30
    assert machine_limits.memory_groups() == [machine_limits.GroupMemory(5 << 20, 1 << 30)]


def test_memory_of_version_1_and_what_means_no_limit(groups: Groups) -> None:
    groups.own("4:memory:/job")
    groups.write("memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=1, memory__stat="cache 1")
    groups.write(
        "memory/job",
        memory__limit_in_bytes=1 << 30,
        memory__usage_in_bytes=9,
        memory__stat="total_inactive_file 4",
    )
    assert machine_limits.memory_groups() == [machine_limits.GroupMemory(5, 1 << 30)]


def test_no_groups_no_limits(groups: Groups) -> None:
    assert machine_limits.cpu_count() == 64
    assert machine_limits.memory_limit() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.process
def test_the_user_s_number_of_blas_threads_counts_in_workers() -> None:
    program = (
        "import os, rlplat\n"
        "names = ('OPENBLAS_NUM_THREADS', 'OMP_NUM_THREADS', 'MKL_NUM_THREADS')\n"
        "rlplat.init(num_cpus=1)\n"
        "print(rlplat.get(rlplat.remote(lambda: [os.environ.get(name) for name in names]).remote()))\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    for given, seen in (
        ({"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "3"}, "['2', '3', None]"),
        ({}, "['1', None, None]"),
    ):
        done = subprocess.run([sys.executable, "-c", program], env=clean | given, capture_output=True, text=True)
        assert done.stdout.strip() == seen, done.stderr
