"""State by declaration: what a checkpoint keeps of an object is named in its class.

    class CuriousLearner(PPOLearner):
        saved = {"counts": "counts"}                    # key in the state: attribute; what its bases name comes with it

    state = learner.get_state()                         # nested dicts of numpy arrays and JSON values, all copies
    learner.set_state(state)

How an attribute is kept follows from what it is: a generator of random numbers by its state, a torch module by its
weights, an object with `get_state` by what that returns, a dict by its values, an array by a copy, a number as one of
its type. A key that begins with `**` puts the part's own keys among these; a part that is None is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from rlplat.rl.class_path import load_class


class HasState(Protocol):
    """What a checkpoint keeps something of."""

    def get_state(self) -> Any: ...

    def set_state(self, state: Any) -> None: ...


class Saved:
    """A subclass writes `saved`."""

    saved: ClassVar[Mapping[str, str]] = {}

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for key, _, own in self._parts():
            state |= own.get_state() if key.startswith("**") else {key: state_of(own)}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """state: may hold more."""
        for key, name, own in self._parts():
            if key.startswith("**"):
                own.set_state(state)
            else:
                setattr(self, name, restored(own, state[key]))

    def _parts(self) -> Iterator[tuple[str, str, Any]]:
        """(key, attribute, its value), of the bases first."""
        for base in reversed(type(self).__mro__):
            for key, name in vars(base).get("saved", {}).items():
                own = getattr(self, name)
                if own is not None or not key.startswith("**"):
                    yield key, name, own


def state_of(own: Any) -> Any:
    """What a checkpoint keeps of this."""
    if isinstance(own, np.random.Generator):
        return own.bit_generator.state
    if isinstance(own, np.ndarray):
        return own.copy()
    if isinstance(own, dict):
        return {key: state_of(each) for key, each in own.items()}
    if _is_of_torch(own):
        return load_class("rlplat.rl.torch.weights:torch_state")(own)
    return own.get_state() if hasattr(own, "get_state") else own


def restored(own: Any, state: Any) -> Any:
    """What takes the place of `own`: itself where it takes a state, else a copy."""
    if isinstance(own, np.random.Generator):
        own.bit_generator.state = state
        return own
    if _is_of_torch(own):
        load_class("rlplat.rl.torch.weights:load_torch_state")(own, state)
        return own
    if hasattr(own, "set_state"):
        own.set_state(state)
        return own
    if isinstance(state, dict):
        inner = own if isinstance(own, dict) else {}
        return {key: restored(inner.get(key), each) for key, each in state.items()}
    if isinstance(own, (bool, int, float)):
        return type(own)(state)
    if isinstance(own, np.ndarray) or isinstance(state, np.ndarray):
        return np.array(state, own.dtype if isinstance(own, np.ndarray) else state.dtype)
    return state


def _is_of_torch(own: Any) -> bool:
    """A module or a generator, told without importing torch."""
    return hasattr(own, "state_dict") or hasattr(own, "manual_seed")
