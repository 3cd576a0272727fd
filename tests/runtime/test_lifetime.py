"""How long objects live in a real cluster: as long as somebody needs them, and no longer."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import OwnerDied, RuntimeFault
from rlplat.runtime.client.client import Client
from rlplat.runtime.refs import backend as current_backend
from rlplat.runtime.wire import messages
from tests.patience import soon

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]


def objects() -> Any:
    """The driver's `Objects`: its book and its store."""
    return current_backend().objects  # type: ignore[attr-defined]


def is_empty() -> bool:
    gc.collect()
    return len(objects().book) == 0 and not objects().borrows and not objects().store._in_use


class Keeper:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def keep(self, *things: Any) -> None:
        self.kept += things

    def look(self) -> list[Any]:
        return [rlplat.get(t[0]).sum() if isinstance(t, list) else t.sum() for t in self.kept]

    def drop(self) -> None:
        self.kept.clear()

    def make(self, value: float) -> np.ndarray:
        return np.full(125_000, value)

    def books(self) -> tuple[int, int]:
        gc.collect()
        mine = current_backend().objects  # type: ignore[attr-defined]
        mine.collect()
        return len(mine.borrows), len(mine.store._in_use)


def keeper() -> Any:
    class Local(Keeper):
        pass

    return rlplat.remote(Local).remote()


def test_refs_in_an_actors_state_survive_their_sender(cluster: None) -> None:
    actor = keeper()
    ref = rlplat.put(np.ones(125_000))
    rlplat.get(actor.keep.remote([ref]))
    del ref
    gc.collect()
    for i in range(100):
        rlplat.get(rlplat.put(np.full(125_000, float(i))))
    assert rlplat.get(actor.look.remote()) == [125_000]
    rlplat.get(actor.drop.remote())
    rlplat.kill(actor)
    del actor
    assert soon(is_empty)


def test_an_array_that_an_actor_keeps_stays_intact(cluster: None) -> None:
    actor = keeper()
    by_value, by_ref = np.full(125_000, 3.0), rlplat.put(np.full(125_000, 4.0))
    rlplat.get(actor.keep.remote(by_value, by_ref))
    del by_value, by_ref
    gc.collect()
    for i in range(200):
        rlplat.put(np.full(125_000, float(i)))
    assert rlplat.get(actor.look.remote()) == [375_000, 500_000]


def test_a_view_stays_true_while_hundreds_of_objects_come_and_go(cluster: None) -> None:
    actor = keeper()
    views = [rlplat.get(actor.make.remote(7.0)), rlplat.get(rlplat.put(np.full(125_000, 8.0)))]
    piece = views.pop()[1000:1010]
    for i in range(300):
        assert rlplat.get(actor.make.remote(float(i)))[0] == i
        rlplat.put(np.full(125_000, float(i)))
    assert (views[0] == 7).all()
    assert (piece == 8).all()


def test_segments_are_recycled_and_not_piled_up(cluster: None) -> None:
    actor = keeper()
    for i in range(100):
        rlplat.get(actor.make.remote(float(i)))
        rlplat.get(rlplat.put(np.full(125_000, float(i))))
    segments = [name for name in os.listdir(objects().store._session) if name.startswith("s-")]
    assert len(segments) < 30, segments


def test_a_hundred_thousand_tiny_objects_are_forgotten(cluster: None) -> None:
    refs = [rlplat.put(i) for i in range(100_000)]
    assert rlplat.get(refs[-1]) == 99_999
    assert len(objects().book) == 100_000
    del refs
    assert soon(is_empty)


def test_results_and_arguments_are_forgotten(cluster: None) -> None:
    @rlplat.remote
    def f(x: Any) -> Any:
        return x

    refs = [f.remote(f.remote(i)) for i in range(200)] + [f.remote(np.ones(50_000)) for _ in range(20)]
    rlplat.get(refs)
    nested = rlplat.get(f.remote([rlplat.put([rlplat.put(1)])]))
    assert rlplat.get(rlplat.get(nested[0])[0]) == 1
    del refs, nested
    assert soon(is_empty), (objects().book.entries, objects().borrows)


def test_failed_tasks_are_forgotten_with_their_arguments(cluster: None) -> None:
    @rlplat.remote
    def fail(x: Any) -> None:
        raise ValueError

    refs = [fail.remote(rlplat.put(np.ones(50_000))) for _ in range(10)]
    for ref in refs:
        try:
            rlplat.get(ref)
        except ValueError:
            pass
    del refs, ref
    assert soon(is_empty), objects().book.entries


def test_arguments_behind_one_that_does_not_open_are_forgotten(cluster: None) -> None:
    class Broken:
        def __reduce__(self) -> Any:
            return int, ("not a number",)

    @rlplat.remote
    def use(*args: Any, **kwargs: Any) -> None: ...

    refs = [rlplat.put(np.ones(50_000)), rlplat.put([rlplat.put(1)])]
    with pytest.raises(ValueError, match="not a number"):
        rlplat.get(use.remote(Broken(), refs[0], box=refs[1]))
    del refs
    assert soon(is_empty), objects().book.entries


