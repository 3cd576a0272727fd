"""One function on every rank: the same losses however many ranks there are, and messages that name the rank."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from rlplat import checkpoints
from rlplat.data_parallel import TorchTrainer
from rlplat.errors import CheckpointError, ConfigError, InfeasibleResources, NonFiniteError
from tests.data_parallel import loops

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("ranks_cluster")]

TOLERANCE = 1e-5
"""Relative; of the losses of 1 rank and of n ranks with the same samples in each step (docs/data-parallel.md)."""


def losses(batch_size: int, **settings: Any) -> list[float]:
    config = {"batch_size": batch_size, "epochs": 3}
    return [one["loss"] for one in TorchTrainer(loops.regression, config, **settings).fit().history]


@pytest.fixture(scope="module")
def alone(ranks_cluster: None) -> list[float]:
    return losses(8)


@pytest.mark.parametrize(
    ("batch_size", "settings"),
    [
        (4, {"num_workers": 2}),
        (2, {"num_workers": 2, "accumulate": 2}),
        (4, {"num_workers": 2, "sharding": "full"}),
        (8, {"num_workers": 1, "deterministic": True}),
    ],
)
def test_losses_do_not_depend_on_the_number_of_ranks(
    alone: list[float], batch_size: int, settings: dict[str, Any]
) -> None:
    assert losses(batch_size, **settings) == pytest.approx(alone, rel=TOLERANCE)


def test_lower_precision_clipping_and_compilation(alone: list[float]) -> None:
    bfloat16 = losses(8, precision="bfloat16")
    assert bfloat16 == pytest.approx(alone, rel=0.05)
    assert bfloat16 != pytest.approx(alone, rel=1e-4)
    float16 = losses(8, precision="float16")  # the scaler omits steps until it has found its scale
    assert float16[-1] < 0.6 * float16[0]
    assert losses(8, max_gradient_norm=0.01)[-1] > 1.5 * alone[-1]


def test_each_epoch_takes_each_sample_once() -> None:
    config = {"batch_size": 5, "epochs": 2}
    result = TorchTrainer(loops.regression, config, num_workers=1).fit()
    seen = ast.literal_eval(result.metrics["seen"])
    assert sorted(seen) == sorted([*range(loops.NUM_SAMPLES)] * 2)
    assert seen[: loops.NUM_SAMPLES] != seen[loops.NUM_SAMPLES :]


@pytest.mark.parametrize(("num_workers", "number"), [(1, 3), (2, 4)])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(tmp_path: Path, num_workers: int, number: int) -> None:
    """From a checkpoint within an epoch, with dropout, momentum and a schedule."""
    config = {"batch_size": 4, "epochs": 2, "dropout": 0.5, "every": 2}
    whole = TorchTrainer(loops.regression, config, num_workers=num_workers, out=tmp_path, keep=100).fit()
    directory = tmp_path / "checkpoints"
    names = [directory / f"step_{number}" for number in range(1, len(whole.history) + 1)]
    middle = checkpoints.load(names[number - 1])
    assert middle.state["loaders"][0]["position"] > 0
    for name in names[number:]:
        for file in name.iterdir():
            file.unlink()
        name.rmdir()
    resumed = TorchTrainer(loops.regression, config, num_workers=num_workers, out=tmp_path, resume=True).fit()
    assert len(resumed.history) == len(whole.history)
    weights = whole.state_dict()
    assert all(weights[name].equal(value) for name, value in resumed.state_dict().items())


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (
            loops.unused,
            ConfigError,
            r"rank \d: 2 parameters got no gradient in the first step: idle.weight, idle.bias",
        ),
        (loops.not_a_number, NonFiniteError, r"rank 1: the loss of step 1 is nan: a lower learning rate"),
        (
            loops.prepares_nothing,
            ConfigError,
            r"rank \d: ctx.prepare was given None: what made it returned nothing",
        ),
        (
            loops.too_little_data,
            ConfigError,
            r"rank \d: the data set has 1 samples for 2 ranks: fewer num_workers",
        ),
        (
            loops.unequal,
            ConfigError,
            r"rank 1 returned from its function after 2 steps, and rank 0 waited in vain in",
        ),
    ],
)
def test_what_goes_wrong_in_a_rank_is_named(function: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        TorchTrainer(function, num_workers=2, hang_timeout_s=2).fit()


def test_a_users_error_keeps_its_class_and_names_the_rank(tmp_path: Path) -> None:
    config = {"batch_size": 4, "epochs": 1, "fault": (2, "raise"), "marker": str(tmp_path / "marker")}
    with pytest.raises(ValueError, match="rank 1 of 2, step 3"):
        TorchTrainer(loops.regression, config, num_workers=2).fit()


def test_ranks_that_are_done_run_what_is_registered_for_their_end(tmp_path: Path) -> None:
    TorchTrainer(loops.registers, {"folder": str(tmp_path)}, num_workers=2).fit()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "1"]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    TorchTrainer(loops.regression, {"batch_size": 8, "epochs": 1}, out=tmp_path).fit()
    with pytest.raises(ConfigError, match="has checkpoints of a run: resume=True"):
        TorchTrainer(loops.another_model, out=tmp_path).fit()
    with pytest.raises(CheckpointError, match="another model than Linear: Missing key"):
        TorchTrainer(loops.another_model, out=tmp_path, resume=True).fit()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"num_workers": 0}, ConfigError, "bad value for 'num_workers'"),
        ({"num_workers": (3, 2)}, ConfigError, "bad value for 'num_workers'"),
        ({"seed": -1}, ConfigError, "bad value for 'seed'"),
        ({"seed": 0.5}, ConfigError, "bad value for 'seed'"),
        ({"use_gpu": True, "num_workers": 2}, InfeasibleResources, "take 2 GPU, and the cluster has 0"),
        ({"precision": "fp8"}, ConfigError, "bad value for 'precision'"),
        ({"precison": "float32"}, ConfigError, "unknown key 'precison'"),
        ({"resume": True}, ConfigError, "resume=True needs out="),
    ],
)
def test_settings_are_checked_first(settings: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        TorchTrainer(loops.regression, {}, **settings).fit()
