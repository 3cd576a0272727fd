"""A full object store: objects go to disk and come back, writers wait, and errors say who holds what."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ActorDied, ConfigError, ObjectStoreFull
from rlplat.runtime.refs import backend as current_backend
from rlplat.runtime.store.account import Holding
from rlplat.runtime.store.segments import Store
from tests.faults.programs import ROOT, places_of_segments, session_files
from tests.patience import soon

pytestmark = pytest.mark.process

MB = 1 << 20


@pytest.fixture
def start() -> Iterator[Callable[..., None]]:
    def start(**options: Any) -> None:
        rlplat.init(**{"num_cpus": 2, "num_gpus": 0, "object_store_memory": 64 * MB} | options)

    yield start
    rlplat.shutdown()


def objects() -> Any:
    return current_backend().objects  # type: ignore[attr-defined]


def holdings() -> list[Holding]:
    found: list[Holding] = objects().store.account.holdings()
    return found


def used() -> int:
    return sum(holding.used for holding in holdings())


def array(value: float, mb: int = 8) -> np.ndarray:
    return np.full(mb * MB // 8, float(value))


@rlplat.remote
def make(value: float) -> np.ndarray:
    return array(value)


@rlplat.remote
def mean(values: np.ndarray) -> float:
    return float(values[0] + values[-1]) / 2


def test_500_mib_of_objects_in_a_store_of_64_are_all_read_back(start: Any) -> None:
    start()
    refs = [rlplat.put(array(i)) for i in range(40)] + [make.remote(i) for i in range(40, 63)]
    for i, ref in enumerate(refs):
        assert (rlplat.get(ref) == i).all()
    assert rlplat.get([mean.remote(ref) for ref in refs[::3]]) == list(range(0, 63, 3))
    assert used() <= objects().store.account.limit == 64 * MB
    assert sum(holding.spilled for holding in holdings()) > 400 * MB
    places = places_of_segments(objects())
    assert set(places) == {"shm", "spilled"}
    assert len(places) == 63
    folder = os.readlink(os.path.join(objects().store._session, "spill"))
    assert os.stat(folder).st_mode & 0o777 == 0o700
    del refs, ref
    # Workers that are not needed end, and the node removes their files some seconds later.
    dead = objects().dead
    assert soon(
        lambda: gc.collect() is not None and all(name.split("-")[1] in dead for name in os.listdir(folder)),
        60,
    )
    living = [holding for holding in holdings() if holding.client not in dead]
    assert [holding.spilled for holding in living] == [0] * len(living)


def test_nothing_of_the_spill_folder_is_left_after_any_end(tmp_path: Path) -> None:
    script = f"""
