"""Ranks that die or hang: the run continues from the last checkpoint, and no sample of an epoch counts twice."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat import checkpoints
from rlplat.data_parallel import TorchTrainer
from rlplat.data_parallel.failures import RanksLost
from tests.data_parallel import loops

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("ranks_cluster")]
ROOT = Path(__file__).resolve().parents[2]


def config_of(tmp_path: Path, what: str, **more: Any) -> dict[str, Any]:
    marker = {"fault": (7, what), "marker": str(tmp_path / "marker")} if what else {}
    return {"batch_size": 4, "epochs": 3, "dropout": 0.5} | marker | more


@pytest.fixture(scope="module")
def undisturbed(ranks_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    config = config_of(tmp_path_factory.mktemp("run"), "")
    return TorchTrainer(loops.regression, config, num_workers=2).fit().history


@pytest.mark.parametrize("what", ["kill", "hang"])
def test_a_lost_rank_costs_nothing_but_time(
    tmp_path: Path, what: str, undisturbed: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    result = TorchTrainer(
        loops.regression, config_of(tmp_path, what), num_workers=2, out=tmp_path / "run", hang_timeout_s=2
    ).fit()
    assert result.num_restarts == 1
    assert [one["loss"] for one in result.history] == [one["loss"] for one in undisturbed]
    assert "training continues from report 1, the last checkpoint" in capfd.readouterr().err


def test_after_a_kill_of_the_driver_the_run_continues_as_if_nothing_had_been(
    tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    """The kill comes in the second epoch; the checkpoint is that of the first."""
    out = tmp_path / "run"
    config = config_of(tmp_path, "kill the driver", checkpoint_of_driver=str(out / "checkpoints" / "step_1"))
    program = (
        "import os\nfrom rlplat.data_parallel import TorchTrainer\nfrom tests.data_parallel import loops\n"
        f"config = {config!r} | {{'driver': os.getpid()}}\n"
        f"TorchTrainer(loops.regression, config, num_workers=2, out={str(out)!r}).fit()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = checkpoints.latest_valid(out)[0]
    assert before is not None and len(before.state["history"]) == 1
    resumed = TorchTrainer(loops.regression, config, num_workers=2, out=out, resume=True).fit()
    assert [one["loss"] for one in resumed.history] == [one["loss"] for one in undisturbed]


def test_with_fewer_ranks_the_epoch_goes_on_where_it_was(tmp_path: Path) -> None:
    """Two ranks, checkpoints within the epoch; when one dies, another actor takes the room of a rank."""
    (log := tmp_path / "log").mkdir()
    config = config_of(tmp_path, "kill", epochs=2, every=2, dropout=0.0, log=str(log))
    trainer = TorchTrainer(loops.regression, config, num_workers=(1, 2), resources={"cpu": 2}, place_timeout_s=0.5)
    rival, last = None, {}
    for report in trainer.reports(config):
        rival = rival or rlplat.remote(Rival).options(num_cpus=1).remote()  # waits until the group lets go
        last = report.metrics
    rlplat.kill(rival)
    assert last["size"] == 1
    # The checkpoint was made after 6 batches of each rank, one of them in the second epoch.
    before = [seen(path)[2] for path in log.glob("*_6") if seen(path)[:2] == [1, 2]]
    (after,) = [seen(path)[2] for path in [max(log.glob("*"), key=lambda one: one.stat().st_mtime_ns)]]
    assert len(before) == 2
    assert sorted([*before[0], *before[1], *after]) == list(range(loops.NUM_SAMPLES))


def test_ranks_are_added_where_there_is_room_again(tmp_path: Path) -> None:
    """From one rank to two at a checkpoint within the first epoch: the samples of each step stay the same."""
    config = config_of(tmp_path, "", epochs=2, every=2, dropout=0.0)
    whole = TorchTrainer(loops.regression, config, num_workers=2).fit()
    rival = rlplat.remote(Rival).options(num_cpus=3).remote()
    rlplat.get(rival.ready.remote())
    reports: list[Any] = []
    trainer = TorchTrainer(loops.regression, config, num_workers=(1, 2), place_timeout_s=0.5)
    for report in trainer.reports(config):
        if not reports:
            rlplat.kill(rival)
            while rlplat.available_resources()["CPU"] < 3:
                time.sleep(0.01)
        reports.append(report)
    sizes = [report.metrics["size"] for report in reports]
    assert sizes[0] == 1 and sizes[-1] == 2 and sizes == sorted(sizes)
    assert [report.number for report in reports] == list(range(1, len(reports) + 1))
    assert reports[-1].num_restarts == 0
    assert reports[-1].metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=1e-5)


def seen(path: Path) -> Any:
    """[epoch, ranks, samples of the epoch so far] of a process, in some step."""
    return ast.literal_eval(path.read_text())


class Rival:
    def ready(self) -> None:
        pass


def test_a_run_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    config = config_of(tmp_path, "kill", checkpoint=False) | {"marker": ""}
    with pytest.raises(RanksLost, match=r"rank 1: .*SIGKILL"):
        TorchTrainer(loops.regression, config, num_workers=2, max_failures=1).fit()
