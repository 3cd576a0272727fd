"""The decorator's forms, what a remote function sees of the code around it, and how options are merged."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

import rlplat

FACTOR = 3


def test_with_and_without_parentheses(backend: str) -> None:
    @rlplat.remote
    def bare(x: int) -> int:
        return x

    @rlplat.remote(num_cpus=1)
    def with_options(x: int) -> int:
        return x

    def plain(x: int) -> int:
        return x

    as_a_function = rlplat.remote(plain)
    as_a_function_with_options = rlplat.remote(num_cpus=1, max_retries=0)(plain)
    for task in (bare, with_options, as_a_function, as_a_function_with_options):
        assert rlplat.get(task.remote(7)) == 7
    assert plain(7) == 7  # what was decorated as a function stays as it was


def test_classes_with_and_without_parentheses(backend: str) -> None:
    @rlplat.remote
    class Bare:
        def f(self) -> int:
            return 1

    @rlplat.remote(num_cpus=0)
    class WithOptions:
        def f(self) -> int:
            return 2

    class Plain:
        def f(self) -> int:
            return 3

    actors = [Bare.remote(), WithOptions.remote(), rlplat.remote(Plain).remote()]
    assert rlplat.get([actor.f.remote() for actor in actors]) == [1, 2, 3]
    assert Plain().f() == 3


def test_positional_options_are_refused(backend: str) -> None:
    with pytest.raises((TypeError, AssertionError)):
        rlplat.remote(1, 2)


def test_mutual_recursion(backend: str) -> None:
    """A closure is pickled at the first call, when both exist."""

    @rlplat.remote
    def is_even(n: int) -> bool:
        return True if n == 0 else rlplat.get(is_odd.remote(n - 1))

    @rlplat.remote
    def is_odd(n: int) -> bool:
        return False if n == 0 else rlplat.get(is_even.remote(n - 1))

    assert rlplat.get(is_even.remote(4)) is True


def test_closures_over_values_functions_and_modules(backend: str) -> None:
    offset = 10

    def helper(x: int) -> int:
        return x + offset

    @rlplat.remote
    def f(x: int) -> float:
        return helper(x) + math.floor(1.5)

    assert rlplat.get(f.remote(1)) == 12


def test_closures_over_refs_and_handles(backend: str) -> None:
    """A remote function may close over a ref or a handle; Ray pickles it with the function, once."""

    class Counter:
        def __init__(self) -> None:
            self.value = 0

        def add(self) -> int:
            self.value += 1
            return self.value

    counter = rlplat.remote(Counter).remote()

    @rlplat.remote
    def count() -> int:
        return rlplat.get(counter.add.remote())

    assert sorted(rlplat.get([count.remote() for _ in range(4)])) == [1, 2, 3, 4]


def test_module_globals_are_seen(backend: str) -> None:
    @rlplat.remote
    def f(x: int) -> int:
        return x * FACTOR

    assert rlplat.get(f.remote(2)) == 6


def test_assigning_a_global_in_a_task_changes_the_workers_only(cluster: None) -> None:
    """Of one process there is one global; anti-patterns/global-variables says not to share state so."""

    @rlplat.remote
    def assign() -> int:
        global FACTOR
        FACTOR = 99
        return FACTOR

    assert rlplat.get(assign.remote()) == 99
    assert FACTOR == 3


def test_options_are_for_one_call_and_leave_the_original(backend: str) -> None:
    @rlplat.remote(num_cpus=1, num_returns=2)
    def pair() -> tuple[int, int]:
        return 1, 2

    two = pair.remote()
    one = pair.options(num_returns=1).remote()
    assert rlplat.get(two) == [1, 2]
    assert rlplat.get(one) == (1, 2)
    assert len(pair.remote()) == 2


def test_options_of_a_call_override_those_of_the_decorator_and_keep_the_rest(backend: str) -> None:
    @rlplat.remote(num_returns=2, num_cpus=2)
    def pair() -> tuple[int, int]:
        return 1, 2

    assert rlplat.get(pair.options(num_cpus=1).remote()) == [1, 2]  # still two refs


def test_options_of_a_method_are_for_that_call(backend: str) -> None:
    @rlplat.remote
    class Actor:
        def pair(self) -> tuple[int, int]:
            return 1, 2

        @rlplat.method(num_returns=2)
        def marked(self) -> tuple[int, int]:
            return 3, 4

    actor = Actor.remote()
    assert rlplat.get(actor.pair.remote()) == (1, 2)
    assert rlplat.get(actor.pair.options(num_returns=2).remote()) == [1, 2]
    assert rlplat.get(actor.marked.remote()) == [3, 4]
    assert rlplat.get(actor.marked.options(num_returns=1).remote()) == (3, 4)


def test_a_remote_function_is_made_before_a_cluster_exists_and_used_in_it(backend: str) -> None:
    assert rlplat.get(_made_at_import.remote(20)) == 21


@rlplat.remote
def _made_at_import(x: int) -> int:
    return x + 1


def test_num_returns_of_a_list_and_of_a_tuple(backend: str) -> None:
    @rlplat.remote(num_returns=3)
    def as_list() -> list[int]:
        return [1, 2, 3]

    @rlplat.remote(num_returns=3)
    def as_tuple() -> tuple[int, int, int]:
        return 1, 2, 3

    assert rlplat.get(as_list.remote()) == rlplat.get(as_tuple.remote()) == [1, 2, 3]


class Base:
    INHERITED = "base"


class Documented(Base):
    """What it is for."""

    SIZE = 4

    @staticmethod
    def twice(x: int) -> int:
        return 2 * x

    @classmethod
    def size(cls) -> int:
        return cls.SIZE

    def method(self) -> int:
        return self.SIZE


def test_a_decorated_class_shows_the_class(backend: str) -> None:
    decorated = rlplat.remote(num_cpus=0)(Documented)
    assert (decorated.SIZE, decorated.INHERITED) == (4, "base")
    assert (decorated.twice(3), decorated.size()) == (6, 4)
    assert decorated.method is Documented.method
    assert decorated.__mro__ == Documented.__mro__
    assert decorated.__bases__ == (Base,)
    assert (decorated.__name__, decorated.__doc__) == ("Documented", "What it is for.")
    assert decorated.__module__ == __name__
    assert {"SIZE", "twice", "remote", "options"} <= set(dir(decorated))
    with pytest.raises(AttributeError, match="actor class Documented has no attribute 'SIZ'; did you mean 'SIZE'"):
        decorated.SIZ


def test_a_decorated_class_travels_and_is_copied(backend: str) -> None:
    decorated = rlplat.remote(Documented)

    @rlplat.remote
    def use(given: Any) -> Any:
        actor = given.options(num_cpus=0).remote()
        return given.SIZE, rlplat.get(actor.method.remote()) if backend == "zmq" else 4

    assert rlplat.get(use.remote(decorated)) == (4, 4)
    assert copy.copy(decorated).SIZE == copy.deepcopy(decorated).SIZE == 4
