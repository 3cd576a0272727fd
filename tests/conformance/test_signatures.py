"""Arguments that do not fit a remote function, a method or a constructor raise at `.remote()`, as in Ray."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import rlplat


@rlplat.remote
def task(a: int, b: int = 2, *, c: int = 3) -> tuple[int, int, int]:
    return a, b, c


@rlplat.remote
class Actor:
    def __init__(self, a: int, *, b: int = 2) -> None:
        self.sum = a + b

    def method(self, x: int, y: int = 1) -> int:
        return self.sum + x + y

    def keyword(self, *, must: int) -> int:
        return must

    def anything(self, *args: int, **more: int) -> int:
        return len(args) + len(more)

    @staticmethod
    def static(x: int) -> int:
        return x

    @classmethod
    def of_class(cls, x: int) -> int:
        return x


def test_arguments_that_fit(backend: str) -> None:
    actor = Actor.remote(1, b=3)
    calls = [
        task.remote(1),
        task.remote(1, 5),
        task.remote(rlplat.put(1), c=7),
        actor.method.remote(1),
        actor.method.remote(y=2, x=rlplat.put(1)),
        actor.keyword.remote(must=4),
        actor.anything.remote(1, 2, z=3),
        actor.static.remote(5),
        actor.of_class.remote(6),
    ]
    assert rlplat.get(calls) == [(1, 2, 3), (1, 5, 3), (1, 2, 7), 6, 7, 4, 3, 5, 6]


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, r"task\(a, b=\.\.\., \*, c=\.\.\.\): missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional"),
        ((1,), {"z": 1}, "unexpected keyword argument 'z'"),
        ((1,), {"a": 1}, "multiple values"),
    ],
)
def test_a_task_refuses_what_does_not_fit(backend: str, args: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        task.remote(*args, **kwargs)
    with pytest.raises(TypeError, match=said):
        task.options(num_cpus=0.5).remote(*args, **kwargs)


def test_a_constructor_refuses_what_does_not_fit(backend: str) -> None:
    with pytest.raises(TypeError, match=r"Actor\(a, \*, b=\.\.\.\): missing a required argument: 'a'"):
        Actor.remote()
    with pytest.raises(TypeError, match="too many positional"):
        Actor.remote(1, 2)


def test_a_method_refuses_what_does_not_fit(backend: str) -> None:
    actor = Actor.remote(1)
    for call in (
        lambda: actor.method.remote(),
        lambda: actor.method.remote(1, 2, 3),
        lambda: actor.method.remote(1, z=2),
        lambda: actor.keyword.remote(),
        lambda: actor.keyword.remote(1),
        lambda: actor.static.remote(),
        lambda: actor.of_class.remote(1, 2),
        lambda: actor.method.options(num_returns=1).remote(),
    ):
        with pytest.raises(TypeError, match=r"Actor\.\w+\("):
            call()
    assert rlplat.get(actor.method.remote(1)) == 5


def test_handles_know_the_signatures_wherever_they_are(backend: str) -> None:
    actor = Actor.options(name="known").remote(1)

    @rlplat.remote
    def misuse(handle: Any) -> str:
        said = []
        for each in (handle, rlplat.get_actor("known")):
            try:
                each.method.remote(1, 2, 3)
            except TypeError as error:
                said.append(str(error))
        return "; ".join(said)

    assert rlplat.get(misuse.remote(actor)).count("too many positional") == 2


def test_a_wrapper_is_what_is_called(backend: str) -> None:
    """`functools.wraps` copies a signature that the wrapper does not have."""

    def injects(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function("injected", *args, **kwargs)

        return wrapper

    class Plain:
        @injects
        def first(injected: str, self: Any, x: int) -> Any:  # noqa: N805
            return injected, x

    @rlplat.remote
    @injects
    def wrapped(injected: str, x: int) -> Any:
        return injected, x

    assert rlplat.get(wrapped.remote(1)) == ("injected", 1)
    assert rlplat.get(rlplat.remote(Plain).remote().first.remote(2)) == ("injected", 2)


def test_what_cannot_be_inspected_is_left_to_python(backend: str) -> None:
    assert rlplat.get(rlplat.remote(max).remote(1, 2)) == 2
    assert rlplat.get(rlplat.remote(functools.partial(pow, 2)).remote(5)) == 32
    assert rlplat.get(rlplat.remote(dict).remote(a=1).get.remote("a")) == 1
    with pytest.raises(TypeError):
        rlplat.get(rlplat.remote(max).remote())