def test_arguments_of_a_call_that_is_answered_from_memory_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def get_state(self) -> int:
            return self.count

        def set_state(self, count: int) -> None:
            self.count = count

        def add(self, array: np.ndarray) -> int:
            self.count += 1
            return self.count

    victim = tmp_path / "victim"
    monkeypatch.setenv("RLPLAT_CRASH_AT", f"after_checkpoint_before_replies:1:{victim}")
    rlplat.init(num_cpus=2, num_gpus=0)
    try:
        actor = rlplat.remote(exactly_once=True, max_restarts=1)(Counter).remote()
        array = rlplat.put(np.ones(50_000))
        id = array.id
        assert rlplat.get(actor.add.remote(array), timeout=60) == 1
        assert victim.exists()
        del array
        assert soon(lambda: objects().book.find(id) is None)  # while the second incarnation lives
    finally:
        rlplat.shutdown()


def test_a_reply_with_a_wrong_number_of_values_fails_its_call_alone(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = current_backend()
    assert isinstance(client, Client)
    handlers, taken = client.link.handlers, messages.Done
    finish = handlers[taken]

    def short(sender: str, message: Any) -> None:
        message.results = [values[:-1] for values in message.results]
        finish(sender, message)

    @rlplat.remote(num_returns=2)
    def pair() -> tuple[np.ndarray, list]:
        return np.ones(50_000), [rlplat.put(1)]

    monkeypatch.setitem(handlers, taken, short)
    refs = pair.remote()
    for ref in refs:
        with pytest.raises(RuntimeFault, match=r"pair: worker \S+ replied with 1 values instead of 2"):
            rlplat.get(ref, timeout=60)
    monkeypatch.setitem(handlers, taken, finish)
    array, box = rlplat.get(pair.remote(), timeout=60)
    assert array.sum() == 50_000
    assert rlplat.get(box[0], timeout=60) == 1


def test_an_owner_that_is_dead_already_is_told_of_no_loan(cluster: None) -> None:
    client, mine = current_backend(), objects()
    assert isinstance(client, Client)
    with client.link.lock:
        mine.dead.add_with("w-gone", "planted")
        ref = mine.borrow_from("w-gone", 1)
        assert "w-gone" not in mine._told
    with pytest.raises(OwnerDied, match="planted"):
        rlplat.get(ref)
    del ref
    assert soon(is_empty)
    assert "w-gone" not in mine._told


def test_results_that_nobody_wants_are_forgotten(cluster: None) -> None:
    actor = keeper()
    for i in range(50):
        actor.make.remote(float(i))  # the refs are dropped at once
    assert soon(lambda handle=actor: rlplat.get(handle.books.remote())[1] == 0)
    rlplat.kill(actor)
    del actor
    assert soon(is_empty)


def test_a_worker_forgets_what_it_borrowed(cluster: None) -> None:
    actor = keeper()
    refs = [rlplat.put(np.full(20_000, float(i))) for i in range(20)]
    rlplat.get(actor.keep.remote(*[[ref] for ref in refs], *refs))
    del refs
    gc.collect()
    assert rlplat.get(actor.look.remote())[3] == 60_000
    rlplat.get(actor.drop.remote())
    assert soon(lambda handle=actor: rlplat.get(handle.books.remote())[0] == 0)
    rlplat.kill(actor)
    del actor
    assert soon(is_empty)


def test_more_live_arrays_than_file_descriptors() -> None:
    """A mapping needs none, in readers and in those that write into a segment once more."""
    script = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import numpy as np, rlplat
rlplat.init(num_cpus=1, num_gpus=0)
files = len(os.listdir("/proc/self/fd"))
for _ in range(2):
    refs = [rlplat.put(np.full(10_000, float(i))) for i in range(100)]
    views = [rlplat.get(ref) for ref in refs]
    assert all((view == i).all() for i, view in enumerate(views))
    del refs, views
assert len(os.listdir("/proc/self/fd")) <= files + 1, os.listdir("/proc/self/fd")
rlplat.shutdown()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_io_thread_is_an_error_and_never_a_silent_hang(cluster: None) -> None:
    client = current_backend()
    assert isinstance(client, Client)

    def explode() -> None:
        raise ZeroDivisionError("planted")

    client.link.chore(explode, lambda: 0.0)
    with contextlib.suppress(RuntimeFault):
        rlplat.available_resources()  # wakes the thread
    client.link.loop._background.join(10)
    with pytest.raises(RuntimeFault, match=r"the runtime in driver failed.*planted"):
        rlplat.put(1)


def test_a_driver_that_falls_idle_lets_go_of_what_it_has_put() -> None:
    """Nothing comes in that would wake it, and nobody calls anything any more."""
    rlplat.init(num_cpus=1, num_gpus=0)
    try:
        mine = objects()
        assert soon(lambda: mine._loop._sleeps_for_good)
        rlplat.put(np.zeros(1_000_000))
        assert soon(lambda: not len(mine.book.entries) and not mine.dropped)
    finally:
        rlplat.shutdown()
