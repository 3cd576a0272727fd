"""`make_tensor_envs`: a tensor environment by name, as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlplat.errors import UsageError
from rlplat.rl.envs.copies import Copies
from rlplat.rl.envs.make import make_single_env, other_number
from rlplat.rl.envs.names import resolve_env
from rlplat.rl.envs.tensors.env import TensorEnvs


def make_tensor_envs(env: Any, num_envs: int, env_kwargs: Mapping[str, Any], copies: Copies = Copies()) -> TensorEnvs:  # noqa: B008
    """env: as `make_vector_env` takes it."""
    source = resolve_env(env)
    made = TensorEnvs(make_single_env(source, dict(env_kwargs), copies, num_envs=num_envs), source.name)
    if made.num_envs != num_envs:
        raise UsageError(other_number(source.name, made.num_envs, num_envs))
    return made
