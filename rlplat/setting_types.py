"""What a setting takes, in words: for complaints (`must be a number from 0 to 1`) and for `rlplat settings`."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin


@dataclass(frozen=True)
class Words:
    """In an annotation: what the type is called in messages."""

    text: str


def accepts_bool(annotation: Any) -> bool:
    """Whether true or false may stand somewhere in a value of this type."""
    if annotation is bool or annotation is Any or annotation is object:
        return True
    if get_origin(annotation) is Literal:
        return any(isinstance(choice, bool) for choice in get_args(annotation))
    parts = get_args(annotation)[:1] if get_origin(annotation) is typing.Annotated else get_args(annotation)
    return any(accepts_bool(part) for part in parts)


def member_type(annotation: Any) -> Any:
    """`V` of dict[str, V], also within a union."""
    options = get_args(annotation) if get_origin(annotation) is not dict else [annotation]
    return next((get_args(each)[1] for each in options if get_origin(each) is dict), None)


def takes(info: Any) -> str:
    """The words for a pydantic field: `a whole number from 1 to 1,000, or auto`."""
    text = _words(info.annotation, info.metadata)
    is_list = get_origin(info.annotation) in (list, tuple)
    default = info.get_default(call_default_factory=True) if is_list else None
    return f"{text}, such as {list(default)}" if default and isinstance(default, list | tuple) else text


def _words(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    metadata = list(_flat(metadata))
    named = [each.text for each in metadata if isinstance(each, Words)]
    if named:
        return named[-1]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return _words(parts[0], [*parts[1:], *metadata])
    if origin in (typing.Union, types.UnionType, Literal):
        return _either(_options(annotation, metadata))
    if annotation is bool:
        return "true or false"
    if annotation is int:
        return "a whole number" + _limits(metadata)
    if annotation is float:
        return "a number" + _limits(metadata)
    if annotation is type(None):
        return "null"
    if annotation is str:
        return "text"
    if origin is list:
        count = "one or more " if _minimum_length(metadata) else ""
        return f"a list of {count}{_plural(_words(parts[0]))}"
    if origin is tuple:
        return f"a list of {len(parts)} {_plural(_words(parts[0]))}"
    if origin is dict or hasattr(annotation, "model_fields"):
        return "settings by name, {name: value}"
    return "any value"


def _options(annotation: Any, metadata: Iterable[Any] = ()) -> list[str]:
    """What a union or a Literal offers, those within each other one after the other."""
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in parts]
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return [option for part in parts for option in _options(part, metadata)]
    return [_words(annotation, metadata)]


def _either(options: Iterable[str]) -> str:
    """`a, b or c`, each once; the empty text is not mentioned."""
    named = list(dict.fromkeys(option for option in options if option))
    return f"{', '.join(named[:-1])} or {named[-1]}" if len(named) > 1 else "".join(named)


def _flat(metadata: Iterable[Any]) -> Iterable[Any]:
    for each in metadata:
        inner = getattr(each, "metadata", None)  # a pydantic FieldInfo within an annotation
        yield from _flat(inner) if isinstance(inner, list) else [each]


def _limits(metadata: Iterable[Any]) -> str:
    found = {
        name: getattr(each, name)
        for each in metadata
        for name in ("ge", "gt", "le", "lt")
        if getattr(each, name, None) is not None
    }
    low, high = found.get("ge", found.get("gt")), found.get("le", found.get("lt"))
    if low is not None and high is not None and "gt" not in found and "lt" not in found:
        return f" from {_number(low)} to {_number(high)}"
    words = []
    if low is not None:
        words.append(f" above {_number(low)}" if "gt" in found else f" of at least {_number(low)}")
    if high is not None:
        words.append(f" below {_number(high)}" if "lt" in found else f" up to {_number(high)}")
    return " and".join(words)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _minimum_length(metadata: Iterable[Any]) -> int:
    return max((getattr(each, "min_length", None) or 0 for each in metadata), default=0)


def _plural(words: str) -> str:
    """`a whole number from 1` -> `whole numbers from 1`."""
    return words.removeprefix("a ").replace("number", "numbers", 1)
