"""The exact state of an environment, without looking into it: where its random generator stood before the last reset,
and the actions since. Played again, they must lead to the same observation, bit for bit.

    start = guard.episode_state()                       # and the actions since the episode began
    obs, problem = guard.restore([start], [actions], [expected_obs])

A problem is a sentence: the environment keeps something that neither its generator nor its reset() decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

NATIVE_FIELDS = {"gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": ("state", "steps", "prev_done")}
"""What a vector environment in plain numpy remembers beside its random generator, by entry point."""


def generator_state(env: Any) -> dict[str, Any]:
    """Of `np_random`, where the environment has one, and under "spaces" of the spaces, which it may draw from
    (`self.observation_space.sample()`)."""
    generator = _generator(env)
    state = {} if generator is None else dict(generator.bit_generator.state)
    return {**state, "spaces": [dict(space.np_random.bit_generator.state) for space in _drawn_from(env)]}


def seed_spaces(env: Any, seed: int) -> None:
    """`reset(seed=seed)` seeds `np_random` alone; what the environment draws from its spaces is to repeat as well."""
    for i, space in enumerate(_drawn_from(env)):
        space.seed(int(np.random.SeedSequence(seed, spawn_key=(i,)).generate_state(1)[0]))


def _drawn_from(env: Any) -> Iterator[Any]:
    """The leaves of its spaces, of those inside all wrappers too, each once."""
    seen = set[int]()
    layers = (env, getattr(env, "unwrapped", env))
    waiting = [getattr(layer, f"{which}_space", None) for layer in layers for which in ("observation", "action")]
    while waiting:
        space = waiting.pop()
        parts = getattr(space, "spaces", None)
        if parts:
            waiting += parts.values() if hasattr(parts, "values") else parts
        elif id(space) not in seen and hasattr(space, "np_random") and hasattr(space, "seed"):
            seen.add(id(space))
            yield space


def is_native_saved(entry_point: Any) -> bool:
    """Whether the state of this vector implementation can be read and written."""
    return entry_point in NATIVE_FIELDS


def native_state(raw: Any) -> dict[str, Any]:
    """Of a vector environment in NATIVE_FIELDS."""
    fields = {name: np.array(getattr(raw.unwrapped, name)) for name in NATIVE_FIELDS[_entry_point(raw)]}
    generator = generator_state(raw)
    del generator["spaces"]  # which these never draw from, and nobody seeds
    return {"fields": fields, "generator": generator}


def set_native_state(raw: Any, state: dict[str, Any]) -> None:
    for name, array in state["fields"].items():
        setattr(raw.unwrapped, name, np.array(array))
    set_generator(raw, state["generator"])


def why_not_saved(raw: Any, name: str, keeps_state: bool) -> str:
    """Why the state of a vector environment cannot be had, or the empty string."""
    if not keeps_state:
        return f"the states of the environments ({name}) are not kept: make_vector_env(..., keep_state=True) keeps them"
    if hasattr(raw, "of_all") or is_native_saved(_entry_point(raw)):
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
    """To what `generator_state` gave; None, and what older states lack, leaves the environment as it is."""
    own = dict(state or {})
    spaces = own.pop("spaces", [])
    generator = _generator(env)
    if generator is not None and own:
        generator.bit_generator.state = own
    for space, its in zip(_drawn_from(env), spaces, strict=False):
        space.np_random.bit_generator.state = dict(its)
