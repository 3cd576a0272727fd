"""The GPUs of a trial are those of its ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat import tune
from rlplat.errors import ConfigError
from tests.data_parallel.gpu_program import BookedTrainer

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("cluster_of_two_gpus")]


@pytest.fixture(scope="module")
def cluster_of_two_gpus() -> Iterator[None]:
    rlplat.init(num_cpus=4, num_gpus=2, preload=["tests.data_parallel.gpu_program"], log_to_driver=False)
    yield
    rlplat.shutdown()


def loop(ctx: Any, config: dict[str, Any]) -> None:
    (gpu,) = rlplat.get_runtime_context().gpu_ids
    ctx.report({f"gpu_{ctx.rank}": gpu, "loss": config["x"]})


def run(trainable: Any, out: Path, **resources: float) -> Any:
    space = {"x": tune.grid([1.0, 2.0])}
    return tune.run(trainable, space, metric="loss", mode="min", resources=resources, out=out, progress=False)


def test_each_rank_has_one_and_the_trial_none(tmp_path: Path) -> None:
    trainable = BookedTrainer.as_trainable(loop, num_workers=2, use_gpu=True)
    found = run(trainable, tmp_path / "out", cpu=2, gpu=2)
    assert found.best_config == {"x": 1.0}
    assert {trial.state for trial in found.trials} == {"complete"}
    text = "the trial holds {'CPU': 2.0, 'GPU': 1.0}: tune.run(..., resources={'cpu': 2, 'gpu': 2})"
    with pytest.raises(ConfigError, match=re.escape(text)):
        run(trainable, tmp_path / "less", cpu=2, gpu=1)


def test_those_of_a_function_of_the_users_own_are_its_own(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> dict[str, Any]:
        BookedTrainer(loop, config=config, num_workers=1, use_gpu=True).fit()
        return {"loss": 0.0}

    with pytest.raises(ConfigError, match="its own process holds those of its resources"):
        run(trial, tmp_path / "own", cpu=2, gpu=1)
