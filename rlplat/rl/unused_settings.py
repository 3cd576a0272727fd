"""Settings that every algorithm has and one does not use: declared once, in the algorithm's config class.

    class DQNConfig(AlgorithmConfig):
        unused = {
            "learner.num_learners": Unused("dqn has one learner", is_error=True),
            "policy.squash_actions": Unused("actions are discrete"),
        }

Where such a setting has another value than its default, that is an error, or one line at the start of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any


@dataclass(frozen=True)
class Unused:
    why: str
    is_error: bool = False
    harmless: tuple[Any, ...] = ()
    """Values besides the default that ask for nothing."""


DISCRETE = dict.fromkeys(
    ("policy.squash_actions", "policy.rescale_actions", "policy.initial_log_std"), Unused("actions are discrete")
)
"""What an algorithm of discrete actions does not use."""
NO_SDE = Unused("state-dependent exploration is of ppo, a3c, impala and sac", is_error=True)
"""policy.use_sde, of all others."""


def refusal(config: Any) -> str:
    """What to refuse in a config of an algorithm, or the empty string."""
    return "; ".join(
        f"{key}={value} has no effect: {unused.why}" for key, value, unused in _given(config) if unused.is_error
    )


def announcement(config: Any, algo: str) -> str:
    """One line about the settings that the user changed and the algorithm ignores, or the empty string."""
    ignored = [f"{key} ({unused.why})" for key, _, unused in _given(config) if not unused.is_error]
    return f"{algo} does not use {', '.join(ignored)}" if ignored else ""


def _given(config: Any) -> Iterator[tuple[str, Any, Unused]]:
    unused: Mapping[str, Unused] = getattr(config, "unused", {})
    for key, each in unused.items():
        *path, name = key.split(".")
        owner = reduce(getattr, path, config)
        value = getattr(owner, name)
        default = type(owner).model_fields[name].get_default(call_default_factory=True)
        if value != default and value not in each.harmless:
            yield key, value, each
