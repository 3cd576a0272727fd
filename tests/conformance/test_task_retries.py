"""Tasks that run again: `max_retries`, `retry_exceptions`."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ConfigError, SerializationError, WorkerCrashed


def attempts(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def flaky(log: Path, num_failures: int, error: Any, **options: Any) -> Any:
    """A task that raises `error` the first times and then returns its argument."""
    path = str(log)

    def f(x: Any = 1) -> Any:
        with open(path, "a") as file:
            file.write("x\n")
        if len(open(path).read().splitlines()) <= num_failures:
            raise error
        return x

    return rlplat.remote(f).options(**options)


def test_exceptions_are_not_retried_by_default(backend: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(ValueError, match="no"):
        rlplat.get(flaky(log, 1, ValueError("no")).remote())
    assert attempts(log) == 1


def test_retry_exceptions_true_retries_any(backend: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert rlplat.get(flaky(log, 2, ValueError("no"), retry_exceptions=True).remote(5)) == 5
    assert attempts(log) == 3


def test_retry_exceptions_by_class(backend: str, tmp_path: Path) -> None:
    class Lost(ConnectionError):
        pass

    log, other = tmp_path / "log", tmp_path / "other"
    assert rlplat.get(flaky(log, 1, Lost("net"), retry_exceptions=[OSError]).remote(5)) == 5
    assert attempts(log) == 2
    with pytest.raises(KeyError):
        rlplat.get(flaky(other, 1, KeyError("k"), retry_exceptions=[OSError, ValueError]).remote())
    assert attempts(other) == 1


def test_a_result_that_cannot_be_pickled_is_no_exception_of_the_task(backend: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @rlplat.remote(max_retries=2, retry_exceptions=True)
    def lock() -> Any:
        with open(log, "a") as file:
            file.write("x")
        return threading.Lock()

    with pytest.raises(SerializationError, match=r"the result of .*lock cannot be pickled"):
        rlplat.get(lock.remote())
    assert log.read_text() == "x"


def test_the_number_of_retries_is_that_of_max_retries(backend: str, tmp_path: Path) -> None:
    log, endless, once = tmp_path / "log", tmp_path / "endless", tmp_path / "once"
    with pytest.raises(ValueError, match="no"):
        rlplat.get(flaky(log, 100, ValueError("no"), retry_exceptions=True, max_retries=2).remote())
    assert attempts(log) == 3
    assert rlplat.get(flaky(endless, 20, ValueError("no"), retry_exceptions=True, max_retries=-1).remote()) == 1
    with pytest.raises(ValueError, match="no"):
        rlplat.get(flaky(once, 1, ValueError("no"), retry_exceptions=True, max_retries=0).remote())
    assert attempts(once) == 1


def test_retried_tasks_have_their_arguments_again(backend: str, tmp_path: Path) -> None:
    array = np.arange(100_000)
    f = flaky(tmp_path / "log", 1, ValueError("no"), retry_exceptions=True)
    assert rlplat.get(f.remote(rlplat.put(array))).sum() == array.sum()
    g = flaky(tmp_path / "log2", 1, ValueError("no"), retry_exceptions=True)
    assert rlplat.get(g.remote({"a": array, "b": [rlplat.put(1)]}))["a"].sum() == array.sum()


def test_what_is_retried_must_be_exception_classes() -> None:
    with pytest.raises(ConfigError, match="exception classes"):
        rlplat.remote(retry_exceptions=["ValueError"])


def test_an_exception_that_cannot_be_pickled_is_retried_by_its_class(cluster: None, tmp_path: Path) -> None:
    import threading

    log = str(tmp_path / "log")

    class Locked(Exception):
        pass

    @rlplat.remote(retry_exceptions=[Locked])
    def f() -> int:
        with open(log, "a") as file:
            file.write("x\n")
        if len(open(log).read().splitlines()) == 1:
            error = Locked("held")
            error.lock = threading.Lock()  # type: ignore[attr-defined]
            raise error
        return 1

    assert rlplat.get(f.remote(), timeout=60) == 1


def test_deaths_and_exceptions_count_together(cluster: None, tmp_path: Path) -> None:
    log = str(tmp_path / "log")

    @rlplat.remote(max_retries=2, retry_exceptions=True)
    def f() -> None:
        with open(log, "a") as file:
            file.write("x\n")
        if len(open(log).read().splitlines()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        rlplat.get(f.remote(), timeout=60)
    assert attempts(tmp_path / "log") == 3


def test_max_retries_minus_one_never_gives_up(cluster: None, tmp_path: Path) -> None:
    log = str(tmp_path / "log")

    @rlplat.remote(max_retries=-1)
    def f() -> int:
        with open(log, "a") as file:
            file.write("x\n")
        if len(open(log).read().splitlines()) <= 6:
            os._exit(1)
        return 1

    assert rlplat.get(f.remote(), timeout=60) == 1


def test_without_retries_a_task_never_runs_twice_whatever_its_company(cluster: None, tmp_path: Path) -> None:
    """Many short ones, one of which kills its worker: the others are neither lost nor run again."""

    @rlplat.remote(max_retries=0)
    def f(x: int) -> int:
        with open(tmp_path / str(x), "a") as file:
            file.write("x\n")
        if x == 30:
            os._exit(1)
        return x

    refs = {x: f.remote(x) for x in range(60)}
    with pytest.raises(WorkerCrashed, match="exited with code 1"):
        rlplat.get(refs.pop(30), timeout=60)
    assert rlplat.get(list(refs.values()), timeout=60) == list(refs)
    assert {attempts(tmp_path / str(x)) for x in range(60)} == {1}
