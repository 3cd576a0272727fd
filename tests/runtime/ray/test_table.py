"""The table of docs/on-ray.md, row by row: what is said to differ does differ. On a Ray that is already there
(`RLPLAT_TEST_RAY=1 pytest -m on_ray`); that every row has its test is looked at everywhere."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.errors import (
    ActorDied,
    DeadlineExceeded,
    InfeasibleResources,
    OptionError,
    SerializationError,
    TaskCancelled,
)
from rlplat.runtime import refs as connection
from tests.patience import soon

ROOT = Path(__file__).resolve().parents[3]
ROWS: dict[str, Callable[[], None]] = {}
"""By the left cell of a row: what shows its right cell."""


def row(left: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def note(test: Callable[[], None]) -> Callable[[], None]:
        ROWS[left] = test
        return test

    return note


def left_cells() -> list[str]:
    table = (ROOT / "docs" / "on-ray.md").read_text().split("| rlplat | on Ray |\n|---|---|\n")[1]
    return [line.split(" | ")[0].removeprefix("| ") for line in table.split("\n\n")[0].splitlines()]


def test_every_row_has_a_test() -> None:
    assert sorted(left_cells()) == sorted(ROWS)


@pytest.fixture
def ray_session(request: pytest.FixtureRequest) -> Iterator[None]:
    if "RLPLAT_TEST_RAY" not in os.environ:
        pytest.skip("$RLPLAT_TEST_RAY is not set")
    connection.set_backend(request.getfixturevalue("on_ray"))
    yield
    connection.set_backend(None)


def refused(name: str, value: Any) -> None:
    opened = connection.backend()
    connection.set_backend(None)
    try:
        with pytest.raises(OptionError, match=f"Ray has no {name}"):
            rlplat.init(backend="ray", **{name: value})
    finally:
        connection.set_backend(opened)


@rlplat.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def slow(self, seconds: float) -> int:
        time.sleep(seconds)
        self.count += 1
        return self.count

    def value(self) -> int:
        return self.count

    def die(self) -> None:
        os._exit(3)


@rlplat.remote
class Order:
    def __init__(self) -> None:
        self.seen: list[int] = []

    async def note(self, value: int) -> list[int]:
        self.seen.append(value)
        return self.seen

    async def numbers(self) -> Any:
        yield 1


@rlplat.remote
def after(seconds: float, value: Any) -> Any:
    time.sleep(seconds)
    return value


@rlplat.remote
def one(*_: Any) -> int:
    return 1


@row("a worker that hangs is found and replaced (`hang_timeout_s`)")
def _hang() -> None:
    refused("hang_timeout_s", 3.0)


@row("memory limits: `memory_usage_threshold`")
def _memory_threshold() -> None:
    refused("memory_usage_threshold", 0.5)


@row("`memory=` of a task or an actor is a limit")
def _memory() -> None:
    larger = rlplat.remote(lambda: len(bytearray(100 << 20))).options(memory=10 << 20)
    assert rlplat.get(larger.remote(), timeout=60) == 100 << 20


@row("`spill_dir`, `store_full_timeout_s`, `log_dir`")
def _ray_settings() -> None:
    refused("spill_dir", "")
    refused("store_full_timeout_s", 1.0)
    refused("log_dir", "/tmp")


@row("`preload`, workers that start in milliseconds")
def _preload() -> None:
    """The session was started with preload=["pydoc_data.topics"]."""
    assert not rlplat.get(rlplat.remote(lambda: "pydoc_data.topics" in sys.modules).remote(), timeout=60)


@row("`exactly_once=True`")
def _exactly_once() -> None:
    with pytest.raises(OptionError, match="exactly_once=True is not there on Ray"):
        Counter.options(exactly_once=True).remote()


@row("`timeout_s`")
def _timeout() -> None:
    late = after.options(timeout_s=1.0).remote(60, 1)
    dependent = one.remote(late)
    with pytest.raises(DeadlineExceeded):
        rlplat.get(late, timeout=60)
    with pytest.raises(TaskCancelled):
        rlplat.get(dependent, timeout=60)


@row("`bytearray` values")
def _bytearray() -> None:
    assert type(rlplat.get(rlplat.put(bytearray(b"abc")))) is bytes


@row("one object twice in an argument stays one")
def _twice() -> None:
    value = [1]
    is_one = rlplat.remote(lambda first, second: first is second)
    assert not rlplat.get(is_one.remote(value, value), timeout=60)


@row("a ref that a user's own `pickle.dumps` meets is refused")
def _pickled_ref() -> None:
    assert rlplat.get(pickle.loads(pickle.dumps(rlplat.put(41)))) == 41


@row("async actors begin calls in the order of their caller")
def _order() -> None:
    order = Order.remote()
    rlplat.get(order.note.remote(0), timeout=60)
    first = order.note.remote(after.remote(2.0, 1))
    rlplat.get([first, order.note.remote(2)], timeout=60)
    assert rlplat.get(order.note.remote(3), timeout=60) == [0, 2, 1, 3]


@row("what a machine could never hold is refused at once (`InfeasibleResources`)")
def _infeasible() -> None:
    """By the machines that there are; by node types: tests/cluster."""
    with pytest.raises(InfeasibleResources):
        rlplat.get(one.options(num_cpus=99).remote(), timeout=60)


@row("`cancel`")
def _cancel() -> None:
    counter = Counter.remote()
    rlplat.get(counter.value.remote(), timeout=60)
    call = counter.slow.remote(2.0)
    time.sleep(0.5)  # it has begun
    rlplat.cancel(call)
    assert rlplat.get(counter.value.remote(), timeout=60) == 1


@row("a call with `num_returns=n` that is a generator and raises")
def _generator_error() -> None:
    def values() -> Any:
        yield 1
        raise ValueError("no second one")

    for ref in rlplat.remote(values).options(num_returns=2).remote():
        with pytest.raises(ValueError, match="no second one"):
            rlplat.get(ref, timeout=60)


@row("a generator that waits for its consumer lends its CPU")
def _backpressure() -> None:
    def values() -> Any:
        yield from range(5)

    paused = rlplat.remote(values).options(num_returns="streaming", generator_backpressure=1)
    streams = [paused.remote(), paused.remote()]
    assert [rlplat.get(next(stream), timeout=60) for stream in streams] == [0, 0]
    waiting = one.remote()
    assert rlplat.wait([waiting], timeout=1.5) == ([], [waiting])
    assert [[rlplat.get(ref) for ref in stream] for stream in streams] == [[1, 2, 3, 4]] * 2
    assert rlplat.get(waiting, timeout=60) == 1


@row("a result that cannot be pickled")
def _unpicklable() -> None:
    import threading

    made = rlplat.remote(lambda: {"inner": threading.Lock()})
    with pytest.raises(SerializationError) as caught:
        rlplat.get(made.remote(), timeout=60)
    assert "['inner']" not in str(caught.value)


@row("what dies is named with signal, exit code and last lines")
def _death() -> None:
    with pytest.raises(ActorDied) as caught:
        rlplat.get(Counter.remote().die.remote(), timeout=60)
    assert "The actor is dead" in str(caught.value)


@row("the death of a machine")
def _machine() -> None:
    """Its defaults are not changed: a look each 3 s, of which 5 must fail at once, or time out after 10 s."""
    from ray._raylet import Config

    assert not [name for name in os.environ if name.startswith("RAY_health_check")]
    period_s, timeout_s = Config.health_check_period_ms() / 1000, Config.health_check_timeout_ms() / 1000
    failures = Config.health_check_failure_threshold()
    assert 14 <= failures * period_s <= failures * (period_s + timeout_s) <= 65


@row("`available_resources` changes as soon as a placement group is removed")
def _group_removed() -> None:
    group = rlplat.placement_group([{"CPU": 1}])
    rlplat.get(group.ready(), timeout=60)
    assert soon(lambda: rlplat.available_resources()["CPU"] == 1.0)
    rlplat.remove_placement_group(group)
    assert soon(lambda: rlplat.available_resources()["CPU"] == 2.0)


@row('`num_returns="dynamic"` for an async generator of an actor')
def _dynamic() -> None:
    with pytest.raises(Exception, match="generator"):
        rlplat.get(Order.remote().numbers.options(num_returns="dynamic").remote(), timeout=60)


@row("a child that its captured group could never hold is refused by name (`InfeasibleResources`)")
def _captured() -> None:
    @rlplat.remote
    def parent() -> Any:
        return rlplat.get(one.options(num_cpus=2).remote())

    group = rlplat.placement_group([{"CPU": 1}])
    place = {"placement_group": group, "placement_group_capture_child_tasks": True}
    try:
        with pytest.raises(ValueError):
            rlplat.get(parent.options(**place).remote(), timeout=60)
    finally:
        rlplat.remove_placement_group(group)


@row("detached actors end with the program's cluster")
def _detached() -> None:
    import ray

    program = (
        "import rlplat\n"
        "@rlplat.remote\n"
        "class Kept:\n"
        "    def answer(self): return 42\n"
        f"rlplat.init(backend='ray', address={ray.get_runtime_context().gcs_address!r}, log_to_driver=False)\n"
        "rlplat.get(Kept.options(name='kept', lifetime='detached').remote().answer.remote())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=100)
    kept = rlplat.get_actor("kept")
    assert rlplat.get(kept.answer.remote(), timeout=60) == 42
    rlplat.kill(kept)


@row("`rlplat status`, `list`, `logs`, `stack`, `memory`, `timeline`")
def _commands() -> None:
    for name in ("status", "memory", "timeline"):
        done = subprocess.run(
            [sys.executable, "-m", "rlplat.cli", name],
            env={**os.environ, "RLPLAT_BACKEND": "ray"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert "ray " in done.stderr and "Traceback" not in done.stderr


@pytest.mark.on_ray
@pytest.mark.process
@pytest.mark.parametrize("left", ROWS)
def test_row(left: str, ray_session: None) -> None:
    ROWS[left]()
