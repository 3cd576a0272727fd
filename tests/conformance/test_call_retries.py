"""`retry_exceptions` and `max_task_retries` of methods: on the method, and for one call."""

from __future__ import annotations

from typing import Any

import pytest

import rlplat
from rlplat.errors import OptionError


class Flaky:
    """Each method raises as often as it is told, and says in the end how often it ran."""

    def __init__(self) -> None:
        self.runs = 0

    def _attempt(self, failures: int, error: type[Exception]) -> int:
        self.runs += 1
        if self.runs <= failures:
            raise error(f"attempt {self.runs}")
        return self.runs

    @rlplat.method(retry_exceptions=True, max_task_retries=2)
    def any_error(self, failures: int, error: type[Exception] = ValueError) -> int:
        return self._attempt(failures, error)

    @rlplat.method(retry_exceptions=[ValueError, OSError], max_task_retries=-1)
    def some_errors(self, failures: int, error: type[Exception] = ValueError) -> int:
        return self._attempt(failures, error)

    @rlplat.method(retry_exceptions=True)
    def as_the_actor_says(self, failures: int) -> int:
        return self._attempt(failures, ValueError)

    def plain(self, failures: int, *rest: Any) -> int:
        return self._attempt(failures, ValueError)

    def count(self) -> int:
        return self.runs


class AsyncFlaky(Flaky):
    @rlplat.method(retry_exceptions=True, max_task_retries=2)
    async def any_error(self, failures: int, error: type[Exception] = ValueError) -> int:  # type: ignore[override]
        return self._attempt(failures, error)


@pytest.fixture(params=["plain", "async", "threads"])
def made(request: pytest.FixtureRequest, backend: str) -> Any:
    kind = AsyncFlaky if request.param == "async" else Flaky
    options = {"max_concurrency": 2} if request.param == "threads" else {}

    def make(**more: Any) -> Any:
        return rlplat.remote(kind).options(**options, **more).remote()

    return make


def test_a_method_is_run_again_when_it_raises(made: Any) -> None:
    actor = made()
    assert rlplat.get(actor.any_error.remote(2)) == 3
    actor = made()
    with pytest.raises(ValueError, match="attempt 3"):
        rlplat.get(actor.any_error.remote(5))
    assert rlplat.get(actor.count.remote()) == 3


def test_only_for_what_it_names(made: Any) -> None:
    actor = made()
    assert rlplat.get(actor.some_errors.remote(6, FileNotFoundError)) == 7  # an OSError, so one of them
    actor = made()
    with pytest.raises(KeyError):
        rlplat.get(actor.some_errors.remote(1, KeyError))
    assert rlplat.get(actor.count.remote()) == 1


def test_the_number_is_the_actors_unless_the_method_has_its_own(backend: str) -> None:
    remote = rlplat.remote(Flaky)
    with pytest.raises(ValueError, match="attempt 1"):
        rlplat.get(remote.remote().as_the_actor_says.remote(1))
    assert rlplat.get(remote.options(max_task_retries=3).remote().as_the_actor_says.remote(3)) == 4


def test_none_is_what_the_actor_was_created_with(backend: str) -> None:
    actor = rlplat.remote(Flaky).options(max_task_retries=3).remote()
    assert rlplat.get(actor.as_the_actor_says.options(max_task_retries=None).remote(3)) == 4
    assert rlplat.get(actor.any_error.options(max_task_retries=None).remote(7)) == 8  # its own would be two


def test_one_call_may_have_its_own(backend: str) -> None:
    actor = rlplat.remote(Flaky).remote()
    retried = actor.plain.options(retry_exceptions=[ValueError], max_task_retries=1)
    assert rlplat.get(retried.remote(1, rlplat.put(b"x" * 100_000))) == 2
    with pytest.raises(ValueError, match="attempt 3"):
        rlplat.get(actor.plain.remote(9))
    never = actor.any_error.options(retry_exceptions=False)
    with pytest.raises(ValueError, match="attempt 4"):
        rlplat.get(never.remote(9))


def test_handles_that_travelled_know_it(backend: str) -> None:
    rlplat.remote(Flaky).options(name="flaky", lifetime="detached").remote()

    @rlplat.remote
    def call(handle: Any) -> int:
        return rlplat.get(handle.any_error.remote(2))  # type: ignore[no-any-return]

    assert rlplat.get(call.remote(rlplat.get_actor("flaky"))) == 3


def test_not_with_exactly_once(backend: str) -> None:
    with pytest.raises(OptionError, match="exactly_once"):
        rlplat.remote(exactly_once=True)(Flaky).remote()

    @rlplat.remote(exactly_once=True)
    class Once:
        def method(self) -> int:
            return 1

    with pytest.raises(OptionError, match="exactly_once"):
        Once.remote().method.options(retry_exceptions=True).remote()
