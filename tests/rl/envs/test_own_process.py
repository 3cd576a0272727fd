"""Environments that end, block or litter their process cost the pre-flight its own one, and are named."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from rlplat.algorithms.ppo import PPO, PPOConfig
from rlplat.cli import main
from rlplat.errors import EnvError, EnvNotFound, UsageError
from rlplat.rl.envs import own_process
from rlplat.rl.envs.check import check_env
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.own_process import Beat, ProcessEnded, in_own_process
from tests.rl.fixture_envs import stop_at_a_breakpoint

pytestmark = pytest.mark.process

UNRULY = "tests.rl.unruly_envs:UnrulyEnv"


@pytest.fixture(autouse=True)
def forks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an earlier test has imported TensorFlow: nothing of it is touched after these forks."""
    if request.function is not test_other_threads_and_unforkable_frameworks_call_in_place:
        monkeypatch.setattr(own_process, "_can_fork", lambda: True)


@pytest.mark.parametrize(
    ("deed", "expected"),
    [
        ("exit", "its process ended during step() after 2 steps (exit code 0)"),
        ("crash", "its process ended during step() after 2 steps (SIGSEGV)"),
        ("quit", "step() raised Quit: enough (at "),
    ],
)
def test_what_ends_its_process_is_an_error_in_the_report(deed: str, expected: str) -> None:
    report = check_env(UNRULY, {"deed": deed}, steps=10)
    assert not report.is_sound
    assert expected in "\n".join(report.lines)


def test_check_env_exits_with_1_and_training_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", UNRULY, "--env-kwargs.deed", "exit", "--steps", "20"]) == 1
    assert "exit code 0" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"UnrulyEnv cannot be trained on:\n  - its process ended during step"):
        PPO(PPOConfig(env=UNRULY, env_kwargs={"deed": "exit"}, num_rollout_workers=0))


def test_a_breakpoint_is_not_silence() -> None:
    report = check_env("tests.rl.fixture_envs:FaultyEnv", {"fault": "breakpoint", "at": 1}, steps=1, step_timeout_s=0.3)
    assert report.is_sound

    def look(beat: Beat) -> str:
        stop_at_a_breakpoint()
        return "seen"

    assert in_own_process(look, silence_s=0.8) == "seen"


def test_a_daemon_of_the_environment_ends_with_the_check(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    assert check_env(UNRULY, {"deed": "daemon", "file": str(file)}, steps=5).is_sound
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


def test_a_close_that_raises_is_a_warning_that_names_the_place() -> None:
    report = check_env(UNRULY, {"deed": "close"}, steps=5)
    [line] = report.lines
    assert report.is_sound
    assert line.startswith("warning: close() raised RuntimeError: the door is stuck (at ")
    assert "unruly_envs.py:" in line


def test_a_module_that_leaves_when_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "leaver.py").write_text("import sys\nsys.exit(0)\n")
    [line] = check_env(f"{tmp_path}/leaver.py:Env", steps=5).lines
    assert "SystemExit: 0 was raised during the import of its module" in line


def test_what_holds_the_interpreters_lock_is_ended() -> None:
    from tests.rl.unruly_envs import UnrulyEnv

    def hold(beat: Beat) -> None:
        env = UnrulyEnv("hold", at=1)
        env.reset()
        beat("step()")
        env.step(0)

    with pytest.raises(ProcessEnded, match=r"no answer for 0.5 s during step\(\): it was ended"):
        in_own_process(hold, silence_s=0.5)


def test_results_and_errors_come_back_from_another_process() -> None:
    pid, much = in_own_process(lambda beat: (os.getpid(), b"x" * 300_000), silence_s=60)
    assert pid != os.getpid() and len(much) == 300_000
    with pytest.raises(EnvNotFound, match="CartPole-v1"):
        check_env("CartPol-v1")


def test_other_threads_and_unforkable_frameworks_call_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def call(beat: Beat) -> None:
        beat("nothing")
        pids.append(os.getpid())

    thread = threading.Thread(target=lambda: in_own_process(call, silence_s=60))
    thread.start()
    thread.join()
    monkeypatch.setitem(own_process.sys.modules, "jax", own_process)
    in_own_process(call, silence_s=60)
    assert pids == [os.getpid()] * 2


def test_in_a_run_both_are_told_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    env = make_vector_env(UNRULY, 2, env_kwargs={"deed": "quit", "at": 1})
    env.reset()
    with pytest.raises(EnvError, match=r"UnrulyEnv \(environment 0 of 0\.\.1\), step 1 .*raised Quit: enough"):
        env.step(np.zeros(2, np.int64))
    env.close()
    make_vector_env(UNRULY, 1, env_kwargs={"deed": "close"}).close()
    said = capsys.readouterr().err
    assert "warning: tests.rl.unruly_envs:UnrulyEnv, before its first step: close() raised RuntimeError: the" in said
