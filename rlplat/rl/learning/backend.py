"""What computes an algorithm's updates (`learner.backend`, `framework`), and where the part that is written in it is.

network = in_framework("rlplat.algorithms.ppo:PPO", learner_backend(config, spec))(config, spec, seed)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlplat.errors import ConfigError
from rlplat.rl.class_path import load_class
from rlplat.rl.envs.names import env_family
from rlplat.rl.policies.framework_check import require_framework
from rlplat.rl.policies.spec import PolicySpec

PARTS = {
    "torch": "{package}.{module}:Torch{name}",
    "tf": "{package}.other_frameworks.{module}_tf:Tf{name}",
    "numpy": "{package}.other_frameworks.{module}_numpy:Numpy{name}",
}
"""Where an algorithm's network and loss are, of `package.module:name`: e.g. `TorchPPO` in ppo.py."""


def in_framework(algorithm: str, framework: str) -> Any:
    """The class that computes for an algorithm ("pkg.mod:Name") in a framework, which it imports."""
    path, _, name = algorithm.partition(":")
    package, _, module = path.rpartition(".")
    return load_class(PARTS[framework].format(package=package, module=module, name=name))


def learner_backend(config: Any, spec: PolicySpec) -> str:
    """torch, tf or numpy: what is to compute the updates of a policy; ConfigError where `learner.backend` cannot."""
    wanted = config.learner.backend
    if wanted == "torch" and config.framework != "torch":
        raise ConfigError(
            f"learner.backend=torch, but framework={config.framework}: leave learner.backend at auto"
        )
    reason = why_not_numpy(config, spec)
    if wanted == "numpy" and reason:
        raise ConfigError(
            "learner.backend=numpy learns plain MLPs on the CPU (one vector in, one categorical or Gaussian head out, "
            f"no core, no class of your own), but {reason}: leave learner.backend at auto"
        )
    return str(config.framework) if wanted == "torch" or reason else "numpy"


def require_backend(config: Any, spec: PolicySpec) -> None:
    """In the driver, before any actor starts: ConfigError or MissingExtra where the updates of this policy cannot be
    computed as the config asks."""
    if (framework := learner_backend(config, spec)) != "numpy":
        require_framework(framework, config.learner.num_learners)


def note(config: Any, specs: Sequence[PolicySpec]) -> str:
    """For a run's log: what computes its updates, and where it was free to, why not numpy; specs: its policies'."""
    backends = sorted({learner_backend(config, spec) for spec in specs})
    reasons = sorted({reason for spec in specs if (reason := why_not_numpy(config, spec))})
    why = f": {'; '.join(reasons)}" if reasons and config.learner.backend == "auto" else ""
    return f"the learner computes with {' and '.join(backends)}{why}"


def why_not_numpy(config: Any, spec: PolicySpec) -> str:
    """What the numpy learner cannot do, or the empty string."""
    learner = config.learner
    if config.framework != "torch":
        return f"framework is {config.framework}"
    if not spec.is_plain_mlp:
        return "the policy is no plain MLP"
    if learner.device == "cuda":
        return "learner.device is cuda"
    if learner.precision == "bfloat16":
        return "learner.precision is bfloat16"
    if learner.num_learners > 1:
        return f"learner.num_learners is {learner.num_learners}"
    if learner.num_threads > 1:
        return f"learner.num_threads is {learner.num_threads}"
    return ""


def preload(config: Any, specs: Callable[[], Sequence[PolicySpec]]) -> tuple[str, ...]:
    """What processes import at their start: torch where it is computed with. specs: of the policies, as the environment
    wants them; called where that decides."""
    if config.framework != "torch":
        return ()
    if config.learner.backend == "torch" or env_family(config.env) == "atari":
        return ("torch",)
    return () if all(learner_backend(config, spec) == "numpy" for spec in specs()) else ("torch",)
