"""Metrics: what is written, what becomes of NaN, new columns, a full disk, a resumed run."""

from __future__ import annotations

import csv
import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat import metrics
from rlplat.metrics import CsvWriter, JsonlWriter, MetricsLog, forget_after, read_records
from rlplat.tensorboard_events import TensorboardWriter


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_not_a_number_is_null_in_json_and_empty_in_csv(tmp_path: Path) -> None:
    log = MetricsLog([JsonlWriter(tmp_path / "m.jsonl"), CsvWriter(tmp_path / "p.csv")], warn=pytest.fail)
    log.write({"env_steps": 1, "a": float("nan"), "b": np.float32("inf"), "c": None, "d": np.float64(0.5)})
    log.close()
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {
        "env_steps": 1,
        "a": None,
        "b": None,
        "c": None,
        "d": 0.5,
    }
    assert rows(tmp_path / "p.csv") == [{"env_steps": "1", "a": "", "b": "", "c": "", "d": "0.5"}]


def test_columns_may_appear_later_and_stay_when_the_run_goes_on(tmp_path: Path) -> None:
    table = CsvWriter(tmp_path / "p.csv")
    table.write({"env_steps": 1})
    table.write({"env_steps": 2, "eval/return_mean": 7, "odd,name": 'x"y'})
    table.close()
    table = CsvWriter(tmp_path / "p.csv")
    table.write({"eval/return_mean": 9, "env_steps": 3, "new": 4})
    table.close()
    assert rows(tmp_path / "p.csv") == [
        {"env_steps": "1", "eval/return_mean": "", "odd,name": "", "new": ""},
        {"env_steps": "2", "eval/return_mean": "7", "odd,name": 'x"y', "new": ""},
        {"env_steps": "3", "eval/return_mean": "9", "odd,name": "", "new": "4"},
    ]


def test_a_full_disk_drops_whole_records_warns_once_and_recovers(tmp_path: Path, monkeypatch: Any) -> None:
    warnings: list[str] = []
    log = MetricsLog([JsonlWriter(tmp_path / "m.jsonl")], warn=warnings.append)
    log.write({"env_steps": 1})
    pwrite, calls = os.pwrite, []

    def full_after_five_bytes(descriptor: int, data: bytes, offset: int) -> int:
        calls.append(offset)
        if len(calls) % 2:  # the first piece is taken, the rest is refused
            return pwrite(descriptor, data[:5], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(metrics.os, "pwrite", full_after_five_bytes)
    log.write({"env_steps": 2})
    log.write({"env_steps": 3})
    monkeypatch.undo()
    log.write({"env_steps": 4})
    log.close()
    assert [record["env_steps"] for record in read_records(tmp_path / "m.jsonl")] == [1, 4]
    assert len((tmp_path / "m.jsonl").read_text().splitlines()) == 2
    assert log.dropped == 2 and len(calls) == 4
    assert len(warnings) == 2 and "No space left" in warnings[0] and "2 records" in warnings[1]


def test_a_resumed_run_forgets_what_it_will_do_again(tmp_path: Path) -> None:
    log = MetricsLog([JsonlWriter(tmp_path / "metrics.jsonl"), CsvWriter(tmp_path / "progress.csv")], warn=pytest.fail)
    for env_steps in (10, 20, 30):
        log.write({"env_steps": env_steps, "loss": None})
    log.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"env_steps": 4')  # killed in mid-write
    forget_after(tmp_path, 20)
    assert [record["env_steps"] for record in read_records(tmp_path / "metrics.jsonl")] == [10, 20]
    assert [row["env_steps"] for row in rows(tmp_path / "progress.csv")] == ["10", "20"]
    forget_after(tmp_path, 0)
    assert (tmp_path / "progress.csv").read_text() == ""


def test_tensorboard_reads_the_event_files(tmp_path: Path) -> None:
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs the extra rlplat[log]"
    )
    first = TensorboardWriter(tmp_path)
    for env_steps in (128, 1 << 40):
        first.write({"env_steps": env_steps, "learner/loss": env_steps / 2, "nan": float("nan"), "none": None})
    first.close()
    events = accumulators.EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["learner/loss"]
    assert [(event.step, event.value) for event in events.Scalars("learner/loss")] == [
        (128, 64),
        (1 << 40, 1 << 39),
    ]

    second = TensorboardWriter(tmp_path, resumed_at=128)
    second.write({"env_steps": 256, "learner/loss": 3.5})
    second.close()
    events = accumulators.EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("learner/loss")] == [(128, 64), (256, 3.5)]
