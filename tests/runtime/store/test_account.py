"""The account of shared memory that all processes of a node share."""

from __future__ import annotations

import fcntl
import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlplat.errors import ConfigError
from rlplat.runtime.store.account import Account, budget, create_account, remove_files_of

MB = 1_000_000


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[..., Account]]:
    """Opens views of an account with a budget of 10 MB."""
    create_account(str(tmp_path), 10 * MB, 1.5)
    opened: list[Account] = []

    def join(client: str = "") -> Account:
        opened.append(Account.open(str(tmp_path), client))
        return opened[-1]

    yield join
    for account in opened:
        account.close()


def test_the_budget_is_one_for_all_processes(join: Any) -> None:
    one, two = join("driver"), join("w1")
    assert one.reserve(6 * MB)
    assert not two.reserve(5 * MB)
    assert two.reserve(4 * MB)
    assert not one.reserve(1)
    one.release(2 * MB)
    assert two.reserve(2 * MB)
    assert one.used() == two.used() == 10 * MB
    assert (one.limit, two.full_timeout_s) == (10 * MB, 1.5)


def test_what_was_refused_is_not_entered(join: Any) -> None:
    one = join("driver")
    for _ in range(5):
        assert not one.reserve(11 * MB)
    assert one.used() == 0
    assert one.reserve(10 * MB)


def test_a_dead_process_is_settled_and_its_slot_given_out_again(join: Any, tmp_path: Path) -> None:
    driver, dead = join("driver"), join("w1")
    dead.reserve(9 * MB)
    (tmp_path / "spill").mkdir()
    for name in ("w1", "s-w1-1", "spill/s-w1-2", "spill/.s-w1-3", "s-w11-1", "s-driver-1"):
        (tmp_path / name).touch()
    remove_files_of(str(tmp_path), "w1")
    left = sorted(os.listdir(tmp_path)) + os.listdir(tmp_path / "spill")
    assert left == ["account", "s-driver-1", "s-w11-1", "spill"]
    assert driver.used() == 0
    assert driver.reserve(10 * MB)
    join("w2")
    assert [h.client for h in driver.holdings()] == ["driver", "w2"]


def test_bytes_that_are_taken_over_count_once(join: Any) -> None:
    driver, dead = join("driver"), join("w1")
    dead.reserve(3 * MB)
    dead.spilled(5 * MB)
    driver.take_over("w1", 2 * MB, 0)
    driver.take_over("w1", 0, 5 * MB)
    assert driver.used() == 3 * MB
    assert [(h.used, h.spilled) for h in driver.holdings()] == [(2 * MB, 5 * MB), (1 * MB, 0)]
    driver.settle("w1")
    driver.take_over("w1", 1 * MB, 0)  # too late: it is ours, and nobody else's any more
    assert driver.used() == 3 * MB


def test_the_description_names_the_largest_owners_first(join: Any) -> None:
    driver, worker = join("driver"), join("w1")
    worker.reserve(8 * MB)
    worker.spare(1 * MB)
    worker.spilled(20 * MB)
    worker.owned(2 * MB, 1)
    driver.owned(5 * MB, 3)
    assert driver.describe() == (
        "8.0 of 10.0 MB are taken (1.0 MB of that wait for reuse), 20.0 MB are spilled to disk; "
        "owners: driver 5.0 MB in 3 objects, w1 2.0 MB in 1 objects"
    )


@pytest.mark.process
def test_many_processes_at_once_lose_no_byte(join: Any) -> None:
    watcher = join("driver")
    pids = []
    for number in range(3):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                mine, held = join(f"w{number}"), 0
                for _ in range(10_000):
                    if mine.reserve(4 * MB):
                        held += 1
                        mine.release(4 * MB)
                status = 0 if held else 2
            finally:
                os._exit(status)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
    assert watcher.used() == 0
    assert len(watcher.holdings()) == 4


def test_a_session_without_an_account_has_no_limit(tmp_path: Path) -> None:
    account = Account.open(str(tmp_path), "w1")
    assert account.reserve(1 << 50)
    account.close()
    assert account.reserve(1)  # of no account any more, and no error


@pytest.mark.parametrize("wanted", [0, -1, 1000, True, 1e9, "1 GB"])
def test_a_budget_must_be_a_number_of_bytes(tmp_path: Path, wanted: Any) -> None:
    with pytest.raises(ConfigError, match="object_store_memory"):
        budget(wanted, str(tmp_path))


def test_a_budget_beyond_the_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shm-size"):
        budget(1 << 60, str(tmp_path))
    assert budget(1 << 20, str(tmp_path)) == 1 << 20
    assert 1 << 20 <= budget(None, str(tmp_path)) <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_deadline_may_be_infinite(tmp_path: Path) -> None:
    create_account(str(tmp_path), 1 << 20, math.inf)
    account = Account.open(str(tmp_path))
    assert account.full_timeout_s > 1e9
    account.close()


@pytest.mark.parametrize("seconds", [-1, "1", True, math.nan])
def test_the_deadline_must_be_seconds(tmp_path: Path, seconds: Any) -> None:
    with pytest.raises(ConfigError, match="store_full_timeout_s"):
        create_account(str(tmp_path), 1 << 20, seconds)


def test_a_process_that_was_stopped_with_the_account_locked_holds_up_nobody_for_good(
    join: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node, above all: it kills what hangs."""
    monkeypatch.setattr("rlplat.runtime.store.account._LOCK_S", 0.01)
    driver, dead = join("driver"), join("w1")
    dead.reserve(MB)
    with open(tmp_path / "account") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        settling = threading.Thread(target=driver.settle, args=("w1",), daemon=True)
        settling.start()
        settling.join(30)
        assert not settling.is_alive()
    assert driver.used() == 0
