"""In the driver, without importing a framework: is it installed, and can it do what the config asks?

require_framework(config.framework, config.learner.num_learners)          # in an algorithm's preflight
"""

from __future__ import annotations

import importlib.util

from rlplat.errors import ConfigError, MissingExtra

PACKAGES = {"torch": ("torch", "torch"), "tf": ("tensorflow", "tf")}
"""Framework -> (package, extra)."""
GROUPING = ("torch",)
"""Frameworks whose learners form data-parallel groups."""


def require_torch(framework: str, algo: str) -> None:
    """ConfigError for another framework than the one that an algorithm computes with, MissingExtra without it."""
    if framework != "torch":
        raise ConfigError(f"{algo} computes with torch: omit framework={framework}")
    require_framework(framework)


def require_framework(framework: str, num_learners: int = 1) -> None:
    """Raises MissingExtra, or ConfigError for a group of learners where there are none."""
    package, extra = PACKAGES[framework]
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(package, extra, f"framework={framework}")
    if num_learners > 1 and framework not in GROUPING:
        raise ConfigError(
            f"learner.num_learners={num_learners} needs framework=torch (gradients are averaged by torch.distributed); "
            f"with framework={framework} set it to 1"
        )
