"""Errors: the user's class and TaskError at once, remote tracebacks, culprits by name."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rlplat
from rlplat.errors import GetTimeout, SerializationError, TaskError


def test_the_users_class_and_task_error_both_catch_it(backend: str) -> None:
    class MyError(LookupError):
        pass

    @rlplat.remote
    def fail() -> None:
        raise MyError("what")

    for kind in (MyError, LookupError, TaskError):
        with pytest.raises(kind, match="what"):
            rlplat.get(fail.remote())


def test_the_message_holds_the_remote_traceback(backend: str) -> None:
    def inner_function() -> float:
        return 1 / 0

    @rlplat.remote
    def outer_function() -> float:
        return inner_function()

    with pytest.raises(ZeroDivisionError) as caught:
        rlplat.get(outer_function.remote())
    text = str(caught.value)
    assert "outer_function" in text
    assert "in inner_function" in text
    assert "test_errors.py" in text
    assert "division by zero" in text
    assert isinstance(caught.value.cause, ZeroDivisionError)  # type: ignore[attr-defined]


def test_attributes_of_the_users_exception_survive(backend: str) -> None:
    class CodeError(Exception):
        def __init__(self, message: str, code: int = 0) -> None:
            super().__init__(message)
            self.code = code

    @rlplat.remote
    def fail() -> None:
        raise CodeError("bad", code=7)

    with pytest.raises(CodeError) as caught:
        rlplat.get(fail.remote())
    assert caught.value.code == 7


def test_an_exception_that_cannot_be_unpickled_arrives_as_text(backend: str) -> None:
    class TwoArguments(Exception):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(f"{first} and {second}")

    @rlplat.remote
    def fail() -> None:
        raise TwoArguments("this", "that")

    with pytest.raises(TaskError, match=r"TwoArguments(.|\n)*this and that"):
        rlplat.get(fail.remote())
    with pytest.raises(TaskError, match="this and that"):  # the worker is none the worse
        rlplat.get(fail.remote())


def test_an_exception_that_cannot_be_pickled_arrives_as_text(backend: str) -> None:
    @rlplat.remote
    def fail() -> None:
        error = ValueError("holds a lock")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    with pytest.raises(TaskError, match="holds a lock"):
        rlplat.get(fail.remote())


@pytest.mark.parametrize(
    "error",
    [
        KeyError("k"),
        StopIteration(1),
        FileNotFoundError(2, "no such file", "/x"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"),
        AssertionError(),
        TimeoutError("late"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_builtin_exceptions_arrive_as_themselves(backend: str, error: BaseException) -> None:
    @rlplat.remote
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        rlplat.get(fail.remote())
    assert isinstance(caught.value, TaskError)
    assert type(caught.value.cause) is type(error)


def test_an_error_may_name_a_file_whose_name_is_not_utf8(backend: str) -> None:
    path = os.fsdecode(b"caf\xe9.csv")

    @rlplat.remote
    class Reader:
        def __init__(self) -> None:
            self.num_runs = 0

        def read(self) -> None:
            self.num_runs += 1
            raise FileNotFoundError(f"cannot read {path}")

        def values(self) -> Iterator[int]:
            yield 1
            raise FileNotFoundError(f"cannot read {path}")

        def runs(self) -> int:
            return self.num_runs

    reader = Reader.remote()
    with pytest.raises(FileNotFoundError, match=r"cannot read caf\\udce9\.csv") as caught:
        rlplat.get(reader.read.remote(), timeout=10)
    assert caught.value.cause.args == (f"cannot read {path}",)  # type: ignore[attr-defined]
    assert rlplat.get(reader.runs.remote(), timeout=10) == 1
    values = reader.values.remote()
    assert rlplat.get(next(values), timeout=10) == 1
    with pytest.raises(FileNotFoundError, match="cannot read"):
        rlplat.get(next(values), timeout=10)


def test_an_error_travels_through_dependent_tasks(backend: str) -> None:
    @rlplat.remote
    def fail() -> int:
        raise ValueError("at the root")

    @rlplat.remote
    def use(x: int) -> int:
        return x

    with pytest.raises(ValueError, match="at the root"):
        rlplat.get(use.remote(use.remote(fail.remote())))


def test_an_error_travels_through_nested_tasks(backend: str) -> None:
    @rlplat.remote
    def inner() -> None:
        raise ValueError("deep down")

    @rlplat.remote
    def outer() -> None:
        rlplat.get(inner.remote())

    with pytest.raises(ValueError, match="deep down"):
        rlplat.get(outer.remote())


def test_get_of_a_list_raises_the_error_of_the_first_in_the_list(backend: str) -> None:
    """Of those that have failed already, and when the values before it are there."""

    @rlplat.remote
    def maybe(x: int) -> int:
        if x % 2:
            raise ValueError(f"odd {x}")
        return x

    refs = [maybe.remote(i) for i in range(6)]
    rlplat.wait(refs, num_returns=6)
    with pytest.raises(ValueError, match="odd 1"):
        rlplat.get(refs)
    with pytest.raises(ValueError, match="odd 5"):
        rlplat.get(refs[::-1])


class Gate:
    def __init__(self) -> None:
        self.is_open = asyncio.Event()

    async def passed(self, error: str = "") -> None:
        await self.is_open.wait()
        if error:
            raise ValueError(error)

    async def open(self) -> None:
        self.is_open.set()


def test_get_of_a_list_raises_the_first_error_in_time(backend: str) -> None:
    """What is before it in the list may never come."""
    if backend == "inproc":
        pytest.skip("tasks run when they are called there")

    @rlplat.remote
    def fails() -> None:
        raise ValueError("soon")

    @rlplat.remote
    def opens(gate: Any) -> None:
        rlplat.get(gate.open.remote())

    @rlplat.remote(num_cpus=0)
    def of_another(waits: list[Any], late: list[Any]) -> list[str]:
        """The same of refs that another process owns."""
        said = []
        mine = [gate.passed.remote()]
        for refs in ([*waits, *late], [*mine, *late]):
            try:
                rlplat.get(refs)
            except ValueError as error:
                said.append(str(error))
        return said

    gate, late = (rlplat.remote(Gate).options(num_cpus=0).remote() for _ in range(2))
    never = gate.passed.remote()
    with pytest.raises(ValueError, match="soon"):
        rlplat.get([never, fails.remote()], timeout=60)
    with pytest.raises(ValueError, match="late"):
        rlplat.get([never, late.passed.remote("late"), opens.remote(late), never], timeout=60)
    own, others = rlplat.get(of_another.remote([never], [late.passed.remote("late")]), timeout=60)
    assert "late" in own and "late" in others
    assert rlplat.wait([never], timeout=0)[0] == []


@pytest.mark.slow
@pytest.mark.process
def test_an_error_after_seconds_does_not_wait_for_the_others(backend: str) -> None:
    if backend == "inproc":
        pytest.skip("tasks run when they are called there")

    @rlplat.remote
    def fails() -> None:
        time.sleep(6.0)
        raise ValueError("late")

    @rlplat.remote
    def goes_on() -> None:
        time.sleep(20.0)

    other = goes_on.remote()
    late = fails.remote()
    with pytest.raises(ValueError, match="late"):
        rlplat.get([other, late, other])
    assert rlplat.wait([other], timeout=0)[0] == []


def test_rlplats_own_errors_keep_their_class(backend: str) -> None:
    @rlplat.remote
    def fail() -> None:
        raise GetTimeout("it took too long")

    with pytest.raises(GetTimeout, match="it took too long"):
        rlplat.get(fail.remote())


class Holder:
    def __init__(self) -> None:
        self.ok = 1
        self.env = {"inner": [1, threading.Lock()]}


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (threading.Lock, r"lock"),
        (lambda: [1, {"a": threading.Lock()}], r"\[1\]\['a'\] of type _thread\.lock"),
        (Holder, r"env\['inner'\]\[1\] of type _thread\.lock"),
        (lambda: (x for x in ()), "generator"),
    ],
    ids=["lock", "nested", "attribute", "generator"],
)
def test_an_argument_that_cannot_be_pickled_is_named_by_its_path(backend: str, make: Any, path: str) -> None:
    @rlplat.remote
    def f(x: Any) -> None: ...

    with pytest.raises(SerializationError, match=rf"argument of .*f .*{path}"):
        f.remote(make())
    with pytest.raises(SerializationError, match=path):
        rlplat.put(make())


def test_a_closure_that_cannot_be_pickled_is_named(backend: str) -> None:
    lock = threading.Lock()

    @rlplat.remote
    def f() -> bool:
        return lock.locked()

    with pytest.raises(SerializationError, match=r"f cannot be sent.*closure variable 'lock'.*Create it inside"):
        f.remote()


def test_a_result_that_cannot_be_pickled_is_named(backend: str) -> None:
    @rlplat.remote
    def f() -> Any:
        return {"handle": threading.Lock()}

    culprit = r"_thread\.lock" if backend == "ray" else r"\['handle'\]"  # Ray's pickler does not say where it is
    for _ in range(2):  # the worker is none the worse
        with pytest.raises((SerializationError, TaskError), match=rf"the result of .*f.*{culprit}"):
            rlplat.get(f.remote())


def test_an_actors_argument_that_cannot_be_pickled_leaves_it_alive(backend: str) -> None:
    class Echo:
        def echo(self, x: Any) -> Any:
            return x

    actor = rlplat.remote(Echo).remote()
    with pytest.raises(SerializationError, match=r"Echo\.echo"):
        actor.echo.remote(threading.Lock())
    assert rlplat.get(actor.echo.remote(1)) == 1
