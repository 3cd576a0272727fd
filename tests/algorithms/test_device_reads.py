"""How often learners wait for their device: a GPU is idle while Python takes a number from it, so none is taken between
the gradient steps of a round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.overrides import TorchFunctionMode

import rlplat
from rlplat.rl.learning.parameter_server import ParameterServer
from tests.algorithms import test_dqn_learner as of_dqn
from tests.algorithms import test_ppo_learner as of_ppo
from tests.rl.specimens import make_spec


class Reads(TorchFunctionMode):
    """Within it, `count` is how often a number was taken out of a tensor: by name, or by what depends on one."""

    NAMES = frozenset(
        "item tolist numpy cpu nonzero masked_select equal __bool__ __float__ __int__ __index__ __array__".split()
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        by_mask = name == "__getitem__" and getattr(args[1], "dtype", None) == torch.bool
        self.count += name in self.NAMES or by_mask
        return function(*args, **(kwargs or {}))


@pytest.fixture
def parameter_server() -> Iterator[Any]:
    rlplat.init(backend="inproc")
    yield rlplat.remote(ParameterServer).remote()
    rlplat.shutdown()


@pytest.mark.parametrize(
    "spec",
    [of_ppo.VECTOR, of_ppo.BOX_SPEC, of_ppo.IMAGE_SPEC, make_spec(action=of_ppo.TWO, core="gru")],
    ids=["vector", "box", "image", "gru"],
)
def test_ppo_reads_once_however_many_gradient_steps_a_round_has(parameter_server: Any, spec: Any) -> None:
    learner = of_ppo.make_learner(parameter_server, spec)
    batch = of_ppo.make_batch(spec)

    def reads(num_epochs: int) -> int:
        learner.config = learner.config.model_copy(update={"num_epochs": num_epochs})
        with Reads() as found:
            metrics = learner.update(batch).metrics
        assert metrics["learner/epochs"] == num_epochs and np.isfinite(metrics["learner/gradient_norm"])
        return found.count

    assert 0 < reads(1) == reads(5)


@pytest.mark.parametrize("case", ["plain", "images", "quantiles", "normalised images"])
def test_dqn_reads_once_however_many_gradient_steps_a_round_has(parameter_server: Any, case: str) -> None:
    spaces, settings = of_dqn.CASES[case]

    def reads(env_steps_per_update: int) -> int:
        learner = of_dqn.make_learner(
            parameter_server, spaces, **settings, target_period=3, env_steps_per_update=env_steps_per_update
        )
        learner.update(of_dqn.make_batch(spaces))
        with Reads() as found:
            metrics = learner.update(of_dqn.make_batch(spaces, seed=1)).metrics
        assert metrics["learner/updates"] >= 64 // env_steps_per_update
        return found.count

    assert 0 < reads(32) == reads(8)