import os, sys, numpy as np, rlplat
rlplat.init(num_cpus=1, num_gpus=0, object_store_memory={16 * MB}, spill_dir={str(tmp_path)!r})
refs = [rlplat.put(np.zeros({MB})) for _ in range(4)]
node = rlplat.runtime.refs.backend()._node.pid
print(node, flush=True)
sys.stdin.readline()
"""
    for victims in ("none", "driver", "driver and node"):
        driver = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert driver.stdin is not None and driver.stdout is not None
        node = int(driver.stdout.readline())
        (folder,) = tmp_path.iterdir()
        assert len(list(folder.iterdir())) >= 2, victims
        if victims == "none":
            driver.stdin.write("end\n")
        else:
            if victims == "driver and node":
                os.kill(node, signal.SIGSTOP)  # so that it cannot clean up and end in between
            os.kill(driver.pid, signal.SIGKILL)
            if victims == "driver and node":
                os.kill(node, signal.SIGKILL)
        driver.stdin.close()
        driver.wait(60)
        driver.stdout.close()
        assert soon(lambda: not list(tmp_path.iterdir()), 60), victims


def test_the_spill_folders_of_dead_sessions_are_removed(start: Any, tmp_path: Path) -> None:
    dead = tmp_path / "rlplat-999999999-1-x"
    dead.mkdir()
    (dead / "s-w1-1").touch()
    os.utime(dead, (0, 0))
    (tmp_path / "rlplat-notes").mkdir()  # a user's
    start(spill_dir=str(tmp_path))
    assert not dead.exists()
    assert (tmp_path / "rlplat-notes").exists()


def test_a_spill_dir_that_cannot_be_used_is_refused(start: Any) -> None:
    with pytest.raises(ConfigError, match=r"spill_dir: no folder can be made in '/proc/nowhere'"):
        start(spill_dir="/proc/nowhere")
    assert session_files(os.getpid()) == []


def test_without_a_spill_dir_the_error_says_who_holds_what_and_the_store_lives_on(start: Any) -> None:
    start(spill_dir="", store_full_timeout_s=0.3)
    refs = [rlplat.put(array(i)) for i in range(7)]
    with pytest.raises(
        ObjectStoreFull,
        match=r"no room for 8\.4 MB.*58\.7 of 67\.1 MB are taken.*owners: driver 58\.7 MB in 7 objects"
        r".*after waiting 0\.3 s; it may not spill to disk",
    ):
        rlplat.put(array(8))
    with pytest.raises(ObjectStoreFull, match=r"task make.*owners: driver 58\.7 MB"):
        rlplat.get(make.remote(9))
    assert all((rlplat.get(ref) == i).all() for i, ref in enumerate(refs))
    del refs[:2]
    assert (rlplat.get(make.remote(9)) == 9).all()
    assert (rlplat.get(rlplat.put(array(10))) == 10).all()


def test_a_value_larger_than_the_store_is_refused_at_once(start: Any) -> None:
    start(store_full_timeout_s=3600)
    with pytest.raises(ObjectStoreFull, match=r"no room for 83\.9 MB.*raise init\(object_store_memory"):
        rlplat.put(array(1, 80))
    assert (rlplat.get(rlplat.put(array(1, 40))) == 1).all()


def test_a_writer_waits_until_somebody_frees_something(start: Any) -> None:
    start(spill_dir="", store_full_timeout_s=3600)
    refs = [rlplat.put(array(i)) for i in range(7)]
    late = make.remote(7)
    assert rlplat.wait([late], timeout=0.3) == ([], [late])
    assert rlplat.get(mean.remote(refs[3]), timeout=30) == 3  # it does not hold up others
    refs.pop(0)
    assert (rlplat.get(late, timeout=30) == 7).all()


def test_what_is_looked_at_is_not_spilled_and_stays_true(start: Any) -> None:
    start(store_full_timeout_s=60)
    views = [rlplat.get(make.remote(i)) for i in range(3)] + [rlplat.get(rlplat.put(array(i))) for i in (3, 4)]
    refs = [rlplat.put(array(i)) for i in range(10)]
    assert all((rlplat.get(ref) == i).all() for i, ref in enumerate(refs))
    more = [rlplat.get(ref) for ref in refs[:2]]  # from disk: no room of the store is taken
    assert [view[5] for view in (*views, *more)] == [0, 1, 2, 3, 4, 0, 1]
    assert all((view == i).all() for i, view in enumerate(views))
    assert used() >= 5 * 8 * MB


def test_idle_processes_give_up_spares_and_stale_mappings(start: Any) -> None:
    start(spill_dir="", store_full_timeout_s=60)

    @rlplat.remote
    class Holder:
        def make(self, value: float) -> np.ndarray:
            return array(value, 16)

        def look(self, values: np.ndarray) -> float:
            return float(values[7])

    holders = [Holder.remote() for _ in range(2)]
    for holder in holders:  # each keeps a spare of 16 MiB, and a mapping of the other's
        assert rlplat.get(holder.make.remote(1))[0] == 1
        assert rlplat.get(holder.look.remote(array(2))) == 2
    refs = [rlplat.put(array(i)) for i in range(7)]
    assert all((rlplat.get(ref) == i).all() for i, ref in enumerate(refs))


def test_a_full_disk_is_an_error_for_one_and_the_others_go_on(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start(store_full_timeout_s=0.3)
    refs = [rlplat.put(array(i)) for i in range(7)]

    def sendfile(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "sendfile", sendfile)
    with pytest.raises(ObjectStoreFull, match=r"spilling to disk failed: No space left on device"):
        rlplat.put(array(8))
    assert rlplat.get([mean.remote(ref) for ref in refs]) == list(range(7))
    monkeypatch.undo()
    assert rlplat.get(mean.remote(rlplat.put(array(8)))) == 8


def test_a_process_goes_on_talking_while_a_value_is_copied(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    copying, go_on, refs = threading.Event(), threading.Event(), []
    write_all = Store._write_all

    def slow(*args: Any) -> None:
        copying.set()
        assert go_on.wait(20)
        write_all(*args)

    monkeypatch.setattr(Store, "_write_all", staticmethod(slow))
    thread = threading.Thread(target=lambda: refs.append(rlplat.put(array(3))))
    thread.start()
    assert copying.wait(20)
    assert rlplat.get(mean.remote(np.ones(2)), timeout=60) == 1
    assert not refs
    go_on.set()
    thread.join()
    assert rlplat.get(mean.remote(refs[0])) == 3


def test_a_result_for_a_caller_that_is_dead_takes_no_room(start: Any, tmp_path: Path) -> None:
    gate, began = str(tmp_path / "gate"), tmp_path / "began"
    os.mkfifo(gate)
    start()

    @rlplat.remote
    class Maker:
        def make(self) -> np.ndarray:
            began.touch()
            open(gate).read()
            return array(1)

        def ping(self) -> None:
            pass

    @rlplat.remote
    class Caller:
        def call(self, maker: Any) -> int:
            self.ref = maker.make.remote()
            return os.getpid()

    maker, caller = Maker.remote(), Caller.remote()
    pid = rlplat.get(caller.call.remote(maker))
    assert soon(began.exists)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorDied):
        rlplat.get(caller.call.remote(maker), timeout=60)
    with open(gate, "w"):
        pass
    rlplat.get(maker.ping.remote(), timeout=60)
    assert soon(lambda: objects().store.account.used() == 0)


class Two:
    def __init__(self) -> None:
        self.fails = False

    def make(self) -> tuple[np.ndarray, np.ndarray]:
        return array(1, 40), array(2, 40)

    def make_and_fail(self) -> np.ndarray:
        self.fails = True
        return array(1, 40)

    def get_state(self) -> None:
        if self.fails:
            raise RuntimeError("no state")

    def set_state(self, state: None) -> None: ...


def has_room_for_40_mb() -> bool:
    """When all others have given up what they keep for reuse, for which they may take their time."""
    objects().store.account.full_timeout_s = 60
    return bool(rlplat.get(rlplat.put(array(3, 40)))[-1] == 3)


@pytest.mark.parametrize("options", [{}, {"exactly_once": True, "max_restarts": 1, "max_task_retries": 1}])
def test_a_result_whose_second_part_finds_no_room_leaves_nothing_of_the_first(
    start: Any, options: dict[str, Any]
) -> None:
    start(spill_dir="", store_full_timeout_s=0.3)
    actor = rlplat.remote(Two).options(**options).remote()
    for ref in actor.make.options(num_returns=2).remote():
        with pytest.raises(ObjectStoreFull):
            rlplat.get(ref, timeout=60)
    assert has_room_for_40_mb()


def test_a_result_with_a_state_that_cannot_be_kept_leaves_nothing(start: Any) -> None:
    start(spill_dir="", store_full_timeout_s=0.3)
    actor = rlplat.remote(Two).options(exactly_once=True, max_restarts=1, max_task_retries=1).remote()
    with pytest.raises(RuntimeError, match="no state"):
        rlplat.get(actor.make_and_fail.remote(), timeout=60)
    assert has_room_for_40_mb()


def test_a_put_that_is_cancelled_leaves_nothing(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    client: Any = current_backend()

    def cancelled() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client.link, "_check", cancelled)
    with pytest.raises(KeyboardInterrupt):
        rlplat.put(array(1))
    monkeypatch.undo()
    (mine,) = [each for each in holdings() if each.client == "driver"]
    assert mine.used == mine.spare


def test_threads_that_put_at_once_all_get_room(start: Any) -> None:
    start()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            refs = [rlplat.put(array(seed + i, 4)) for i in range(10)]
            for i, ref in enumerate(refs):
                assert (rlplat.get(ref) == seed + i).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    results = [make.remote(i) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert all((rlplat.get(ref) == i).all() for i, ref in enumerate(results))
    assert used() <= 64 * MB


def test_an_argument_lives_while_a_task_uses_it_though_the_driver_dropped_it(start: Any, tmp_path: Path) -> None:
    start()
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    os.mkfifo(gate)

    @rlplat.remote
    def use(values: np.ndarray, nested: list[Any]) -> tuple[bool, bool]:
        begun.touch()
        gate.read_text()
        return bool((values == 5).all()), bool((rlplat.get(nested[0]) == 6).all())

    result = use.remote(rlplat.put(array(5)), [rlplat.put(array(6))])
    assert soon(begun.exists, 60)
    gc.collect()
    for i in range(30):  # would write over a segment that was freed too early
        assert (rlplat.get(rlplat.put(array(i))) == i).all()
    with open(gate, "w"):
        pass
    assert rlplat.get(result, timeout=30) == (True, True)
    assert soon(lambda: len(objects().book) <= 1, 60)


@pytest.mark.parametrize("point", ["before_spill", "after_spill"])
def test_a_worker_that_dies_while_it_spills_loses_nothing_of_others(
    start: Any, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLPLAT_CRASH_AT", f"{point}:3")
    start(num_cpus=1)
    refs = []
    deadline = time.monotonic() + 60
    for i in range(14):
        refs.append(make.remote(i))
        assert (rlplat.get(refs[-1], timeout=deadline - time.monotonic()) == i).all()
    assert all((rlplat.get(ref) == i).all() for i, ref in enumerate(refs))
    assert used() <= 64 * MB


@rlplat.remote
class Bearer:
    def bear(self) -> Any:
        self.never_put = rlplat.empty(8 * MB // 8)
        self.put = rlplat.empty(8 * MB // 8)
        self.put[:] = 1
        return self.put

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_born_in_a_process_that_dies_is_its_owner_s_or_gone(start: Any) -> None:
    start()
    bearer = Bearer.remote()
    ref = bearer.bear.remote()
    view = rlplat.get(ref)
    with pytest.raises(ActorDied):
        rlplat.get(bearer.die.remote())
    assert soon(lambda: 8 * MB <= used() < 9 * MB)
    assert (view == 1).all() and (rlplat.get(ref) == 1).all()
    del view, ref
    gc.collect()
    rlplat.put(1)
    objects().drop_spares()
    assert soon(lambda: used() == 0)
    assert not [name for name in os.listdir(objects().store._session) if name.startswith("s-")]
