"""A trainer as a trainable: trials hold their ranks; ASHA stops them, PBT copies them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rlplat import tune
from rlplat.data_parallel import TorchTrainer
from rlplat.errors import ConfigError
from tests.data_parallel import creators, loops

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("ranks_cluster")]


def test_trials_of_two_ranks_are_stopped_early(tmp_path: Path) -> None:
    trainable = TorchTrainer.as_trainable(**creators.ALL, config={"batch": 8}, num_workers=2)
    analysis = tune.run(
        trainable,
        {"lr": tune.grid([1e-1, 1e-6, 1e-7, 1e-8])},
        metric="val_loss",
        mode="min",
        resources={"cpu": 2},
        scheduler={"name": "asha", "min_progress": 1, "reduction_factor": 2},
        max_concurrent=1,
        stop={"step": 4},
        out=tmp_path / "tuned",
        progress=False,
    )
    assert analysis.best_config["lr"] == 0.1
    steps = [trial.step for trial in analysis.trials]
    assert max(steps) == 4 and min(steps) < 4


def test_ranks_that_find_no_room_in_their_trial_are_named(tmp_path: Path) -> None:
    text = "2 ranks take 2 CPU, and the trial holds {'CPU': 1.0}: tune.run(..., resources={'cpu': 2})"
    with pytest.raises(ConfigError, match=re.escape(text)):
        tune.run(
            TorchTrainer.as_trainable(loops.regression, num_workers=2),
            {"batch_size": 4, "epochs": 1},
            metric="loss",
            out=tmp_path / "tuned",
            progress=False,
        )


def test_a_trial_continues_from_the_state_of_another(tmp_path: Path) -> None:
    def loop(ctx: Any, config: dict[str, Any]) -> None:
        loops.regression(ctx, {"batch_size": 4, "epochs": 6} | config)

    analysis = tune.run(
        TorchTrainer.as_trainable(loop, num_workers=2),
        {"group": tune.uniform(0.0, 1.0)},
        num_samples=2,
        metric="loss",
        mode="min",
        resources={"cpu": 2},
        scheduler={"name": "pbt", "perturbation_period": 2, "quantile": 0.5},
        out=tmp_path / "tuned",
        progress=False,
    )
    assert [trial.last["epoch"] for trial in analysis.trials] == [5, 5]
    assert any("exploit" in str(trial.notes) for trial in analysis.trials), [t.notes for t in analysis.trials]
