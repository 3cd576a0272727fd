"""cloudpickle, and what it leaves out: exceptions as they were raised, cached functions, classes with slots, objects
that pass on what is asked of them.

Tensors are the affair of `codec`, which leaves their bytes out of the stream.
"""

from __future__ import annotations

import contextlib
import copyreg
import enum
import functools
import io
import sys
from collections.abc import Callable
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as by_value

_HEAP_TYPE = 1 << 9
"""CPython's flag of classes that are not built in."""
_FIELDS = (MemberDescriptorType, GetSetDescriptorType)
_CACHED = type(functools.lru_cache(lambda: None))
_OF_MODULES = (FunctionType, ModuleType, _CACHED)
_looked_for: set[str | None] = {None, "__main__", "builtins"}
"""Modules."""


class Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in _OF_MODULES or issubclass(kind, type):
            _look_for(obj.__name__ if kind is ModuleType else obj.__module__)
        if issubclass(kind, BaseException):
            return reduced_exception(obj) or NotImplemented
        if kind is _CACHED:
            return _reduced_cached(obj)
        if kind is functools.cached_property:  # until Python 3.12 it holds a lock
            return _new_cached_property, (obj.func, obj.attrname)
        if issubclass(kind, type):
            if "__slots__" in obj.__dict__ and not issubclass(obj, (enum.Enum, tuple)):
                return _reduced_with_slots(obj, super().reducer_override(obj))
        elif hasattr(kind, "__getattr__"):
            return _reduced_with_getattr(obj, kind) or super().reducer_override(obj)
        return super().reducer_override(obj)


def dumps(value: Any) -> bytes:
    """`value` as one stream of bytes; classes and functions of the user's script are in it."""
    stream = io.BytesIO()
    Pickler(stream, protocol=5).dump(value)
    return stream.getvalue()


# ---------------------------------------------------------------- exceptions

Reduced = tuple[Callable[..., Any], tuple[Any, ...], Any, None, None, Callable[[Any, Any], None]]


def reduced_exception(error: BaseException) -> Reduced | None:
    """How to make `error` again without its class's constructor, whose arguments are not known: `args` are what it
    passed on. (Python's own way calls it with them, which fails, or adds the same prefix once more.) None for a class
    that says itself how it is pickled."""
    kind = type(error)
    if not _is_pickled_by_python(kind):
        return None
    args, attributes = _parts(error)
    return _new_exception, (kind, args), _state_of(error, attributes), None, None, _set_state


def _is_pickled_by_python(kind: type) -> bool:
    for name in ("__reduce__", "__reduce_ex__"):
        owner = next(base for base in kind.__mro__ if name in base.__dict__)
        if owner.__flags__ & _HEAP_TYPE:
            return False
    return True


def _reduced_with_getattr(obj: Any, kind: type) -> Any:
    """Python asks the new object, which has no attributes yet, for `__setstate__`: a `__getattr__` that reads one (of a
    wrapper, of starlette's `State`) calls itself without end. None where the class says how it is pickled."""
    if hasattr(kind, "__setstate__") or kind in copyreg.dispatch_table or not _is_pickled_by_python(kind):
        return None
    make, args, state, *items = obj.__reduce_ex__(5)
    return None if state is None else (make, args, state, *items, _set_attributes)


def _set_attributes(obj: Any, state: Any) -> None:
    attributes, slots = state if isinstance(state, tuple) else (state, {})
    if attributes:
        obj.__dict__.update(attributes)
    for name, value in slots.items():
        object.__setattr__(obj, name, value)


def built_in_base(kind: type[BaseException]) -> Any:
    """The built-in class that gives exceptions of this one their fields (`errno`, `reason`, `value`)."""
    return next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)


def _parts(error: BaseException) -> tuple[tuple[Any, ...], Any]:
    """What Python would call its class with, and its attributes."""
    reduced: Any = error.__reduce__()
    return reduced[1], reduced[2] if len(reduced) > 2 else None


def _new_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    base = built_in_base(kind)
    error: BaseException = base.__new__(kind, *args)
    base.__init__(error, *args)
    return error


