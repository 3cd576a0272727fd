"""Too many rollout workers are refused or warned of, and their start is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import rlplat
from rlplat.errors import InfeasibleResources
from rlplat.rl.run.view import Progress
from rlplat.rl.run.view.progress import showing_log
from rlplat.rl.sampling import worker_group
from rlplat.rl.sampling.worker_group import WORKER_BYTES, check_num_workers, refuse_beyond, wait_for_first


@pytest.fixture
def runtime() -> Iterator[None]:
    rlplat.init(backend="inproc", num_cpus=2)
    yield
    rlplat.shutdown()


def test_what_memory_cannot_hold_is_refused_with_the_numbers() -> None:
    refuse_beyond(64, 64 * WORKER_BYTES)
    with pytest.raises(InfeasibleResources, match=r"1,000 rollout workers need 15.6 GiB .* and 2.0 GiB are free") as no:
        refuse_beyond(1000, 2 * 2**30)
    assert "set --num-rollout-workers to less than 128" in str(no.value)


def test_many_more_than_the_cores_are_warned_of(runtime: None, caplog: pytest.LogCaptureFixture) -> None:
    check_num_workers(8)
    assert not caplog.records
    check_num_workers(9)
    assert "9 rollout workers share 2 CPU cores" in caplog.text


def test_the_start_is_told_until_all_have_begun(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moments = iter([[], ["a0"], ["a0", "a1", "b0"], ["a0", "a1", "b0", "b1"]])

    def wait(refs: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        return (next(moments), []) if timeout == 0 else ([], refs)

    monkeypatch.setattr(worker_group.rlplat, "wait", wait, raising=False)
    with caplog.at_level(logging.INFO, "rlplat.start"):
        wait_for_first([["a0", "a1"], ["b0", "b1"]])  # type: ignore[list-item]
    assert caplog.messages == [f"started {number} of 2 rollout workers" for number in (0, 0, 1)]


def test_what_is_logged_is_said_by_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    class Heard(Progress):
        def __init__(self) -> None:
            self.texts: list[str] = []

        def say(self, text: str) -> None:
            self.texts.append(text)

    heard = Heard()
    with showing_log("rlplat.start", heard):
        worker_group.log.info("started %d of %d rollout workers", 1, 2)
    worker_group.log.info("nobody listens any more")
    assert heard.texts == ["started 1 of 2 rollout workers"] and not capsys.readouterr().err
