"""Small things that programs for Ray use: calls without a result, a second `init`, the ids of refs."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlplat
from rlplat import state
from rlplat.errors import OptionError
from tests.patience import soon


@rlplat.remote(num_returns=0)
def leave_mark(path: str) -> str:
    Path(path).touch()
    return path


@rlplat.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    @rlplat.method(num_returns=0)
    def add(self, amount: int) -> int:
        self.count += amount
        return self.count

    def get(self) -> int:
        return self.count


@rlplat.remote
def make(*values: object) -> object:
    return values


@rlplat.remote
def fail() -> None:
    raise ValueError("nobody hears of it")


def test_a_task_without_returns_runs_and_gives_none(backend: str, tmp_path: Path) -> None:
    assert leave_mark.remote(str(tmp_path / "a")) is None
    assert make.options(num_returns=0, num_cpus=2).remote(rlplat.put(1)) is None
    assert fail.options(num_returns=0, max_retries=0).remote() is None
    assert fail.options(num_returns=0, timeout_s=60).remote() is None
    # With all CPUs: it begins when those before it are done.
    assert rlplat.get(make.options(num_cpus=2).remote(1)) == (1,)
    assert (tmp_path / "a").exists()


def test_a_call_without_returns_takes_effect_in_its_turn(backend: str) -> None:
    counter = Counter.remote()
    assert counter.add.remote(1) is None
    assert counter.add.remote(rlplat.put(10)) is None
    assert rlplat.get(counter.get.remote()) == 11
    assert counter.get.options(num_returns=0).remote() is None
    assert rlplat.get(counter.add.options(num_returns=1).remote(1)) == 12


def test_a_numbered_call_without_returns_takes_effect_once(cluster: None) -> None:
    counter = Counter.options(max_restarts=1, exactly_once=True).remote()
    assert counter.add.remote(1) is None
    assert rlplat.get(counter.get.remote()) == 1


def test_nothing_is_left_of_a_call_without_returns(cluster: None) -> None:
    counter = Counter.remote()
    rlplat.get(counter.get.remote())
    before = state.list_objects().total
    for _ in range(20):
        counter.add.remote(1)
    assert rlplat.get(counter.get.remote()) == 20
    # The last ref that was dropped is collected in a moment.
    assert soon(lambda: state.list_objects().total <= before)


def test_a_second_init_may_be_ignored(backend: str) -> None:
    ref = rlplat.put(1)
    rlplat.init(ignore_reinit_error=True)
    rlplat.init(num_cpus=7, backend=backend, ignore_reinit_error=True)
    assert rlplat.cluster_resources()["CPU"] == 2 and rlplat.get(ref) == 1
    with pytest.raises(OptionError, match="ignore_reinit_error=True"):
        rlplat.init()


def test_a_task_may_ignore_that_there_is_a_cluster(backend: str) -> None:
    @rlplat.remote
    def task() -> int:
        rlplat.init(ignore_reinit_error=True)
        value: int = rlplat.get(rlplat.put(3))
        return value

    assert rlplat.get(task.remote()) == 3


def test_refs_have_ids(backend: str) -> None:
    refs = [rlplat.put(n) for n in range(3)]
    assert len({ref.hex() for ref in refs}) == 3
    assert all(bytes.fromhex(ref.hex()) == ref.binary() for ref in refs)
    again = rlplat.get(make.remote(refs))[0][0]
    assert again == refs[0] and again.hex() == refs[0].hex()
