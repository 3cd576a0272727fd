"""What comes with a call: its arguments, opened for it, or given back when it will not run."""

from __future__ import annotations

from typing import Any

from rlplat.runtime.client.calls import values_of
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.client.reading import Reader
from rlplat.runtime.link.link import Link
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.values import Value


class Arguments:
    def __init__(self, link: Link, objects: Objects, reader: Reader) -> None:
        self._lock, self._objects, self._reader = link.lock, objects, reader

    def open(self, owner: str, message: Any) -> tuple[tuple, dict]:
        """The values, those of refs among them."""
        if type(message) is messages.Call:
            args, kwargs = codec.unpack(message.args)
            return args, kwargs
        read, num_tried = self._reader.open_argument, 1
        try:
            args, kwargs = read(message.args, owner)
            args = list(args)
            for place, value in message.deps:
                num_tried += 1
                if isinstance(place, int):
                    args[place] = read(value, owner)
                else:
                    kwargs[place] = read(value, owner)
        except BaseException:
            with self._lock:  # one did not open: those behind it are given back all the same
                self._drop_values(owner, values_of(message)[num_tried:])
            raise
        return tuple(args), kwargs

    def drop(self, owner: str, message: Any) -> None:
        """A call that will not be executed: give back what came with it (lock held)."""
        self._drop_values(owner, values_of(message))

    def _drop_values(self, owner: str, values: list[Value]) -> None:
        if owner not in self._objects.dead:
            for value in values:
                self._objects.receive(value.keys(), owner)
