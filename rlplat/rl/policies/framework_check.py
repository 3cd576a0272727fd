"""Frameworks: is one installed, can it do what the config asks (in the driver, without importing it), and where is an
algorithm's part that is written in it?

require_framework(config.framework, config.learner.num_learners)          # in an algorithm's preflight
network = in_framework("rlplat.algorithms.ppo:PPO", config.framework)(config, spec, seed)
"""

from __future__ import annotations

import importlib.util
from typing import Any

from rlplat.errors import ConfigError, MissingExtra
from rlplat.rl.class_path import load_class

PACKAGES = {"torch": ("torch", "torch"), "tf": ("tensorflow", "tf")}
"""Framework -> (package, extra)."""
GROUPING = ("torch",)
"""Frameworks whose learners form data-parallel groups."""
PARTS = {"torch": "{module}:Torch{name}", "tf": "{module}_tf:Tf{name}"}
"""Where an algorithm's network and loss are, of `module:name`: e.g. `TorchPPO` in ppo.py, `TfPPO` in ppo_tf.py."""


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


def in_framework(algorithm: str, framework: str) -> Any:
    """The class that computes for an algorithm ("pkg.mod:Name") in a framework, which it imports."""
    module, _, name = algorithm.partition(":")
    return load_class(PARTS[framework].format(module=module, name=name))
