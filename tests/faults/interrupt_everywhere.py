"""A signal before each line of the runtime that the verbs run in the driver: submit, put, get, wait, actor calls, ...

    python -m tests.faults.interrupt_everywhere                    # every line, both signals: some minutes
    python -m tests.faults.interrupt_everywhere --sample 40        # as many of them, as the tests do

One walk through the verbs finds the lines. Then the walk is made once for each: as soon as it comes to that line a
trace function raises a real signal there, SIGINT or a SIGALRM whose handler raises an exception of its own. Whatever
Python then does, the walk must end in that exception, a call must be answered, and the driver's books must be empty.

Python looks for signals at fewer places than this (where a function begins, after calls, at the end of loops), and lets
none strike before any line; so this is stricter than what can happen. Within a line it tries nothing;
`interrupted_driver` does, at random moments.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

import rlplat
import rlplat.runtime.refs
from rlplat.runtime.process import own_frames
from tests.faults.interrupted_driver import TooLong, add_one, books, count, raise_too_long, slow
from tests.patience import soon

_LARGE = np.zeros(20_000)
_ANSWER_S = 20.0
_numbers = itertools.count()
Point = tuple[str, int]


class Adder:
    def add(self, x: Any) -> Any:
        return x + 1


def call_tasks() -> None:
    refs = [add_one.remote(x) for x in range(3)]
    refs.append(add_one.options(num_returns=1, timeout_s=60).remote(_LARGE))
    refs.append(add_one.remote(add_one.remote(1)))
    rlplat.wait(refs, num_returns=2, timeout=_ANSWER_S)
    rlplat.get(refs, timeout=_ANSWER_S)
    refs[0].future().result(_ANSWER_S)
    rlplat.remote(lambda x: [x]).remote(refs[0])
    late = slow.remote(1)
    rlplat.cancel(late)
    for ref in count.remote(3):
        rlplat.get(ref, timeout=_ANSWER_S)
    rlplat.available_resources()


def put_values() -> None:
    small, large = rlplat.put(1), rlplat.put(_LARGE)
    view = rlplat.get(large, timeout=_ANSWER_S)
    nested = rlplat.put([small, large])
    del large
    rlplat.get(rlplat.get(nested, timeout=_ANSWER_S)[1])
    assert not view.any()


def call_actors() -> None:
    name = f"adder {next(_numbers)}"
    actor = rlplat.remote(Adder).options(name=name).remote()
    refs = [actor.add.remote(1), actor.add.remote(_LARGE), actor.add.remote(rlplat.put(2))]
    rlplat.get(refs, timeout=_ANSWER_S)
    rlplat.get([actor.add.remote(x) for x in range(3)])
    rlplat.get(rlplat.get_actor(name).add.remote(1))
    refs.append(actor.add.remote(1))
    rlplat.kill(actor)


WALKS: list[Callable[[], None]] = [call_tasks, put_values, call_actors]


def lines_of(walk: Callable[[], None]) -> list[Point]:
    """The lines of the runtime that it runs in this thread."""
    found: dict[Point, None] = {}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if not own_frames.is_own(name):
            return None
        if event == "line":
            found[name, frame.f_lineno] = None
        return trace

    sys.settrace(trace)
    try:
        walk()
    finally:
        sys.settrace(None)
    return sorted(found)


def strike(walk: Callable[[], None], point: Point, number: int) -> bool:
    """Make the walk with that signal before that line; False: it did not come there this time."""
    name, line = point
    has_struck = False

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal has_struck
        if has_struck or frame.f_code.co_filename != name:
            return None
        if event == "line" and frame.f_lineno == line:
            has_struck = True
            sys.settrace(None)
            signal.raise_signal(number)
            return None
        return trace

    caught = False
    sys.settrace(trace)
    try:
        walk()
    except (KeyboardInterrupt, TooLong):
        caught = True
    finally:
        sys.settrace(None)
    assert caught == has_struck, "the exception of the handler was swallowed"
    assert rlplat.get(add_one.remote(1), timeout=_ANSWER_S) == 2
    assert soon(lambda: not any(books().values()), 3), books()
    return has_struck


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sample", type=int, help="how many lines of each walk; without it all")
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
    signal.signal(signal.SIGALRM, raise_too_long)
    rlplat.init(num_cpus=2, num_gpus=0)
    chance, num_struck, failures = random.Random(asked.seed), 0, []
    for walk in WALKS:
        walk()
        points = [(point, number) for point in lines_of(walk) for number in (signal.SIGINT, signal.SIGALRM)]
        assert soon(lambda: not any(books().values()), 3), books()
        if asked.sample is not None:
            points = chance.sample(points, min(asked.sample, len(points)))
        for point, number in points:
            try:
                num_struck += strike(walk, point, number)
            except BaseException as error:
                where = f"{walk.__name__}: {number.name} before {os.path.basename(point[0])}:{point[1]}"
                failures.append(f"{where}: {type(error).__name__}: {error}")
                print(failures[-1], flush=True)
                error.__traceback__ = None
    rlplat.shutdown()
    print(f"{num_struck} signals struck, {len(failures)} of them did harm", flush=True)
    return 1 if failures or not num_struck else 0


if __name__ == "__main__":
    sys.exit(main())
