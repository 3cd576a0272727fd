"""Where rlplat promises more than Ray 2.60 does (tried on both); the rest of this folder is for every backend.

Each docstring says what Ray does instead; docs/from-ray.md lists it.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import rlplat
from rlplat.errors import ConfigError, TaskError


def raising(make: Any) -> Any:
    @rlplat.remote
    def fail() -> None:
        raise make()

    return fail


def test_an_exception_that_cannot_be_pickled_still_arrives_as_a_task_error(backend: str) -> None:
    """Ray: the worker dies, and the caller gets WorkerCrashedError."""

    class Unpicklable(Exception):
        def __reduce__(self) -> Any:
            raise RuntimeError("not me")

    with pytest.raises(TaskError, match="carried text"):
        rlplat.get(raising(lambda: Unpicklable("carried text")).remote())


def test_a_task_error_can_be_pickled(backend: str) -> None:
    """Ray: PicklingError."""
    with pytest.raises(TaskError) as caught:
        rlplat.get(raising(lambda: ValueError("kept")).remote())
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, TaskError)
    assert "kept" in str(again)


def test_a_task_error_can_be_passed_on_as_a_value(backend: str) -> None:
    """Ray: an exception of its own among the arguments counts as a failed argument."""

    @rlplat.remote
    def look(error: Exception) -> tuple[bool, str]:
        return isinstance(error, TaskError), str(error)

    with pytest.raises(TaskError) as caught:
        rlplat.get(raising(lambda: ValueError("as a value")).remote())
    is_task_error, text = rlplat.get(look.remote(caught.value))
    assert is_task_error
    assert "as a value" in text


def test_one_object_in_two_places_of_an_argument_stays_one(backend: str) -> None:
    """Ray: plain lists are copied twice (msgpack)."""

    @rlplat.remote
    def is_shared(pair: list) -> bool:
        return pair[0] is pair[1]

    inner = [1]
    assert rlplat.get(is_shared.remote([inner, inner]))


def test_the_docstring_stays(backend: str) -> None:
    """Ray: the docstring of its own class."""

    @rlplat.remote
    def f() -> None:
        """What it does."""

    assert f.__doc__ == "What it does."


def test_a_bytearray_stays_one(backend: str) -> None:
    """Ray: it arrives as bytes."""

    @rlplat.remote
    def kind(x: Any) -> str:
        return type(x).__name__

    assert rlplat.get(kind.remote(bytearray(b"abc"))) == "bytearray"
    assert rlplat.get(rlplat.put(bytearray(b"abc"))) == bytearray(b"abc")


def test_options_are_checked_where_they_are_written(backend: str) -> None:
    """Ray: a TypeError from inside its comparison, and no suggestion."""
    with pytest.raises(ConfigError, match="'streaming' or 'dynamic', not 'three'"):
        rlplat.remote(num_returns="three")
    with pytest.raises(TypeError, match="not int"):
        rlplat.remote(num_cpus=1)(5)
