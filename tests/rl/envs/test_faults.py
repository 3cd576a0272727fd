"""Whatever an environment does wrong is one EnvError that names it, its number, the step, the action and the fix."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlplat.errors import EnvError, UsageError
from rlplat.rl.envs.guard import GuardedEnv
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.vector_env import VectorEnv
from rlplat.rl.envs.watchdog import NO_LIMITS, Limits, StepWatchdog, is_debugged
from tests.rl.fixture_envs import FaultyEnv, NativeVectorEnv

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = "tests.rl.fixture_envs"
FAULTY = f"{FIXTURES}:FaultyEnv"

FAULTS = [
    ("raise", "step() raised ValueError: the pole fell off (at "),
    ("exit", "step() raised SystemExit: 3"),
    ("nan obs", "NaN or infinity in the observation at index (1,)"),
    ("inf obs", "NaN or infinity in the observation at index (0,)"),
    ("nan final obs", "NaN or infinity in the final observation at index (0,)"),
    ("nan reward", "NaN or infinity in the reward: "),
    ("inf reward", "NaN or infinity in the reward: "),
    ("shape", "step(): observation has shape (3,), but its space says (2,)"),
    ("dtype", "has dtype int64, but its space says float32; return obs.astype(np.float32)"),
    ("list", "observation is [0.0, 0.0] (list), but expected is an array of shape (2,) float32"),
    ("old api", "step() returned 4 values (the old gym API"),
    ("None", "step() returned None (NoneType), expected (obs, reward, terminated, truncated, info)"),
    ("reward None", "returned the reward None (NoneType), expected a number; return float(reward)"),
    ("reward array", "returned the reward [1. 1.] (ndarray), expected a number"),
    ("done int", "returned terminated as 1 (int), expected True or False; return bool(terminated)"),
    ("info", "returned the info None (NoneType), expected a dict"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_a_fault_names_environment_step_action_and_fix(fault: str, message: str) -> None:
    FaultyEnv.made = 0
    with make_vector_env(FAULTY, 3, env_kwargs={"fault": fault, "who": 1}) as env:
        env.reset()
        env.step(np.ones(3, np.int64))
        env.step(np.ones(3, np.int64))
        with pytest.raises(EnvError) as caught:
            env.step(np.array([0, 2, 0]))
    text = str(caught.value)
    assert re.match(
        r"tests\.rl\.fixture_envs:FaultyEnv \(environment 1 of 0\.\.2\), step 3 \(step 3 of its episode\), action "
        r"1: ",
        text,
    ), text
    assert message in text


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "reset() raised ValueError"),
        ("obs only", "expected (obs, info)"),
        ("nan obs", "in the observation"),
    ],
)
def test_faults_in_reset(fault: str, message: str) -> None:
    with make_vector_env(FAULTY, 2, env_kwargs={"fault": fault, "at": 0}) as env:
        with pytest.raises(EnvError, match=re.escape(message)) as caught:
            env.reset()
    assert "environment 0 of 0..1" in str(caught.value)


def test_a_constructor_that_raises() -> None:
    with pytest.raises(EnvError, match=r"env_kwargs=.*init.*RuntimeError: no display"):
        make_vector_env(FAULTY, 2, env_kwargs={"fault": "init"})


def test_spaces_that_nothing_supports_are_refused_before_anything_is_stepped() -> None:
    with pytest.raises(UsageError, match=r"observation space at 'log' Text.*not supported"):
        make_vector_env(f"{FIXTURES}:UnsupportedEnv", 2)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            {"obs": np.zeros((2, 3), np.float32)},
            "observation: batch of shape (2, 3) float32, but its spaces say (2, 1)",
        ),
        ({"obs": np.zeros((2, 1), np.int64)}, "observation: batch of shape (2, 1) int64"),
        ({"obs": np.array([[0.0], [np.nan]], np.float32)}, "(environment 1 of 0..1), step 1"),
        ({"rewards": np.array([1.0, np.inf])}, "(environment 1 of 0..1), step 1"),
        ({"rewards": np.ones((2, 1))}, "rewards of shape (2, 1)"),
        ({"rewards": np.array([None, 1.0])}, "rewards of shape (2,) object"),
        ({"terminated": np.zeros(2, np.int64)}, "terminated of shape (2,) int64, expected (2,) bool"),
        ({"truncated": np.zeros(3, np.bool_)}, "truncated of shape (3,) bool"),
    ],
)
def test_faults_of_native_vector_environments(returned: dict[str, Any], message: str) -> None:
    env = VectorEnv(NativeVectorEnv(**returned), "Native", limits=NO_LIMITS)
    env.reset()
    with pytest.raises(EnvError) as caught:
        env.step(np.zeros(2, np.int64))
    assert message in str(caught.value)


def test_a_native_vector_environment_must_say_its_mode_and_keep_to_it() -> None:
    with pytest.raises(EnvError, match="autoreset_mode"):
        VectorEnv(NativeVectorEnv(metadata={}), "Native")
    raw = NativeVectorEnv({"autoreset_mode": AutoresetMode.SAME_STEP}, terminated=np.array([False, True]))
    env = VectorEnv(raw, "Native", limits=NO_LIMITS)
    env.reset()
    with pytest.raises(EnvError, match=r"environment 1 .*info\['final_obs'\] is missing"):
        env.step(np.zeros(2, np.int64))


def test_a_hang_in_the_main_thread_becomes_an_error_that_says_where() -> None:
    with make_vector_env(FAULTY, 3, env_kwargs={"fault": "hang", "at": 2}, step_timeout_s=0.2) as env:
        env.reset()
        env.step(np.zeros(3, np.int64))
        with pytest.raises(EnvError, match=r"environment 0 of 0.*step 2.*limit of 0\.2 s, at .*fixture_envs"):
            env.step(np.zeros(3, np.int64))


@pytest.mark.parametrize("at", [0, 1])
def test_each_environment_of_a_batch_has_the_whole_limit(at: int) -> None:
    """0.3 s each, in reset() or in step()."""
    with make_vector_env(FAULTY, 5, env_kwargs={"fault": "slow", "at": at}, step_timeout_s=1.0) as env:
        env.reset()
        if at == 1:
            env.step(np.zeros(5, np.int64))


def test_there_is_no_limit_at_a_breakpoint() -> None:
    with make_vector_env(FAULTY, 1, env_kwargs={"fault": "breakpoint", "at": 1}, step_timeout_s=0.5) as env:
        env.reset()
        env.step(np.zeros(1, np.int64))
    assert not is_debugged(threading.get_ident()), "the user has continued"


def test_a_traced_thread_is_debugged() -> None:
    def trace(frame: Any, event: str, argument: Any) -> Any:
        return trace

    def traced() -> bool:
        return is_debugged(threading.get_ident())

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = traced()
    finally:
        sys.settrace(before)
    assert found
    if before is None:
        assert not traced()


def test_a_hang_that_cannot_be_interrupted_ends_the_process() -> None:
    ended: list[str] = []
    env = FaultyEnv("hang stubbornly", at=1)
    FaultyEnv.release.clear()

    def end_process(message: str) -> None:
        ended.append(message)
        FaultyEnv.release.set()

    guard = GuardedEnv(env, "Stubborn")
    watchdog = StepWatchdog(Limits(0.1, 0.1), guard.place, end_process=end_process, grace_s=0.1)
    guard.reset()
    watchdog.deadline = 0.0  # long past
    guard.step(1)
    watchdog.close()
    assert ended == [
        "Stubborn, step 1 (step 1 of its episode), action 1 took longer than the limit of 0.1 s and cannot be "
        "interrupted, so the process ends; mend the environment, or raise the limit (--env-step-timeout-s, "
        "--env-reset-timeout-s)"
    ]


@pytest.mark.process
def test_a_hang_in_another_thread_ends_the_process_with_the_reason_as_its_last_line() -> None:
    script = (
        "import threading, numpy as np\n"
        "from rlplat.rl.envs.make import make_vector_env\n"
        "def play():\n"
        f"    env = make_vector_env('{FAULTY}', 2, env_kwargs={{'fault': 'hang', 'at': 2}}, step_timeout_s=0.2)\n"
        "    env.reset()\n"
        "    for _ in range(2): env.step(np.zeros(2, np.int64))\n"
        "threading.Thread(target=play).start()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "fixture_envs.py" in done.stderr  # the stack of the thread that hangs
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "rlplat: tests.rl.fixture_envs:FaultyEnv (environment 0 of 0..1), step 2 (step 2 of its episode)"
    )
    assert "took longer than the limit of 0.2 s" in last


def test_the_watchdog_goes_with_its_environment() -> None:
    def watchers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "env-watchdog"}

    before = watchers()
    env = make_vector_env("CartPole-v1", 1, step_timeout_s=0.5)
    [mine] = watchers() - before
    env.close()
    assert not mine.is_alive()
    env = make_vector_env("CartPole-v1", 1, step_timeout_s=0.5)
    [mine] = watchers() - before
    del env  # nobody closed it
    gc.collect()
    mine.join(timeout=10)
    assert not mine.is_alive()


@pytest.fixture
def async_faulty() -> Iterator[Any]:
    made: list[VectorEnv] = []

    def make(fault: str, **options: Any) -> VectorEnv:
        # In each child the counter stands where it stood here at the fork; the dummy made by gymnasium moves it by one.
        FaultyEnv.made = 0
        made.append(make_vector_env(FAULTY, 2, env_kwargs={"fault": fault}, vectorization="async", **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.mark.process
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"\(environment \d of 0\.\.1\), step 3 .*the pole fell off"),
        ("nan obs", r"\(environment 0 of 0\.\.1\), step 3 .*NaN or infinity"),
        ("die", r"\(environment .* of 0\.\.1\), step 3.*process died in step\(\) \(SIGKILL"),
        ("hang", r"\(environment 0, 1 of 0\.\.1\), step 3.*longer than the limit of 2 s"),
    ],
)
def test_faults_in_environment_processes(async_faulty: Any, fault: str, message: str) -> None:
    env = async_faulty(fault, step_timeout_s=2 if fault == "hang" else 60)
    env.reset()
    env.step(np.zeros(2, np.int64))
    env.step(np.zeros(2, np.int64))
    with pytest.raises(EnvError, match=message):
        env.step(np.zeros(2, np.int64))
    env.close()
    assert multiprocessing.active_children() == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "init in its process",
            r"FaultyEnv: making .* raised RuntimeError: no display there.*process of env",
        ),
        (
            "exit in its process",
            r"FaultyEnv: the process of environment \d ended \(exit code 3\).* while it was made",
        ),
    ],
)
def test_an_environment_that_cannot_be_made_in_its_process(fault: str, message: str) -> None:
    FaultyEnv.made = 0
    with pytest.raises(EnvError, match=message):
        # In both processes the counter stands at 2.
        make_vector_env(FAULTY, 2, env_kwargs={"fault": fault, "who": 2}, vectorization="async")
    assert multiprocessing.active_children() == []


@pytest.mark.process
def test_signals_to_all_processes_leave_the_environments_to_their_owner(async_faulty: Any) -> None:
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        env = async_faulty("")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    env.reset()
    processes = multiprocessing.active_children()
    for process in processes:
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGHUP)
    assert env.step(np.zeros(2, np.int64)).rewards.tolist() == [1.0, 1.0]
    for process in processes:
        process.terminate()
    with pytest.raises(EnvError, match=r"process died in step\(\) \(SIGTERM, SIGTERM\)"):
        env.step(np.zeros(2, np.int64))
