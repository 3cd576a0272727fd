"""The section `multi_agent` of a config, for the algorithms that learn with several agents (PPO, DQN).

class PPOConfig(AlgorithmConfig):
    multi_agent: MultiAgentConfig = Field(default_factory=MultiAgentConfig)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rlplat.rl.user_code import located, renamed
from rlplat.section import Count, Section


def _with_names_located(policy: dict[str, Any]) -> dict[str, Any]:
    located_in: dict[str, Any] = renamed({"policy": policy}, located)["policy"]
    return located_in


class AgentPolicyConfig(Section):
    """One policy."""

    policy: Annotated[dict[str, Any], AfterValidator(_with_names_located)] = Field(default_factory=dict)
    """What differs from the run's `policy` section, e.g. {hidden_sizes: [128]}."""
    trained: bool = True
    """false: keeps its first, nearly uniform weights, or those that self_play gives it."""


class SelfPlayConfig(Section):
    """A policy that plays with earlier weights of the one that is trained."""

    opponent: str
    """The policy that gets snapshots; it is not trained."""
    learner: str = ""
    """The policy whose snapshots these are; may be left out where only one is trained."""
    snapshot_period: Count = 10_000
    """Env steps between snapshots."""
    pool: int = Field(default=10, ge=1, le=10_000)
    """Snapshots that are kept; the oldest goes."""
    sampling: Literal["latest", "uniform"] = "uniform"
    """Which snapshot an opponent plays a rollout fragment with."""
    swap_sides: bool = True
    """In every second copy of the environment the agents change places, so that the learner plays all sides."""


class MultiAgentConfig(Section):
    """Which policy decides for which agent (PettingZoo environments; ignored for others)."""

    example = {"mapping": {"adversary_*": "adversary"}}

    policies: dict[str, AgentPolicyConfig] = Field(default_factory=dict)
    """By name; empty: those that `mapping` names, all trained."""
    mapping: dict[str, str] = Field(default_factory=dict)
    """Agent, or pattern such as adversary_*, -> policy; exact names first, then patterns in their order. Empty: agents
    with equal spaces share one policy."""
    self_play: SelfPlayConfig | None = None
    """Frozen opponents from snapshots; null: none."""
    episode_return: Literal["mean", "sum"] = "mean"
    """What `episode_return_mean` is of a game: the mean, or the sum, over the agents of trained policies."""
