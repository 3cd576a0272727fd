"""Interrupts lose nothing: at random moments under load, and before (nearly) every line of the way."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.programs import ROOT

pytestmark = pytest.mark.process


def _run(*command: str) -> None:
    ended = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "ignored in" not in ended.stderr, ended.stderr


@pytest.mark.parametrize("workload", ["second_thread", "notebook", "alarms"])
def test_a_driver_goes_on_after_interrupts_at_random_moments(workload: str) -> None:
    _run("tests.faults.interrupted_driver", workload, "1")


def test_a_driver_goes_on_after_an_interrupt_before_any_line() -> None:
    _run("tests.faults.interrupt_everywhere", "--sample", "25")
