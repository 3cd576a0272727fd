"""Which failed tasks run again: the rules at the head of `retries`."""

from __future__ import annotations

from rlplat.runtime.core.owner.lanes import TaskRecord
from rlplat.runtime.core.owner.retries import (
    OOM_RETRIES,
    History,
    covers,
    death_error,
    exception_names,
    runs_again_after_death,
    runs_again_after_error,
)
from rlplat.runtime.wire.values import ErrorInfo, class_names


def task(retries: int) -> TaskRecord:
    return TaskRecord(1, None, None, "f", (1,), None, None, retries_left=retries)


def deaths(record: TaskRecord, *companies: bool, kind: str = "WorkerCrashed", has_limit: bool = False) -> int:
    """How many deaths it takes, alone (True) or in company, and then always alone."""
    for number in range(1, 100):
        was_alone = companies[number - 1] if number <= len(companies) else True
        if not runs_again_after_death(record, was_alone, f"death {number}", kind, has_limit):
            return number
    return 100


def test_a_task_that_kills_its_workers_ends_after_its_retries_and_one_more() -> None:
    for retries in range(4):
        assert deaths(task(retries)) == retries + 1
        assert deaths(task(retries), False) == max(retries + 1, 2)
    assert deaths(task(-1)) == 100


def test_company_alone_is_never_the_end_of_a_task() -> None:
    assert deaths(task(1), False, False, False, False) == 5


def test_whoever_died_runs_alone_from_then_on() -> None:
    record = task(3)
    runs_again_after_death(record, True, "why", "WorkerCrashed")
    assert record.is_suspect


def test_deaths_for_want_of_memory_are_counted_apart() -> None:
    record = task(1)
    assert deaths(record, kind="OutOfMemory") == OOM_RETRIES + 1
    assert record.retries_left == 1
    assert deaths(task(0), kind="OutOfMemory") == 1
    limited = task(1)
    assert deaths(limited, kind="OutOfMemory", has_limit=True) == 2  # it outgrows its own limit again
    assert death_error(record, "w1", "too big", "OutOfMemory").kind == "OutOfMemory"


def test_the_error_tells_of_the_last_three_attempts() -> None:
    record = task(4)
    assert deaths(record) == 5
    text = death_error(record, "w9", "death 5", "WorkerCrashed").message
    assert text.startswith("task f: its worker w9 died and no retries are left: death 5\n5 attempts failed")
    assert "death 2" not in text
    assert text.endswith("\n- death 3\n- death 4")
    first = task(0)
    assert deaths(first) == 1
    assert "attempts" not in death_error(first, "w9", "death 1", "WorkerCrashed").message


class Flaky(OSError):
    pass


def raised(kind: type[BaseException]) -> ErrorInfo:
    return ErrorInfo("TaskError", "it raised", b"", class_names(kind))


def test_exceptions_are_covered_by_class_and_base_class() -> None:
    names = exception_names((OSError, KeyError))
    assert covers(names, raised(Flaky))
    assert covers(names, raised(KeyError))
    assert not covers(names, raised(LookupError))
    assert covers(True, raised(ValueError))
    assert not covers(False, raised(ValueError))
    assert not covers(True, ErrorInfo("TaskCancelled", "somebody cancelled it"))


def test_exceptions_and_deaths_draw_on_the_same_retries() -> None:
    record = task(2)
    record.history = History(True)
    assert runs_again_after_error(record, raised(ValueError))
    assert runs_again_after_death(record, True, "killed", "WorkerCrashed")
    assert not runs_again_after_error(record, raised(ValueError))
    forever = task(-1)
    forever.history = History(True)
    assert all(runs_again_after_error(forever, raised(ValueError)) for _ in range(50))


def test_without_retry_exceptions_nothing_that_raised_runs_again() -> None:
    record = task(3)
    assert not runs_again_after_error(record, raised(ValueError))
    runs_again_after_death(record, True, "killed", "WorkerCrashed")
    assert not runs_again_after_error(record, raised(ValueError))
