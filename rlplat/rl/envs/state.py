"""The exact state of an environment, without looking into it: where its random generator stood before the last reset,
and the actions since. Played again, they must lead to the same observation, bit for bit.

    start = guard.episode_state()                       # and the actions since the episode began
    obs, problem = replay_episode(guard, start, actions, expected_obs)

A problem is a sentence: the environment keeps something that neither its generator nor its reset() decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    pass

NATIVE_FIELDS = {
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": ("state", "steps", "prev_done"),
}
"""What a vector environment in plain numpy remembers beside its random generator, by entry point."""


def generator_state(env: Any) -> dict[str, Any] | None:
    """Of `np_random`, or None where the environment has none."""
    generator = _generator(env)
    return None if generator is None else dict(generator.bit_generator.state)


def is_native_saved(entry_point: Any) -> bool:
    """Whether the state of this vector implementation can be read and written."""
    return entry_point in NATIVE_FIELDS


def native_state(raw: Any) -> dict[str, Any]:
    """Of a vector environment in NATIVE_FIELDS."""
    fields = {name: np.array(getattr(raw.unwrapped, name)) for name in NATIVE_FIELDS[_entry_point(raw)]}
    return {"fields": fields, "generator": generator_state(raw)}


def set_native_state(raw: Any, state: dict[str, Any]) -> None:
    for name, array in state["fields"].items():
        setattr(raw.unwrapped, name, np.array(array))
    set_generator(raw, state["generator"])


def why_not_saved(raw: Any, name: str, keeps_state: bool) -> str:
    """Why the state of a vector environment cannot be had, or the empty string."""
    if not keeps_state:
        return f"the states of the environments ({name}) are not kept: make_vector_env(..., keep_state=True) keeps them"
    if hasattr(raw, "episode_states") or is_native_saved(_entry_point(raw)):
        return ""
    who = "ale-py's vector environment" if hasattr(raw, "ale") else "its vector implementation"
    return f"the states of the environments ({name}): {who} gives no access to them, so new episodes begin"


def _entry_point(raw: Any) -> str:
    """ "module:Class" of what is inside the wrappers."""
    kind = type(getattr(raw, "unwrapped", raw))
    return f"{kind.__module__}:{kind.__qualname__}"


def _generator(env: Any) -> np.random.Generator | None:
    generator = getattr(getattr(env, "unwrapped", env), "np_random", None)
    return generator if isinstance(generator, np.random.Generator) else None


def set_generator(env: Any, state: dict[str, Any] | None) -> None:
    generator = _generator(env)
    if generator is not None and state is not None:
        generator.bit_generator.state = state
