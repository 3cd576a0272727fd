"""What a call does with its arguments: refs at the top become values, nested ones travel, the rest is copied."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from typing import Any

import numpy as np
import pytest

import rlplat


@rlplat.remote
def echo(*args: Any, **kwargs: Any) -> tuple:
    return args, kwargs


def test_refs_at_the_top_become_values_wherever_they_stand(backend: str) -> None:
    one, two = rlplat.put(1), rlplat.put("two")
    assert rlplat.get(echo.remote(one, 0, two, key=one, other=None)) == (
        (1, 0, "two"),
        {"key": 1, "other": None},
    )


def test_one_ref_may_be_passed_many_times(backend: str) -> None:
    ref = rlplat.put([1])
    args, kwargs = rlplat.get(echo.remote(ref, ref, ref, again=ref))
    assert args == ([1], [1], [1])
    assert kwargs == {"again": [1]}


@pytest.mark.parametrize("wrap", ["list", "tuple", "dict", "dataclass", "deep"])
def test_refs_inside_anything_stay_refs(backend: str, wrap: str) -> None:
    @dataclasses.dataclass
    class Box:
        ref: Any

    @rlplat.remote
    def open_it(box: Any, wrap: str) -> tuple[bool, int]:
        ref = {
            "list": lambda: box[0],
            "tuple": lambda: box[0],
            "dict": lambda: box["k"],
            "dataclass": lambda: box.ref,
            "deep": lambda: box[0]["a"][0],
        }[wrap]()
        return isinstance(ref, rlplat.ObjectRef), rlplat.get(ref)

    ref = rlplat.put(7)
    box = {"list": [ref], "tuple": (ref,), "dict": {"k": ref}, "dataclass": Box(ref), "deep": [{"a": (ref,)}]}
    assert rlplat.get(open_it.remote(box[wrap], wrap)) == (True, 7)


def test_a_task_that_returns_a_ref_returns_a_ref(backend: str) -> None:
    @rlplat.remote
    def make() -> Any:
        return rlplat.put(3)

    @rlplat.remote
    def is_ref(x: Any) -> bool:
        return isinstance(x, rlplat.ObjectRef)

    outer = make.remote()
    inner = rlplat.get(outer)
    assert isinstance(inner, rlplat.ObjectRef)
    assert rlplat.get(inner) == 3
    assert rlplat.get(is_ref.remote(outer)) is True  # one level is taken off, not two


def test_a_task_may_return_the_ref_of_a_task_it_submitted(backend: str) -> None:
    @rlplat.remote
    def leaf(x: int) -> int:
        return x + 1

    @rlplat.remote
    def submit(x: int) -> Any:
        return leaf.remote(x)

    assert rlplat.get(rlplat.get(submit.remote(1))) == 2
    refs = rlplat.get([submit.remote(i) for i in range(5)])
    assert rlplat.get(refs) == [1, 2, 3, 4, 5]


def test_a_mutable_default_is_the_workers_own(backend: str) -> None:
    items: list[int] = []

    @rlplat.remote
    def f(x: int, into: list[int] = items) -> int:
        into.append(x)
        return len(into)

    assert rlplat.get(f.remote(1)) >= 1
    if backend != "inproc":  # one process has one default, as Python has
        assert items == []


class Colour(enum.Enum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Point(1, 2),
        collections.OrderedDict(b=1, a=2),
        collections.deque([1, 2], maxlen=3),
        functools.partial(int, base=2),
        frozenset({1}),
        slice(1, 2),
        Ellipsis,
        float("inf"),
        10**40,
        "\ud83d\ude00 and \x00",
        np.float32(1.5),
        np.dtype("int16"),
        int,
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_many_kinds_travel_both_ways(backend: str, value: Any) -> None:
    (args, _) = rlplat.get(echo.remote(value))
    if isinstance(value, functools.partial):
        assert args[0]("101") == 5
    else:
        assert type(args[0]) is type(value)
        assert args[0] == value


def test_cycles_travel(backend: str) -> None:
    @rlplat.remote
    def is_cycle(items: list) -> bool:
        return items[0] is items

    items: list = []
    items.append(items)
    assert rlplat.get(is_cycle.remote(items))


def test_what_an_argument_was_at_the_call_counts(backend: str) -> None:
    items = [1]
    ref = echo.remote(items)
    items.append(2)
    assert rlplat.get(ref) == (([1],), {})
    array = np.zeros(300_000)
    ref = echo.remote(array)
    array[:] = 1
    assert rlplat.get(ref)[0][0].sum() == 0


def test_large_array_arguments_are_read_only_in_the_task(backend: str) -> None:
    """objects/serialization, "Numpy Arrays": read-only, so that all readers of a node may share them."""

    @rlplat.remote
    def write(array: np.ndarray) -> None:
        array[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        rlplat.get(write.remote(rlplat.put(np.zeros(300_000))))


def test_a_copy_of_a_large_array_can_be_written(backend: str) -> None:
    @rlplat.remote
    def write(array: np.ndarray) -> float:
        own = array.copy()
        own[0] = 5
        return float(own[0] + array[0])

    assert rlplat.get(write.remote(rlplat.put(np.zeros(300_000)))) == 5.0


def test_a_remote_function_is_a_value_like_any_other(backend: str) -> None:
    @rlplat.remote
    def double(x: int) -> int:
        return 2 * x

    @rlplat.remote
    def call(function: Any, x: int) -> int:
        return rlplat.get(function.remote(x))

    assert rlplat.get(call.remote(double, 4)) == 8


def test_an_actor_class_is_a_value_like_any_other(backend: str) -> None:
    class Adder:
        def __init__(self, start: int) -> None:
            self.start = start

        def add(self, x: int) -> int:
            return self.start + x

    @rlplat.remote
    def use(cls: Any) -> int:
        return rlplat.get(cls.remote(10).add.remote(1))

    assert rlplat.get(use.remote(rlplat.remote(Adder))) == 11


def test_exceptions_and_classes_are_values_too(backend: str) -> None:
    class Mine(Exception):
        pass

    @rlplat.remote
    def make(cls: Any) -> Any:
        return cls("as a value")

    error = rlplat.get(make.remote(Mine))
    assert isinstance(error, Exception)
    assert str(error) == "as a value"


def test_a_dependency_that_failed_keeps_the_task_from_running(backend: str, tmp_path: Any) -> None:
    path = str(tmp_path / "ran")

    @rlplat.remote
    def fail() -> int:
        raise KeyError("first")

    @rlplat.remote
    def use(*args: Any, **kwargs: Any) -> None:
        open(path, "w").close()

    failed = fail.remote()
    for ref in (use.remote(failed), use.remote(1, 2, failed), use.remote(key=failed)):
        with pytest.raises(KeyError, match="first"):
            rlplat.get(ref)
    assert not (tmp_path / "ran").exists()


def test_a_nested_ref_that_failed_does_not_keep_the_task_from_running(backend: str) -> None:
    @rlplat.remote
    def fail() -> int:
        raise KeyError("first")

    @rlplat.remote
    def handle(box: list) -> str:
        try:
            rlplat.get(box[0])
        except KeyError:
            return "handled"
        return "no error"

    assert rlplat.get(handle.remote([fail.remote()])) == "handled"


def test_values_that_were_put_once_are_read_by_many_tasks(backend: str) -> None:
    @rlplat.remote
    def total(array: np.ndarray, i: int) -> float:
        return float(array[i])

    ref = rlplat.put(np.arange(100_000.0))
    assert rlplat.get([total.remote(ref, i) for i in range(20)]) == [float(i) for i in range(20)]
