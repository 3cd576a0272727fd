"""`ray.actor`."""

from rlplat import ActorHandle, exit_actor
