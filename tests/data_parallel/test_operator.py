"""Epoch by epoch: RaySGD's creator functions, its operator, and its methods."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplat.data_parallel import TorchTrainer
from rlplat.errors import CheckpointError, ConfigError
from tests.data_parallel import creators

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
