"""`rlplat.map`: a function over many items, thousands of them in one task. Built on the public verbs alone.

Items travel in chunks. A chunk is a task like any other: it is what runs again when a worker dies, so that an item may
run twice. Its size follows the measured time per item, so that a chunk takes a few milliseconds.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, overload

from rlplat.errors import OptionError
from rlplat.runtime import api
from rlplat.runtime.options import Options
from rlplat.runtime.remote import ActorMethod, RemoteClass, RemoteFunction
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.errors import describe_error, to_exception
from rlplat.runtime.wire.values import ErrorInfo

_CHUNK_S = 0.004
_FIRST_CHUNK = 16
_MAX_CHUNK = 8192
_MAX_GROWTH = 8
_CHUNKS_PER_CPU = 3
"""In flight: one runs, one waits at the worker, one is on its way."""


class _Chunk:
    """What a worker runs: the function over a list of items. Returns (results, the error that ended it, seconds)."""

    def __init__(self, function: Callable[[Any], Any], name: str) -> None:
        self._function, self._name = function, name

    def __call__(self, items: list[Any]) -> tuple[list[Any], ErrorInfo | None, float]:
        began, function, error = time.perf_counter(), self._function, None
        results: list[Any] = []
        add = results.append
        try:
            for item in items:
                add(function(item))
        except Exception as raised:
            where = f"{self._name} on item {len(results)} of a chunk of {len(items)}"
            error = describe_error(raised, where)
        return results, error, time.perf_counter() - began


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@overload
def map(
    function: RemoteFunction[_Result], items: Iterable[Any], *, chunk_size: int | None = None
) -> Iterator[_Result]: ...
@overload
def map(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, chunk_size: int | None = None
) -> Iterator[_Result]: ...
def map(function: Any, items: Iterable[Any], *, chunk_size: int | None = None) -> Iterator[Any]:
    """`function(item)` for each item, in worker processes; an iterator of the results, in the order of the items.

    function: a plain function, or a remote one, whose options (num_cpus, max_retries, ...) then hold for each chunk.
    items: may be endless: only a few chunks for each CPU are under way, and more follow as results are taken.
    chunk_size: items in a task; None: as many as take a few milliseconds.
    An item that raises ends the iteration there, with its exception, as the builtin `map` does.
    """
    if not callable(function) or isinstance(function, (RemoteClass, ActorMethod)):
        raise TypeError(f"rlplat.map takes a function or a remote function, not {type(function).__name__}")
    if isinstance(function, RemoteFunction):
        code, options = function._code, function._options
    else:
        code, options = RemoteCode(function, getattr(function, "__qualname__", repr(function))), Options()
    if options.num_returns != 1:
        raise OptionError(f"rlplat.map: {code.name} has num_returns={options.num_returns}; it must return one value")
    if chunk_size is not None and chunk_size < 1:
        raise OptionError(f"rlplat.map: chunk_size must be at least 1, not {chunk_size!r}")
    chunk: RemoteFunction[Any] = RemoteFunction(
        RemoteCode(_Chunk(code.target, code.name), f"map({code.name})"), options
    )
    return _results(chunk, iter(items), chunk_size)


def _results(chunk: RemoteFunction, items: Iterator[Any], fixed_size: int | None) -> Iterator[Any]:
    size = fixed_size or _FIRST_CHUNK
    max_in_flight = max(2, int(_CHUNKS_PER_CPU * api.cluster_resources().get("CPU", 1)))
    in_flight: deque[Any] = deque()
    while True:
        while len(in_flight) < max_in_flight and (batch := list(itertools.islice(items, size))):
            in_flight.append(chunk.remote(batch))
        if not in_flight:
            return
        results, error, seconds = api.get(in_flight.popleft())
        yield from results
        if error is not None:
            raise to_exception(error)
        if fixed_size is None and results:
            wanted = int(_CHUNK_S * len(results) / max(seconds, 1e-7))
            size = max(1, min(wanted, size * _MAX_GROWTH, _MAX_CHUNK))
