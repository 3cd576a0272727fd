"""What comes with a call: its arguments, opened for it, or given back when it will not run."""

from __future__ import annotations

from typing import Any

from rlplat.runtime.client.objects import Objects
from rlplat.runtime.client.reading import Reader
from rlplat.runtime.link.link import Link
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.values import Value


class Arguments:
    def __init__(self, link: Link, objects: Objects, reader: Reader) -> None:
        self._lock, self._objects, self._reader = link.lock, objects, reader

    def open(self, owner: str, message: messages.Run) -> tuple[Any, dict]:
        """The values, those of refs among them."""
        packed, deps, read = message.args, message.deps, self._reader.open_argument
        if type(packed) is bytes and not deps:
            opened: tuple[tuple, dict] = ((), {}) if packed == codec.NO_ARGS else codec.unpack(packed)
            return opened
        num_tried = 0
        try:
            if isinstance(packed, Value):
                num_tried += 1
                args, kwargs = read(packed, owner)
            else:
                args, kwargs = codec.unpack(packed)
            args = list(args)
            for place, value in deps:
                num_tried += 1
                if isinstance(place, int):
                    args[place] = read(value, owner)
                else:
                    kwargs[place] = read(value, owner)
        except BaseException:
            with self._lock:  # one did not open: those behind it are given back all the same
                self._drop_values(owner, message.values()[num_tried:])
            raise
        return args, kwargs

    def drop(self, owner: str, message: Any) -> None:
        """A call that will not be executed: give back what came with it (lock held)."""
        self._drop_values(owner, message.values())

    def _drop_values(self, owner: str, values: list[Value]) -> None:
        if owner not in self._objects.dead:
            for value in values:
                self._objects.receive(value.keys(), owner)
