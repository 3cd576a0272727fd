"""`ray.air`: the names that Train and Tune share."""

from rlplat.compat.ray import train as session
from rlplat.compat.ray.train import (
    Checkpoint,
    CheckpointConfig,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)
