"""Refs outlive whoever passed them on: in actor state, in other values, in nested tasks."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np

import rlplat


class Keeper:
    """An actor that keeps what it is given."""

    def __init__(self, box: Any = None) -> None:
        self.box = box

    def keep(self, box: Any) -> None:
        self.box = box

    def read(self) -> Any:
        return rlplat.get(self.box[0])

    def give(self) -> Any:
        return self.box

    def forget(self) -> None:
        self.box = None


def keeper(*args: Any) -> Any:
    class Local(Keeper):
        pass

    return rlplat.remote(Local).remote(*args)


def test_a_ref_in_actor_state_keeps_the_object(backend: str) -> None:
    actor = keeper()
    ref = rlplat.put(np.arange(50_000))
    rlplat.get(actor.keep.remote([ref]))
    del ref
    gc.collect()
    for _ in range(3):
        assert rlplat.get(actor.read.remote()).sum() == sum(range(50_000))


def test_a_ref_given_to_a_constructor_keeps_the_object(backend: str) -> None:
    actor = keeper([rlplat.put("kept")])
    gc.collect()
    assert rlplat.get(actor.read.remote()) == "kept"


def test_a_ref_comes_back_from_an_actor(backend: str) -> None:
    actor = keeper([rlplat.put("there and back")])
    gc.collect()
    (ref,) = rlplat.get(actor.give.remote())
    rlplat.get(actor.forget.remote())
    gc.collect()
    assert rlplat.get(ref) == "there and back"


def test_a_ref_goes_from_actor_to_actor(backend: str) -> None:
    actors = [keeper() for _ in range(3)]
    rlplat.get(actors[0].keep.remote([rlplat.put("passed on")]))
    for giver, taker in itertools.pairwise(actors):
        rlplat.get(taker.keep.remote(giver.give.remote()))
        rlplat.get(giver.forget.remote())
        gc.collect()
    assert rlplat.get(actors[-1].read.remote()) == "passed on"


def test_a_ref_made_by_a_task_outlives_the_task(backend: str) -> None:
    @rlplat.remote
    def make(n: int) -> list:
        return [rlplat.put(np.full(20_000, i)) for i in range(n)]

    refs = rlplat.get(make.remote(5))
    gc.collect()
    assert [int(rlplat.get(ref)[0]) for ref in refs] == [0, 1, 2, 3, 4]


def test_a_ref_nested_in_refs_is_kept_by_the_outermost(backend: str) -> None:
    outer = rlplat.put([rlplat.put([rlplat.put([rlplat.put("core")])])])
    gc.collect()
    value: Any = outer
    for _ in range(3):
        (value,) = rlplat.get(value)
    assert rlplat.get(value) == "core"


def test_a_ref_in_the_result_of_a_task_is_kept_by_the_result(backend: str) -> None:
    @rlplat.remote
    def wrap(box: list) -> list:
        return [box[0], "wrapped"]

    result = wrap.remote([rlplat.put(np.ones(30_000))])
    gc.collect()
    (ref, text) = rlplat.get(result)
    del result
    gc.collect()
    assert text == "wrapped"
    assert rlplat.get(ref).sum() == 30_000


def test_a_borrower_lends_on(backend: str) -> None:
    @rlplat.remote
    def down(box: list, depth: int) -> str:
        return rlplat.get(box[0]) if depth == 0 else rlplat.get(down.remote(box, depth - 1))

    ref = down.remote([rlplat.put("deep")], 3)
    gc.collect()
    assert rlplat.get(ref) == "deep"


def test_a_task_whose_refs_are_dropped_still_runs(backend: str) -> None:
    actor = keeper()

    @rlplat.remote
    def tell(box: list) -> None:
        rlplat.get(box[0].keep.remote([rlplat.put("told")]))

    rlplat.get(tell.remote([actor]))
    assert rlplat.get(actor.read.remote()) == "told"


def test_an_argument_is_kept_until_its_task_is_done(backend: str) -> None:
    @rlplat.remote
    def slow(x: int) -> int:
        return x

    @rlplat.remote
    def use(array: np.ndarray, x: int) -> float:
        return float(array.sum()) + x

    ref = use.remote(rlplat.put(np.ones(100_000)), slow.remote(1))
    gc.collect()
    assert rlplat.get(ref) == 100_001.0


def test_values_from_get_stay_when_their_ref_goes(backend: str) -> None:
    ref = rlplat.put(np.arange(200_000))
    array = rlplat.get(ref)
    view = array[100:200]
    del ref, array
    gc.collect()
    for _ in range(5):
        rlplat.put(np.zeros(200_000))
    assert view.tolist() == list(range(100, 200))


def test_actor_handles_in_values_keep_the_actor(backend: str) -> None:
    ref = rlplat.put([keeper(["not a ref"])])
    gc.collect()
    (actor,) = rlplat.get(ref)
    del ref
    gc.collect()
    assert rlplat.get(actor.give.remote()) == ["not a ref"]


def test_an_actor_made_in_a_task_outlives_the_task(backend: str) -> None:
    @rlplat.remote
    def make() -> list:
        return [keeper(["made inside"])]

    (actor,) = rlplat.get(make.remote())
    gc.collect()
    assert rlplat.get(actor.give.remote()) == ["made inside"]
