"""`OnPolicy`: what algorithms have alike whose rollouts are learnt from once, with values (PPO, A3C, IMPALA)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from rlplat.rl.algorithm_config import Config
from rlplat.rl.learning.backend import Computation
from rlplat.rl.multi_agent.policy_map import policy_specs
from rlplat.rl.normalization import require_normalizable
from rlplat.rl.policies.make import policy_for
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.sampling.returns import LearningRewards


class OnPolicy(Algorithm[Config]):
    """A subclass writes what `Algorithm` asks for, and `preflight`."""

    make_policy = staticmethod(policy_for)

    def preflight(self) -> Any:
        """In the driver, before any actor starts: UsageError unless the environment is sound, and policies for its
        spaces can be built and learnt -> the spaces, or a `MultiAgentPlan`."""
        raise NotImplementedError

    @cached_property
    def looked_at(self) -> Any:
        """What `preflight` returned, which runs once."""
        return self.preflight()

    def preload(self) -> tuple[str, ...]:
        """Without torch, where numpy or TensorFlow computes."""
        if not self.nets:
            return super().preload()
        settings = self.config.model_dump()
        return self.computation.preload(self.config, lambda: policy_specs(settings, self.looked_at))

    @property
    def not_saved(self) -> tuple[str, ...]:
        return self.workers.not_saved()


def require_learnable(
    config: Any, specs: Sequence[PolicySpec], computation: Computation | None = None
) -> None:
    """UsageError where policies of these specs cannot be learnt as the config asks; computation: of an algorithm that
    computes with others than torch, too."""
    for spec in specs:
        if computation is not None:
            computation.require(config, spec)
        if config.normalize_observations:
            require_normalizable(spec.obs, images=config.framework == "torch")
    LearningRewards(config)  # refuses settings that exclude each other
