"""Epoch by epoch: RaySGD's creator functions, its operator, its methods; in trials of tune, which ASHA stops and PBT
copies. (In one file, so that they share a cluster.)"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplat import tune
from rlplat.data_parallel import TorchTrainer
from rlplat.data_parallel.failures import RanksLost
from rlplat.errors import CheckpointError, ConfigError
from tests.data_parallel import creators, loops

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("ranks_cluster")]


def trainer_of(batch: int, **settings: Any) -> TorchTrainer:
    return TorchTrainer(**creators.ALL, config={"lr": 0.1, "batch": batch}, **settings)


def test_an_epoch_and_a_validation_are_the_same_on_one_rank_and_on_two() -> None:
    found = []
    for num_workers in (1, 2):
        with trainer_of(8 // num_workers, num_workers=num_workers) as trainer:
            stats = [trainer.train(), trainer.train()]
            assert [one["epoch"] for one in stats] == [1, 2]
            validation = trainer.validate()
            assert stats[0]["num_samples"] == validation["num_samples"] == 45
            assert len(set(trainer.apply_all_workers(os.getpid))) == num_workers
            rates = trainer.apply_all_operators(lambda operator: operator.optimizer.param_groups[0]["lr"])
            assert rates == [0.025] * num_workers  # halved by the scheduler, twice
            found.append([stats[1]["train_loss"], validation["val_loss"], validation["val_accuracy"]])
            model = trainer.get_model()
            weights = trainer.state_dict()["models"][0]
            assert all(model.state_dict()[name].equal(value) for name, value in weights.items())
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_what_was_saved_continues_as_if_nothing_had_been(tmp_path: Path) -> None:
    with trainer_of(4, num_workers=2) as trainer:
        trainer.train()
        trainer.save(tmp_path / "saved")
        torch.save(trainer.state_dict(), tmp_path / "state.pt")
        expected = trainer.train()
        for load in (
            lambda: trainer.load(tmp_path / "saved"),
            lambda: trainer.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False)),
        ):
            load()
            assert trainer.train() == expected
        with pytest.raises(CheckpointError, match="no checkpoint in"):
            trainer.load(tmp_path / "elsewhere")
        with pytest.raises(
            CheckpointError, match=r"not the state of a TorchTrainer: .* takes what the trainer's state_dict"
        ):
            trainer.load_state_dict(trainer.get_model().state_dict())
    with pytest.raises(CheckpointError, match="is a checkpoint of a TorchTrainer with creators: give it"):
        TorchTrainer(loops.regression, out=tmp_path / "saved", resume=True).fit()


def test_a_rank_killed_in_an_epoch_has_it_begin_again(tmp_path: Path) -> None:
    stats = {}
    for name in ("with a kill", "without"):
        (tmp_path / "marker").unlink(missing_ok=True)
        if name == "without":
            (tmp_path / "marker").touch()
        config = {"lr": 0.1, "batch": 4, "marker": str(tmp_path / "marker")}
        with TorchTrainer(training_operator_cls=creators.Operator, config=config, num_workers=2) as trainer:
            stats[name] = [trainer.train(), trainer.train()]
            assert trainer.apply_all_operators(lambda operator: operator.num_seen)[0] == 12
    assert stats["with a kill"] == stats["without"]
    assert stats["without"][0]["twice"] == 2.0


def test_losses_count_until_there_is_a_new_state(tmp_path: Path) -> None:
    """In `validate()` as in `train()`; what `apply_all_operators` changed is a new state, and is not lost with a
    rank."""

    def set_rate(operator: Any) -> None:
        operator.optimizer.param_groups[0]["lr"] = 0.75

    def rate(operator: Any) -> float:
        if operator.world_rank == 1 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return operator.optimizer.param_groups[0]["lr"]  # type: ignore[no-any-return]

    marker = tmp_path / "marker"
    marker.touch()
    with trainer_of(4, num_workers=2, max_failures=1) as trainer:
        trainer.train()
        trainer.apply_all_operators(set_rate)
        marker.unlink()
        assert trainer.apply_all_operators(rate) == [0.75, 0.75]
        for is_lost in (False, True):
            pids = trainer.apply_all_workers(os.getpid)
            os.kill(pids[1], signal.SIGKILL)
            if is_lost:
                with pytest.raises(RanksLost):
                    trainer.validate()
            else:
                trainer.validate()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"model_creator": creators.returns_nothing},
            r"rank \d: model_creator \(returns_nothing\) returned None",
        ),
        (
            {"optimizer_creator": None},
            r"rank \d: a trainer with model_creator needs optimizer_creator as well",
        ),
        ({"model_creator": None}, "TorchTrainer takes a function"),
        ({"scheduler_step_freq": "day"}, "scheduler_step_freq must be one of epoch, batch, manual"),
    ],
)
def test_what_a_creator_lacks_is_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        TorchTrainer(**(creators.ALL | changes), config={"lr": 0.1, "batch": 4})


def test_each_form_says_which_methods_it_has() -> None:
    with pytest.raises(ConfigError, match="with creators: train"), trainer_of(4) as trainer:
        trainer.fit()
    with pytest.raises(ConfigError, match=r"has fit\(\)"):
        TorchTrainer(print).train()


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
        # synch: one of two copies at every boundary, whichever trial is faster
        scheduler={"name": "pbt", "perturbation_period": 2, "quantile": 0.5, "synch": True},
        out=tmp_path / "tuned",
        progress=False,
    )
    # A copy of a trial that has ended already has nothing left to train: its own last report stays.
    assert {5} <= {trial.last["epoch"] for trial in analysis.trials} <= {1, 3, 5}
    assert any("exploit" in str(trial.notes) for trial in analysis.trials), [t.notes for t in analysis.trials]
