"""Whether arguments fit a remote function, method or constructor: seen at `.remote()`, where the mistake is.

A call with positional arguments alone is checked by their number; only when that does not settle it (keywords, a
mistake) is the signature rebuilt and bound. It travels with an actor's handle, so any process can check.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import msgspec

_KINDS = [
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
]
_SELF_BOUND = (staticmethod, classmethod)


class Signature(msgspec.Struct, array_like=True, frozen=True):
    least: int
    """So many positional arguments, and no keywords, always fit ..."""
    most: int
    """... up to so many; less than `least`: keywords are required as well."""
    parameters: tuple[tuple[str, int, bool], ...]
    """Name, kind (`inspect.Parameter.kind`), and whether it has a default."""

    def check(self, what: str, args: tuple, kwargs: dict[str, Any]) -> None:
        """TypeError, with the signature, unless the arguments fit."""
        signature = _rebuilt(self.parameters)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{what}{signature}: {error}") from None


ANYTHING = Signature(0, sys.maxsize, (("args", 2, False), ("kwargs", 4, False)))
"""Of what Python cannot inspect (C code): it refuses its arguments itself, when it runs."""


def signature_of(target: Callable[..., Any]) -> Signature:
    """Of a function or a class; a decorated one has that of its wrapper, which is what is called."""
    try:
        parameters = list(inspect.signature(target, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):
        return ANYTHING
    return _described(parameters)


def method_signature(actor_class: type, name: str) -> Signature:
    """Of a method, as its callers see it: without `self`."""
    found = inspect.getattr_static(actor_class, name, None)
    if isinstance(found, _SELF_BOUND):
        return signature_of(getattr(actor_class, name))
    if not inspect.isfunction(found):  # a descriptor, an object that can be called: who knows what it binds
        return ANYTHING
    parameters = list(inspect.signature(found, follow_wrapped=False).parameters.values())
    if not parameters:
        return ANYTHING
    return _described(parameters[1:] if parameters[0].kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD else parameters)


def _described(parameters: list[inspect.Parameter]) -> Signature:
    kinds = inspect.Parameter
    positional = [each for each in parameters if each.kind <= kinds.POSITIONAL_OR_KEYWORD]
    least = sum(each.default is kinds.empty for each in positional)
    most = sys.maxsize if any(each.kind == kinds.VAR_POSITIONAL for each in parameters) else len(positional)
    if any(each.kind == kinds.KEYWORD_ONLY and each.default is kinds.empty for each in parameters):
        most = -1
    return Signature(
        least,
        most,
        tuple((each.name, int(each.kind), each.default is not kinds.empty) for each in parameters),
    )


@functools.lru_cache(maxsize=1000)
def _rebuilt(parameters: tuple[tuple[str, int, bool], ...]) -> inspect.Signature:
    return inspect.Signature(
        [
            inspect.Parameter(name, _KINDS[kind], default=_DEFAULT if has_default else inspect.Parameter.empty)
            for name, kind, has_default in parameters
        ]
    )


class _Default:
    def __repr__(self) -> str:
        return "..."


_DEFAULT = _Default()