def _state_of(error: BaseException, state: Any) -> tuple[Any, dict[str, Any]]:
    """Attributes in the form of `__setstate__`, and those that are not in its `__dict__`."""
    names = list(copyreg._slotnames(type(error)))  # type: ignore[attr-defined]
    for base in type(error).__mro__:
        if not base.__flags__ & _HEAP_TYPE:
            names += [
                name
                for name, field in vars(base).items()
                if isinstance(field, _FIELDS) and name[0] != "_" and name != "obj"
            ]  # (`AttributeError.obj` is the object asked, a whole actor for one: Python leaves it behind too)
    return state, {name: getattr(error, name) for name in names if name != "args" and hasattr(error, name)}


def _set_state(error: BaseException, state: tuple[Any, dict[str, Any]]) -> None:
    attributes, fields = state
    if attributes is not None:
        error.__setstate__(attributes)
    for name, value in fields.items():
        if getattr(error, name, value) is not value or not hasattr(error, name):  # None written is not None by default
            with contextlib.suppress(AttributeError, TypeError):  # some can be read only
                setattr(error, name, value)


def exception_args(error: BaseException) -> tuple[Any, ...]:
    """What the built-in base of its class is made from."""
    if _is_pickled_by_python(type(error)):
        return _parts(error)[0]
    return error.args


def copy_fields(cause: BaseException, error: BaseException) -> None:
    """Give `error`, of a class that inherits from `cause`'s, the attributes of `cause`, built-in ones included."""
    if not _is_pickled_by_python(type(cause)):
        error.__dict__.update(getattr(cause, "__dict__", {}))
        return
    args, attributes = _parts(cause)
    built_in_base(type(cause)).__init__(error, *args)
    _set_state(error, _state_of(cause, attributes))


class Portable:
    """Pickled by whatever pickler, it is `error` again."""

    def __init__(self, error: BaseException, drop: frozenset[str] = frozenset()) -> None:
        """drop: attributes that cannot be pickled."""
        self._error, self._drop = error, drop

    def __reduce__(self) -> Any:
        reduced = reduced_exception(self._error)
        if reduced is None:
            return _itself, (self._error,)
        make, args, (attributes, fields), *rest = reduced
        if attributes:  # a copy: an exception in it may have the same one
            attributes = {name: value for name, value in attributes.items() if name not in self._drop}
        return make, args, (attributes, fields), *rest


def _itself(error: BaseException) -> BaseException:
    return error


# ---------------------------------------------------------------- functions and classes of the script


def _look_for(name: str | None) -> None:
    """What is of a module that no search finds goes by value, as of the script itself: a module made by hand, or from
    its file (`spec_from_file_location`, runpy), and that of a program that multiprocessing has started."""
    if name in _looked_for:
        return
    _looked_for.add(name)
    module = sys.modules.get(str(name))
    top = str(name).partition(".")[0]
    if isinstance(module, ModuleType) and not any(_finds(finder, top) for finder in sys.meta_path):
        cloudpickle.register_pickle_by_value(module)


def _finds(finder: Any, name: str) -> bool:
    try:
        return finder.find_spec(name, None) is not None
    except Exception:  # of another library; pickle tells what cannot be found there
        return True


def _reduced_cached(function: Any) -> Any:
    """By its name where it can be imported, else the function below and the size of the cache, which is empty there."""
    found = by_value._lookup_module_and_qualname(function, name=function.__qualname__)
    if found is not None:
        values = by_value.list_registry_pickle_by_value()
        if not any(f"{found[0].__name__}.".startswith(f"{name}.") for name in values):
            return NotImplemented
    parameters = function.cache_parameters()
    return _new_cached, (function.__wrapped__, parameters["maxsize"], parameters["typed"])


def _new_cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _new_cached_property(function: Any, name: str | None) -> Any:
    made = functools.cached_property(function)
    if name is not None:
        made.__set_name__(object, name)
    return made


def _reduced_with_slots(kind: type, reduced: Any) -> Any:
    """cloudpickle makes the class before it has its attributes: slots have to be there from the beginning."""
    if not isinstance(reduced, tuple) or reduced[0] is not by_value._make_skeleton_class:
        return reduced
    make, (meta, name, bases, namespace, *rest), (attributes, slot_state), *others = reduced
    slots = kind.__dict__["__slots__"]
    slots = (slots,) if isinstance(slots, str) else tuple(slots)
    fields = {name for name, value in attributes.items() if isinstance(value, _FIELDS) and value.__objclass__ is kind}
    attributes = {name: value for name, value in attributes.items() if name not in fields}
    return (
        make,
        (meta, name, bases, {**namespace, "__slots__": slots}, *rest),
        (attributes, slot_state),
        *others,
    )
