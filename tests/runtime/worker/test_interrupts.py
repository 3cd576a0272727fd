"""Where the KeyboardInterrupt of a cancelled task may strike: in the user's code and nowhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import rlplat.runtime.worker.interrupts as room
from rlplat.runtime.process import own_frames
from rlplat.runtime.worker.interrupts import Interrupts
from rlplat.runtime.worker.queue import Running

_CALL = "def call(function):\n    return function()\n"


def call_from(file: str, function: Callable[[], Any]) -> Any:
    """Calls it from a frame of this file."""
    names: dict[str, Any] = {}
    exec(compile(_CALL, file, "exec"), names)
    return names["call"](function)


def in_the_runtime(function: Callable[[], Any], place: str = "client.py") -> Any:
    """Calls it from a frame of the runtime."""
    return call_from(os.path.join(own_frames.FOLDER, place), function)


def execute(owner: str, message: Any) -> None:
    """As `Executor.execute`."""
    message.run()


def stream(message: Any) -> None:
    """As `Outflows.stream`: runtime code that calls the user's generator."""
    message.run()


def made(wanted: int = 7) -> tuple[Interrupts, Callable[[Any], None]]:
    """Interrupts that want this task, and what runs a message as `Worker.run` does."""
    running = Running()
    interrupts = Interrupts(running, (execute.__code__, stream.__code__))
    interrupts._wanted.add(("driver", wanted))

    def run_message(message: Any) -> None:
        running.call = ("driver", message)
        try:
            execute("driver", message)
        finally:
            running.call = None

    return interrupts, run_message


def run(function: Callable[[Interrupts], Any], task: int = 7, wanted: int = 7) -> None:
    interrupts, run_message = made(wanted)
    run_message(SimpleNamespace(task=task, run=lambda: function(interrupts)))
    assert not interrupts.has_struck(("driver", task))


def signal_here(interrupts: Interrupts) -> None:
    interrupts._on_signal(room.SIGNAL, sys._getframe())


def test_the_users_code_is_struck_once() -> None:
    interrupts, run_message = made()

    def user() -> None:
        with pytest.raises(KeyboardInterrupt):
            signal_here(interrupts)
        signal_here(interrupts)  # while it cleans up

    run_message(SimpleNamespace(task=7, run=user))
    assert interrupts.has_struck(("driver", 7))
    assert not interrupts.has_struck(("driver", 7))


def test_a_generator_of_the_users_is_struck_although_the_runtime_runs_it() -> None:
    def through_stream(interrupts: Interrupts) -> None:
        stream(SimpleNamespace(run=lambda: signal_here(interrupts)))

    with pytest.raises(KeyboardInterrupt):
        run(through_stream)


def test_the_runtimes_own_code_is_not_struck() -> None:
    run(lambda interrupts: in_the_runtime(lambda: signal_here(interrupts)))


def test_nor_that_in_a_folder_below() -> None:
    for place in ("core/scheduler/placing.py", "some/deeper/room.py"):
        run(lambda interrupts, place=place: in_the_runtime(lambda: signal_here(interrupts), place))


def test_a_neighbour_of_the_runtime_is_struck() -> None:
    beside = os.path.join(own_frames.IMPORT_ROOT, "rlplat", "runtime_of_others", "room.py")
    with pytest.raises(KeyboardInterrupt):
        run(lambda interrupts: call_from(beside, lambda: call_from(beside, lambda: signal_here(interrupts))))


def test_nor_what_it_calls_in_turn() -> None:
    """The unpickling of an argument, a condition that it waits on."""
    run(lambda interrupts: in_the_runtime(lambda: (lambda: signal_here(interrupts))()))


def test_nor_another_task() -> None:
    run(signal_here, task=8)


def test_nor_the_time_between_tasks() -> None:
    interrupts, _ = made()
    signal_here(interrupts)
    interrupts.check()


def test_a_wait_of_the_task_is_ended_by_the_runtime_itself() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(lambda interrupts: in_the_runtime(interrupts.check))
    run(lambda interrupts: in_the_runtime(interrupts.check), task=8)
