"""The settings of algorithms that learn from recorded episodes (BC, CQL)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, model_validator

from rlplat.errors import ConfigError
from rlplat.paths import user_path
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.offline.dataset import read_manifest
from rlplat.rl.unused_settings import Unused
from rlplat.rl.user_code import find_code
from rlplat.section import Count

_NO_ENV = "no environment is stepped to learn"
NOT_SAMPLED: Mapping[str, Unused] = {
    "learner.backend": Unused("the learner computes with torch", is_error=True, harmless=("torch",)),
    "learner.num_learners": Unused("there is one learner", is_error=True),
    "policy.core": Unused("recorded steps are learnt from one by one", is_error=True),
    "stop.episode_return_mean": Unused("no episodes are played to learn: use stop.env_steps", is_error=True),
    "vectorization": Unused(_NO_ENV),
    "num_envs_per_worker": Unused(_NO_ENV),
    "random_start_steps": Unused(_NO_ENV),
    "max_worker_restarts": Unused(_NO_ENV),
    "on_env_error": Unused(_NO_ENV),
}
"""Of `AlgorithmConfig.unused`: what has no meaning without rollout workers."""


class DataConfig(AlgorithmConfig):
    """Common to algorithms that learn from recorded episodes. An env step is a recorded one that was learnt from, each
    time that it is: `batch_size` for a gradient step. `stop.env_steps`, schedules and evaluations count these."""

    unused: ClassVar[Mapping[str, Unused]] = NOT_SAMPLED

    data: Annotated[str, AfterValidator(lambda data: str(user_path(data)) if data else data)] = Field(
        min_length=1
    )
    """Directory of the recorded episodes (rlplat record); env may be omitted, and is then that of the data."""
    num_rollout_workers: int = Field(default=0, ge=0, le=10_000)
    """No environment is stepped to learn. 0: everything in this process; 1: the learner in one of its own, so that it
    goes on during evaluations."""
    updates_per_round: Count = 100
    """Gradient steps before metrics are written and weights published."""

    @model_validator(mode="before")
    @classmethod
    def _env_of_data(cls, values: Any) -> Any:
        if isinstance(values, dict) and "env" not in values and isinstance(values.get("data"), str):
            manifest = read_manifest(values["data"])
            if not manifest.env:
                raise ConfigError(f"data={values['data']} names no environment: set env (--env NAME)")
            named = {"env": manifest.env, "env_kwargs": manifest.env_kwargs}
            found, notes = find_code(named, manifest.source.get("code", {}), user_path(values["data"]))
            for note in notes:
                logging.getLogger("rlplat.code").warning("warning: %s", note)
            return {**found, **values}
        return values
