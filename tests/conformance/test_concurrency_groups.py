"""Calls of one actor at the same time: threads, and concurrency groups in threads and in coroutines."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import rlplat
from rlplat.errors import ConfigError


class Threads:
    """`meet` returns when as many calls of the group as `expected` are in it at once."""

    def __init__(self, io: int, compute: int, default: int = 1) -> None:
        self.barriers = {"io": threading.Barrier(io), "compute": threading.Barrier(compute)}
        self.default = threading.Barrier(default)
        self.log: list[int] = []

    @rlplat.method(concurrency_group="io")
    def meet_io(self) -> str:
        self.barriers["io"].wait(30)
        return threading.current_thread().name

    @rlplat.method(concurrency_group="compute")
    def meet_compute(self) -> str:
        self.barriers["compute"].wait(30)
        return threading.current_thread().name

    def meet(self) -> str:
        self.default.wait(30)
        return threading.current_thread().name

    def add(self, x: int) -> list[int]:
        self.log.append(x)
        return self.log


class Coroutines:
    def __init__(self) -> None:
        self.here = {"io": 0, "compute": 0, "": 0}
        self.most = dict(self.here)

    async def _be(self, group: str) -> int:
        self.here[group] += 1
        self.most[group] = max(self.most[group], self.here[group])
        for _ in range(5):
            await asyncio.sleep(0)
        self.here[group] -= 1
        return self.most[group]

    @rlplat.method(concurrency_group="io")
    async def io(self) -> int:
        return await self._be("io")

    @rlplat.method(concurrency_group="compute")
    async def compute(self) -> int:
        return await self._be("compute")

    async def other(self) -> int:
        return await self._be("")


def local(base: type) -> Any:
    made = type(base.__name__, (base,), {"__module__": "__main__"})
    return rlplat.remote(made)


def test_each_group_has_its_own_threads(cluster: None) -> None:
    actor = local(Threads).options(concurrency_groups={"io": 2, "compute": 4}).remote(2, 4)
    io = [actor.meet_io.remote() for _ in range(2)]
    compute = [actor.meet_compute.remote() for _ in range(4)]
    assert len(set(rlplat.get(io, timeout=60))) == 2
    assert len(set(rlplat.get(compute, timeout=60))) == 4
    assert rlplat.get(actor.meet.remote(), timeout=60) not in (*rlplat.get(io), *rlplat.get(compute))


def test_a_full_group_does_not_hold_up_the_others(cluster: None) -> None:
    actor = local(Threads).options(concurrency_groups={"io": 1, "compute": 1}).remote(2, 1)
    stuck = [actor.meet_io.remote() for _ in range(3)]  # one thread, and the meeting needs two
    assert rlplat.get(actor.meet_compute.remote(), timeout=60)
    assert rlplat.get(actor.meet.remote(), timeout=60)
    # The same method in another group is the second one there.
    assert rlplat.get(actor.meet_io.options(concurrency_group="compute").remote(), timeout=60)
    assert rlplat.get(stuck[0], timeout=60)
    rlplat.kill(actor)


def test_max_concurrency_is_the_size_of_the_default_group(cluster: None) -> None:
    actor = local(Threads).options(concurrency_groups={"io": 1, "compute": 1}, max_concurrency=3)
    actor = actor.remote(1, 1, 3)
    assert len(set(rlplat.get([actor.meet.remote() for _ in range(3)], timeout=60))) == 3


def test_a_group_of_one_thread_keeps_the_order_of_calls(cluster: None) -> None:
    actor = local(Threads).options(concurrency_groups={"io": 1, "compute": 1}).remote(1, 1)
    for i in range(200):
        actor.add.options(concurrency_group="io").remote(i)
    assert rlplat.get(actor.add.options(concurrency_group="io").remote(200), timeout=60) == list(range(201))


@pytest.mark.beside("coroutines")
def test_coroutines_have_groups_too(backend: str) -> None:
    actor = local(Coroutines).options(concurrency_groups={"io": 2, "compute": 4}, max_concurrency=3).remote()
    io = [actor.io.remote() for _ in range(20)]
    compute = [actor.compute.remote() for _ in range(20)]
    other = [actor.other.remote() for _ in range(20)]
    assert max(rlplat.get(io, timeout=60)) == 2
    assert max(rlplat.get(compute, timeout=60)) == 4
    assert max(rlplat.get(other, timeout=60)) == 3
    moved = [actor.other.options(concurrency_group="compute").remote() for _ in range(20)]
    assert max(rlplat.get(moved, timeout=60)) == 4


def test_unknown_groups_are_refused_in_the_caller(cluster: None) -> None:
    with pytest.raises(ConfigError, match=r"Threads.meet_\w+.*'(io|compute)'.*none"):
        local(Threads).remote(1, 1)
    actor = local(Threads).options(concurrency_groups={"io": 1, "compute": 1}).remote(1, 1)
    with pytest.raises(ConfigError, match=r"no concurrency group 'disk'.*'io', 'compute'"):
        actor.meet.options(concurrency_group="disk").remote()
    with pytest.raises(ConfigError, match="at least 1"):
        local(Threads).options(concurrency_groups={"io": 0, "compute": 1}).remote(1, 1)


def test_handles_elsewhere_know_the_groups(cluster: None) -> None:
    actor = local(Threads).options(concurrency_groups={"io": 1, "compute": 1}, name="grouped").remote(1, 1)

    @rlplat.remote
    def call(box: list) -> str:
        try:
            box[0].meet.options(concurrency_group="disk").remote()
        except ConfigError as error:
            return str(error) + rlplat.get(box[0].meet_io.remote())
        return "no error"

    assert "'disk'" in rlplat.get(call.remote([actor]), timeout=60)
    assert rlplat.get(rlplat.get_actor("grouped").meet_io.remote(), timeout=60)
