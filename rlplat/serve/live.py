"""What the controller keeps of a deployment that runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlplat.serve.autoscale import Autoscaler
from rlplat.serve.deployments import Part


@dataclass
class Version:
    part: Part
    is_ingress: bool
    user_config: Any
    """The newest one: of its options, or given to `reconfigure` since."""
    scaler: Autoscaler | None


@dataclass
class Change:
    """A user_config that the replicas of a deployment were given."""

    config: Any
    ref: Any
    """Of it: it is pickled once for all of them."""
    before: dict[int, Any]
    """The last that all took, by version."""
    waiting: list[str] = field(default_factory=list)
    """Replicas that have not answered."""
    refused: str = ""
    """By which replica, and why."""
    has_lost: bool = False
    """A replica died before it answered, and none has started with it since: it may be what kills them."""


@dataclass
class Live:
    """What the controller keeps of a deployment."""

    versions: dict[int, Version] = field(default_factory=dict)
    failure: str = ""
    """Why the last version did not start."""
    change: Change | None = None
    """The newest."""


@dataclass
class Check:
    """Of a replica's health."""

    due: float
    """When it is asked, or, where it was, must have answered."""
    is_asked: bool = False
    failures: int = 0
    """In a row."""
