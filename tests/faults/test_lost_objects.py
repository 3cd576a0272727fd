"""Bytes that are lost: results are made again, and what cannot be is an error that says why. Nothing hangs."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ActorDied, GetTimeout, ObjectLost, ObjectRebuildFailed, OwnerDied, TaskError
from rlplat.runtime.refs import backend as current_backend
from tests.faults.programs import places_of_segments
from tests.patience import soon
from tests.runtime.core.validity import check_lineage

pytestmark = pytest.mark.process


@pytest.fixture
def session(cluster: None) -> Iterator[str]:
    yield current_backend().link.session  # type: ignore[attr-defined]


def lose_everything(session: str) -> int:
    """Remove every segment of the cluster, in shared memory and on disk."""
    num_lost = 0
    for folder in (session, os.path.join(session, "spill")):
        for name in os.listdir(folder):
            if name.startswith("s-"):
                os.unlink(os.path.join(folder, name))
                num_lost += 1
    return num_lost


def lineage() -> Any:
    return current_backend().calls.rebuilder.lineage  # type: ignore[attr-defined]


def done(*refs: rlplat.ObjectRef) -> None:
    _, rest = rlplat.wait(refs, num_returns=len(refs), timeout=60)
    assert not rest


def array(value: float) -> np.ndarray:
    return np.full(20_000, float(value))


@rlplat.remote
def make(value: float, log: Path | None = None) -> np.ndarray:
    if log is not None:
        with open(log, "a") as file:
            file.write(f"make {value}\n")
    return array(value)


@rlplat.remote
def add(values: np.ndarray, log: Path | None = None) -> np.ndarray:
    if log is not None:
        with open(log, "a") as file:
            file.write(f"add to {values[0]:g}\n")
    return values + 1


@rlplat.remote
def first(values: np.ndarray) -> float:
    return float(values[0])


def test_a_chain_of_20_is_made_again_though_nothing_between_was_kept(session: str) -> None:
    ref = make.remote(1)
    for _ in range(20):
        ref = add.remote(ref)
    done(ref)
    book = current_backend().objects.book  # type: ignore[attr-defined]
    assert soon(lambda: gc.collect() is not None and len(book) == 1, 60)
    assert len(lineage().recipes) == 21
    lose_everything(session)
    assert (rlplat.get(ref, timeout=60) == 21).all()
    check_lineage(lineage())
    del ref
    assert soon(lambda: gc.collect() is not None and not lineage().recipes, 60)
    assert soon(lambda: len(book) == 0, 60)


def test_only_what_is_lost_runs_again_and_once(session: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    kept = make.remote(1, log)
    middle = add.remote(kept, log)
    end = add.remote(middle, log)
    done(end)
    view = rlplat.get(kept)  # stays readable here, and is gone for everybody else
    lose_everything(session)
    assert rlplat.get(end, timeout=60)[7] == 3
    assert (view == 1).all()
    assert sorted(log.read_text().splitlines()) == sorted(2 * ["make 1", "add to 1", "add to 2"])
    assert rlplat.get([middle, kept], timeout=60)[0][5] == 2
    assert len(log.read_text().splitlines()) == 6


def test_many_readers_at_once_cause_one_run(session: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ref = make.remote(4, log)
    done(ref)
    lose_everything(session)
    got: list[float] = []
    threads = [threading.Thread(target=lambda: got.append(rlplat.get(ref, timeout=60)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    others = rlplat.get([first.remote(ref) for _ in range(4)], timeout=60)
    for thread in threads:
        thread.join()
    assert got + others == [4] * 8
    assert log.read_text().count("make") == 2


def test_a_lost_argument_is_made_again_for_the_task_that_needs_it(session: str) -> None:
    direct, nested = make.remote(1), make.remote(2)

    @rlplat.remote
    def use(values: np.ndarray, refs: list[Any]) -> float:
        return float(values[0] + rlplat.get(refs[0])[0])

    done(direct, nested)
    lose_everything(session)
    assert rlplat.get(use.remote(direct, [nested]), timeout=60) == 3


def test_with_one_cpu_the_waiting_task_lends_it(tmp_path: Path) -> None:
    rlplat.init(num_cpus=1, num_gpus=0)
    try:
        ref = add.remote(make.remote(1))
        done(ref)
        lose_everything(current_backend().link.session)  # type: ignore[attr-defined]
        assert rlplat.get(first.remote(ref), timeout=60) == 2
    finally:
        rlplat.shutdown()


def test_borrowers_get_what_its_owner_makes_again(session: str) -> None:
    @rlplat.remote
    class Owner:
        def make(self, value: float) -> list[rlplat.ObjectRef]:
            self.ref = add.remote(make.remote(value))
            rlplat.wait([self.ref])
            return [self.ref]

    @rlplat.remote
    class Borrower:
        def keep(self, refs: list[rlplat.ObjectRef]) -> None:
            self.refs = refs

        def look(self) -> float:
            return float(rlplat.get(self.refs[0])[0])

    owner, borrower = Owner.remote(), Borrower.remote()
    (ref,) = rlplat.get(owner.make.remote(1))
    rlplat.get(borrower.keep.remote([ref]))
    lose_everything(session)
    assert rlplat.get(borrower.look.remote(), timeout=60) == 2
    assert rlplat.get(ref, timeout=60)[0] == 2
    assert rlplat.get(first.remote(ref), timeout=60) == 2


def test_a_lost_object_of_a_dead_owner_is_its_owners_death(session: str) -> None:
    @rlplat.remote
    class Owner:
        def make(self) -> tuple[int, list[rlplat.ObjectRef]]:
            self.ref = make.remote(1)
            rlplat.wait([self.ref])
            return os.getpid(), [self.ref]

    owner = Owner.remote()
    pid, (ref,) = rlplat.get(owner.make.remote())
    done(ref)
    os.kill(pid, signal.SIGSTOP)  # it will not answer, and then never
    lose_everything(session)
    with pytest.raises(GetTimeout, match="which was lost and is made again"):
        rlplat.get(ref, timeout=0.2)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(OwnerDied, match=r"process that owned it, died \(pid \d+ was ended by SIGKILL"):
        rlplat.get(ref, timeout=30)
    with pytest.raises(OwnerDied):
        rlplat.get(first.remote(ref), timeout=30)


def test_what_was_put_cannot_be_made_again_and_the_error_says_so(session: str) -> None:
    ref = rlplat.put(array(1))
    lose_everything(session)
    for _ in range(2):
        with pytest.raises(ObjectLost, match=r"object driver:\d+ \(put\) are gone.*a value of rlplat.put cannot"):
            rlplat.get(ref, timeout=30)
    with pytest.raises(ObjectLost, match=r"a value of rlplat.put cannot"):
        rlplat.get(first.remote(ref), timeout=30)


def test_a_chain_from_a_lost_put_is_a_named_error(session: str) -> None:
    root = rlplat.put(array(1))
    ref = add.remote(add.remote(root))
    done(ref)
    lose_everything(session)
    with pytest.raises(ObjectRebuildFailed, match=rf"made by add\) are gone, and driver:{root.id}, which it takes"):
        rlplat.get(ref, timeout=30)
    by_value = add.remote(array(1))
    done(by_value)
    lose_everything(session)
    with pytest.raises(ObjectRebuildFailed, match="large arguments passed by value"):
        rlplat.get(by_value, timeout=30)


def test_retries_bound_the_rebuilding(session: str) -> None:
    once, never = make.options(max_retries=1).remote(1), make.options(max_retries=0).remote(2)
    done(once, never)
    lose_everything(session)
    with pytest.raises(ObjectLost, match=r"make may not run again: its max_retries are used up"):
        rlplat.get(never, timeout=30)
    assert rlplat.get(first.remote(once), timeout=30) == 1
    lose_everything(session)
    with pytest.raises(ObjectLost, match=r"make may not run again"):
        rlplat.get(once, timeout=30)


def test_a_rebuild_that_fails_says_what_failed(session: str, tmp_path: Path) -> None:
    flag = tmp_path / "flag"

    @rlplat.remote
    def fragile() -> np.ndarray:
        if flag.exists():
            raise KeyError("the data is gone")
        return array(1)

    ref = fragile.remote()
    after = add.remote(ref)
    done(after)
    flag.touch()
    lose_everything(session)
    with pytest.raises(ObjectRebuildFailed, match=r"(?s)add, which ran again.*fragile.*the data is gone"):
        rlplat.get(after, timeout=30)
    with pytest.raises(ObjectRebuildFailed, match=r"(?s)fragile, which ran again.*KeyError") as failed:
        rlplat.get(ref, timeout=30)
    assert isinstance(failed.value.__cause__, KeyError)
    with pytest.raises((ObjectRebuildFailed, TaskError)):
        rlplat.get(first.remote(ref), timeout=30)


def test_one_lost_result_of_several(session: str) -> None:
    @rlplat.remote(num_returns=3)
    def three() -> Any:
        return array(1), "small", array(3)

    one, small, other = three.remote()
    done(one, small, other)
    view = rlplat.get(one)
    lose_everything(session)
    assert rlplat.get(other, timeout=30)[0] == 3
    assert (view == 1).all()
    assert rlplat.get(small) == "small"
    assert rlplat.get(one)[0] == 1
    del one, small, other, view
    objects = current_backend().objects  # type: ignore[attr-defined]
    assert soon(lambda: gc.collect() is not None and len(objects.book) == 0, 60)
    assert not lineage().recipes


def test_refs_among_the_arguments_are_made_again_as_well(session: str) -> None:
    @rlplat.remote
    def use(refs: list[Any]) -> np.ndarray:
        return rlplat.get(refs[0]) + 10

    ref = use.remote([add.remote(make.remote(1))])
    done(ref)
    gc.collect()
    lose_everything(session)
    assert rlplat.get(ref, timeout=60)[0] == 12


def test_results_of_actors_are_not_made_again_unless_asked_for(session: str) -> None:
    @rlplat.remote
    class Maker:
        def __init__(self) -> None:
            self.num_calls = 0

        def make(self) -> np.ndarray:
            self.num_calls += 1
            return array(self.num_calls)

    maker = Maker.remote()
    ref = maker.make.remote()
    asked_for = maker.make.options(max_task_retries=1).remote()
    done(ref, asked_for)
    lose_everything(session)
    with pytest.raises(ObjectLost, match=r"made by .*Maker.make\) are gone, .*actors without max_task_retries"):
        rlplat.get(ref, timeout=30)
    assert rlplat.get(asked_for, timeout=30)[0] == 3  # the call runs again, on the state as it is now
    late = maker.make.options(max_task_retries=1).remote()
    done(late)
    lose_everything(session)
    rlplat.kill(maker)
    with pytest.raises(ObjectRebuildFailed, match=r"Maker.make, which ran again .* killed by rlplat.kill"):
        rlplat.get(late, timeout=30)


def test_a_lost_spill_file_is_made_again() -> None:
    rlplat.init(num_cpus=1, num_gpus=0, object_store_memory=8 << 20)
    try:
        refs = [make.remote(i) for i in range(100)]
        done(*refs)
        session = current_backend().link.session  # type: ignore[attr-defined]
        objects = current_backend().objects  # type: ignore[attr-defined]
        assert set(places_of_segments(objects)) == {"shm", "spilled"}
        assert lose_everything(session) >= 100
        assert set(places_of_segments(objects)) == {"lost"}
        assert [rlplat.get(ref, timeout=60)[9] for ref in refs] == list(range(100))
    finally:
        rlplat.shutdown()


def test_no_bytes_are_kept_for_the_lineage_of_others(session: str) -> None:
    ref = make.remote(0)
    for _ in range(30):
        ref = add.remote(ref)
    done(ref)
    objects = current_backend().objects  # type: ignore[attr-defined]

    def owned() -> int:
        gc.collect()
        return sum(holding.objects for holding in objects.store.account.holdings())

    assert soon(lambda: owned() == 1, 60)
    assert (rlplat.get(ref) == 30).all()


def test_a_future_of_a_lost_object_is_answered(session: str) -> None:
    ref = make.remote(6)
    done(ref)
    lose_everything(session)
    assert ref.future().result(60)[0] == 6


def test_a_process_that_starts_after_an_owners_death_hears_of_it(session: str) -> None:
    @rlplat.remote
    class Owner:
        def lend(self) -> tuple[int, list[rlplat.ObjectRef]]:
            self.ref = rlplat.put("small")
            return os.getpid(), [self.ref]

    owner = Owner.remote()
    pid, (ref,) = rlplat.get(owner.lend.remote())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorDied):
        rlplat.get(owner.lend.remote(), timeout=30)

    @rlplat.remote
    class Late:
        def look(self, refs: list[Any]) -> Any:
            return rlplat.get(refs[0])

    late = [Late.remote() for _ in range(6)]  # more than there are spare processes
    for actor in late:
        with pytest.raises(OwnerDied, match=r"the process that owned it, died \(pid \d+ was ended by SIGKILL"):
            rlplat.get(actor.look.remote([ref]), timeout=30)


@pytest.mark.parametrize("how", ["get", "wait", "argument", "nested"])
def test_the_death_of_an_owner_is_named_on_every_way(session: str, how: str) -> None:
    @rlplat.remote
    class Owner:
        def pid(self) -> int:
            return os.getpid()

        def lend(self, gate: str) -> list[rlplat.ObjectRef]:
            @rlplat.remote
            def never() -> None:
                open(gate).read()

            self.ref = never.remote()
            return [self.ref]

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        gate = os.path.join(folder, "gate")
        os.mkfifo(gate)
        owner = Owner.remote()
        pid = rlplat.get(owner.pid.remote())
        (ref,) = rlplat.get(owner.lend.remote(gate))

        @rlplat.remote
        def look(refs: list[Any]) -> Any:
            return rlplat.get(refs[0])

        waiting = {"argument": lambda: first.remote(ref), "nested": lambda: look.remote([ref])}
        result = waiting.get(how, lambda: ref)()
        os.kill(pid, signal.SIGKILL)
        if how == "wait":
            assert rlplat.wait([ref], timeout=30) == ([ref], [])
        with pytest.raises(OwnerDied, match=r"object w\d+:\d+ is lost: w\d+, .* died \(pid \d+ was ended by SIGKILL"):
            rlplat.get(result, timeout=30)
