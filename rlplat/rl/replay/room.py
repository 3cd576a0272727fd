"""Whether a replay is large enough for what comes at a time, and the machine for the replay."""

from __future__ import annotations

from rlplat.errors import ConfigError
from rlplat.rl.replay.buffer import ReplayShape, require_memory
from rlplat.rl.spaces import ObsSpec
from rlplat.rl.spread import is_one_machine


def require_room(shape: ReplayShape, obs: ObsSpec | dict[str, ObsSpec], rollout_length: int) -> None:
    """In the driver, before any actor starts: ConfigError where `replay_capacity` is too small for a fragment of
    `rollout_length` steps, or for a sequence, or too large for this machine."""
    lane_capacity = shape.lane_capacity
    needed = shape.burn_in + 2 * shape.unroll + shape.n_step + 2
    # Every step may be cut off, which brings a final observation each, and a gap may come before.
    needed = max(needed, 2 * rollout_length + 1)
    if lane_capacity < needed:
        raise ConfigError(
            f"replay_capacity={shape.capacity} leaves {lane_capacity} steps for each of {shape.num_lanes} "
            f"environments, and a fragment of rollout_length={rollout_length}, or a sequence, needs {needed}: raise "
            "replay_capacity"
        )
    if is_one_machine():  # else the actor that will hold it looks
        require_memory(shape, obs)
