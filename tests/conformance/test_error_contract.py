"""What an exception of user code becomes: both classes, its cause, its attributes, its way through tasks and actors."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

import rlplat
from rlplat.errors import RuntimeFault, TaskError


def raising(make: Any) -> Any:
    @rlplat.remote
    def fail() -> None:
        raise make()

    return fail


def test_an_exception_with_a_large_attribute_is_caught_by_its_class(backend: str) -> None:
    class Diverged(Exception):
        def __init__(self, weights: bytes) -> None:
            super().__init__(weights)
            self.weights = weights

    @rlplat.remote
    def train() -> None:
        raise Diverged(b"x" * 200_000)

    with pytest.raises(Diverged) as caught:
        rlplat.get(train.remote())
    assert caught.value.weights == b"x" * 200_000


@pytest.mark.process
def test_what_a_call_raised_that_is_no_exception_names_the_call(cluster: None) -> None:
    with pytest.raises(RuntimeFault, match=r"task raising.<locals>.fail \(worker .*\) raised KeyboardInterrupt\(\)"):
        rlplat.get(raising(KeyboardInterrupt).remote())


def test_an_attribute_error_leaves_its_object_behind(backend: str) -> None:
    """A mistake in an actor (`self.foo`) sent the whole actor, or arrived without its class where that has a lock."""

    class Locked:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def mistake(self) -> None:
            self.look

    with pytest.raises(AttributeError, match="no attribute 'look'") as caught:
        rlplat.get(rlplat.remote(Locked).remote().mistake.remote(), timeout=60)
    assert caught.value.name == "look"
    assert isinstance(caught.value.cause, AttributeError)  # type: ignore[attr-defined]


def test_a_chained_exception_shows_its_chain(backend: str) -> None:
    @rlplat.remote
    def fail() -> None:
        try:
            raise KeyError("inner reason")
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(ValueError) as caught:
        rlplat.get(fail.remote())
    assert "inner reason" in str(caught.value)


def test_an_error_goes_through_an_actor(backend: str) -> None:
    fail = raising(lambda: LookupError("root"))

    class Actor:
        def ask(self) -> None:
            rlplat.get(fail.remote())

        def take(self, x: Any) -> None: ...

        def ok(self) -> int:
            return 1

    actor = rlplat.remote(Actor).remote()
    with pytest.raises(LookupError, match="root"):
        rlplat.get(actor.ask.remote())
    with pytest.raises(LookupError, match="root"):
        rlplat.get(actor.take.remote(fail.remote()))
    assert rlplat.get(actor.ok.remote()) == 1


def test_a_caught_error_is_no_failure(backend: str) -> None:
    fail = raising(lambda: ValueError("handled"))

    @rlplat.remote
    def careful() -> str:
        try:
            rlplat.get(fail.remote())
        except ValueError as error:
            return f"handled {type(error.cause).__name__}"  # type: ignore[attr-defined]
        return "none"

    assert rlplat.get(careful.remote()) == "handled ValueError"


def test_a_task_may_raise_another_error_instead(backend: str) -> None:
    fail = raising(lambda: ValueError("first"))

    @rlplat.remote
    def instead() -> None:
        try:
            rlplat.get(fail.remote())
        except ValueError as error:
            raise KeyError("second") from error

    with pytest.raises(KeyError, match="second"):
        rlplat.get(instead.remote())


def test_every_ref_of_a_failed_task_has_the_error(backend: str) -> None:
    @rlplat.remote(num_returns=3)
    def fail() -> None:
        raise ValueError("for all")

    refs = fail.remote()
    assert len(refs) == 3
    for ref in refs:
        with pytest.raises(ValueError, match="for all"):
            rlplat.get(ref)


def test_a_failed_task_leaves_the_others_alone(backend: str) -> None:
    @rlplat.remote
    def maybe(x: int) -> int:
        if x == 3:
            raise ValueError("three")
        return x

    refs = [maybe.remote(i) for i in range(6)]
    with pytest.raises(ValueError, match="three"):
        rlplat.get(refs)
    assert rlplat.get([ref for i, ref in enumerate(refs) if i != 3]) == [0, 1, 2, 4, 5]


def test_the_recursion_limit_is_an_exception_like_any_other(backend: str) -> None:
    @rlplat.remote
    def endless() -> int:
        def down(n: int) -> int:
            return down(n + 1)

        sys.setrecursionlimit(1000)
        return down(0)

    limit = sys.getrecursionlimit()
    try:
        with pytest.raises(RecursionError):
            rlplat.get(endless.remote())
    finally:
        sys.setrecursionlimit(limit)


def test_a_group_is_a_group_here_too(backend: str) -> None:
    """`except*` looks into it; the whole is a TaskError as well."""

    class Mine(ExceptionGroup):
        pass

    def made() -> Any:
        return Mine("two of them", [ValueError(1), KeyError(2)])

    for make in (made, lambda: ExceptionGroup("two of them", [ValueError(1), KeyError(2)])):
        ref, found = raising(make).remote(), []
        try:
            rlplat.get(ref)
        except* ValueError as group:
            found.append([type(each) for each in group.exceptions])
        except* KeyError as group:
            found.append([type(each) for each in group.exceptions])
        assert found == [[ValueError], [KeyError]]
        with pytest.raises(TaskError) as caught:
            rlplat.get(ref)
        assert isinstance(caught.value, ExceptionGroup)
        assert caught.value.message == "two of them"
        assert "Traceback" in str(caught.value)
        assert type(caught.value.cause).__name__ == type(make()).__name__


def test_a_group_goes_through_tasks_and_values(backend: str) -> None:
    @rlplat.remote
    def catch(ref: list[Any]) -> Any:
        try:
            rlplat.get(ref[0])
        except ExceptionGroup as error:
            return error

    ref = raising(lambda: ExceptionGroup("inner", [ValueError(1)])).remote()
    error = rlplat.get(catch.remote([ref]))
    assert isinstance(error, TaskError)
    assert isinstance(error, ExceptionGroup)
    assert [str(each) for each in error.exceptions] == ["1"]


def test_a_group_that_is_no_exception_is_a_task_error(cluster: None) -> None:
    with pytest.raises(TaskError, match="stop"):
        rlplat.get(raising(lambda: BaseExceptionGroup("stop", [GeneratorExit()])).remote())


def test_as_instanceof_cause_is_the_error_itself(backend: str) -> None:
    with pytest.raises(ValueError) as caught:
        rlplat.get(raising(lambda: ValueError("v")).remote())
    assert caught.value.as_instanceof_cause() is caught.value  # type: ignore[attr-defined]


class Unprintable(Exception):
    def __repr__(self) -> str:
        raise ValueError("no text")

    __str__ = __repr__


class Raising:
    def fail(self, kind: str) -> None:
        raise Unprintable if kind == "unprintable" else SyntaxError("x", ("f.py", 1, 1, 123))

    def fail_to_tell(self) -> None:
        """Here the runtime itself fails when it is to say what was raised."""
        from rlplat.runtime.worker import replies

        def fails(*_: Any) -> Any:
            raise RuntimeError("no words")

        replies.describe_error = fails
        raise ValueError


class AsyncRaising(Raising):
    async def fail(self, kind: str) -> None:  # type: ignore[override]
        super().fail(kind)

    async def fail_to_tell(self) -> None:  # type: ignore[override]
        super().fail_to_tell()


KINDS: list[Any] = [(Raising, 1), (Raising, 2), (AsyncRaising, None)]


@pytest.mark.parametrize(("kind", "max_concurrency"), KINDS, ids=["plain", "threads", "async"])
def test_an_exception_that_cannot_be_formatted_arrives(backend: str, kind: type, max_concurrency: int | None) -> None:
    actor = rlplat.remote(kind).options(max_concurrency=max_concurrency).remote()
    with pytest.raises(TaskError, match=r"SyntaxError\('x', \('f\.py', 1, 1, 123\)\)") as caught:
        rlplat.get(actor.fail.remote("syntax"), timeout=30)
    assert isinstance(caught.value, SyntaxError)
    with pytest.raises(TaskError, match=r"Raising\.fail.*raised Unprintable"):
        rlplat.get(actor.fail.remote("unprintable"), timeout=30)


@pytest.mark.usefixtures("may_drop")
@pytest.mark.parametrize(("kind", "max_concurrency"), KINDS, ids=["plain", "threads", "async"])
def test_who_waits_for_an_error_that_cannot_be_told_hears_of_it(
    cluster: None, kind: type, max_concurrency: int | None
) -> None:
    actor = rlplat.remote(kind).options(max_concurrency=max_concurrency).remote()
    with pytest.raises(RuntimeFault, match="cannot execute this call: RuntimeError: no words"):
        rlplat.get(actor.fail_to_tell.remote(), timeout=30)
