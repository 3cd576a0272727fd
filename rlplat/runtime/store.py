"""Shared memory: values of more than `OUT_OF_BAND_BYTES` live in files of the session's folder on /dev/shm.

The process that writes a segment is its creator; the object's owner says when it is free, and then the creator writes
the next value of that size class into it: its pages are there already, which is worth three times the speed.
Readers map a segment once and keep the mapping for the next value in it.

A fresh segment is filled with pwrite, a reused one through its mapping and only as far as it has pages: a full
/dev/shm is an ENOSPC that becomes `ObjectStoreFull`, never a SIGBUS.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import shutil
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from rlplat.errors import ObjectLost, ObjectStoreFull
from rlplat.runtime.codec import Packed, unpack
from rlplat.runtime.messages import Segment

_ALIGN = 64
_SPARE_BYTES = 512 << 20
"""Freed segments that a creator keeps for reuse, in bytes."""
_MAX_MAPPINGS = 512


def _class_bytes(size: int) -> int:
    """Size class: the next of 1, 1.25, 1.5, 1.75 times a power of two."""
    step = max(1 << (size - 1).bit_length() - 3, 1 << 14)
    return -(-size // step) * step


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


@dataclass(slots=True)
class _Own:
    """A segment of this creator."""

    name: str
    capacity: int
    filled: int
    """Bytes from the start that have pages."""
    mapping: mmap.mmap | None = None
    owner: str = ""


class Store:
    def __init__(self, session: str, client_id: str) -> None:
        self._session, self._client_id = session, client_id
        self._numbers = itertools.count(1)
        self._in_use: dict[str, _Own] = {}
        self._spare: dict[int, list[_Own]] = {}
        self._spare_bytes = 0
        self._mappings: OrderedDict[str, mmap.mmap] = OrderedDict()

    def _path(self, name: str) -> str:
        if os.sep in name or not name.startswith("s-"):
            raise ObjectLost(f"refused a segment of the name {name!r}")
        return os.path.join(self._session, name)

    # -- creator

    def write(self, packed: Packed, owner: str) -> Segment:
        """Copy a packed value into a segment that `owner` will free."""
        parts = [memoryview(packed.data), *(buffer.raw() for buffer in packed.buffers)]
        sizes = [part.nbytes for part in parts]
        total = sum(map(_aligned, sizes))
        own = self._reuse(total) or self._create(total, parts)
        if own.mapping is not None:
            view, offset = memoryview(own.mapping), 0
            for part, size in zip(parts, sizes, strict=True):
                view[offset : offset + size] = part
                offset += _aligned(size)
        own.owner = owner
        self._in_use[own.name] = own
        return Segment(self._client_id, own.name, sizes)

    def _reuse(self, total: int) -> _Own | None:
        spares = self._spare.get(_class_bytes(total))
        if not spares or spares[-1].filled < total:
            return None
        own = spares.pop()
        self._spare_bytes -= own.capacity
        if own.mapping is None:
            descriptor = os.open(self._path(own.name), os.O_RDWR | os.O_CLOEXEC)
            try:
                own.mapping = mmap.mmap(descriptor, own.filled)
            finally:
                os.close(descriptor)
        return own

    def _create(self, total: int, parts: list[memoryview]) -> _Own:
        name = f"s-{self._client_id}-{next(self._numbers)}"
        path = self._path(name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            offset = 0
            for part in parts:
                self._write_all(descriptor, part, offset)
                offset += _aligned(part.nbytes)
            if total % mmap.PAGESIZE or not total:
                self._write_all(descriptor, memoryview(b"\0"), total - 1 + (-total) % mmap.PAGESIZE)
        except OSError as error:
            os.unlink(path)
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG):
                raise
            usage = shutil.disk_usage(self._session)
            raise ObjectStoreFull(
                f"no room for {total / 1e6:.1f} MB in shared memory: {usage.free / 1e6:.1f} of "
                f"{usage.total / 1e6:.1f} MB are free in {os.path.dirname(self._session)}; this process holds "
                f"{len(self._in_use)} objects there. Drop refs and arrays that are no longer needed, or give the "
                "machine (or container: --shm-size) more shared memory"
            ) from None
        finally:
            os.close(descriptor)
        filled = total + (-total) % mmap.PAGESIZE
        return _Own(name, _class_bytes(total), filled)

    @staticmethod
    def _write_all(descriptor: int, part: memoryview, offset: int) -> None:
        part = part.cast("B")
        while part.nbytes:
            written = os.pwrite(descriptor, part, offset)
            part, offset = part[written:], offset + written

    def free(self, *names: str) -> None:
        """The owners are done with these segments of ours."""
        for name in names:
            own = self._in_use.pop(name, None)
            if own is None:
                continue
            if self._spare_bytes + own.capacity > _SPARE_BYTES:
                self._remove(own)
                continue
            self._spare_bytes += own.capacity
            spares = self._spare.setdefault(own.capacity, [])
            spares.append(own)
            if len(spares) > 1 and spares[-2].filled > own.filled:  # the fullest last: it fits most values
                spares[-1], spares[-2] = spares[-2], spares[-1]

    def _remove(self, own: _Own) -> None:
        """Give the pages back although readers may still have the file mapped."""
        own.mapping = None
        try:
            os.truncate(self._path(own.name), 0)
            os.unlink(self._path(own.name))
        except FileNotFoundError:
            pass

    def owner_died(self, owner: str) -> None:
        """Nobody will free what a dead process owned. Others may still look at it: its pages go with their views."""
        for name in [name for name, own in self._in_use.items() if own.owner == owner]:
            del self._in_use[name]
            os.unlink(self._path(name))

    # -- readers

    def read(self, segment: Segment, ref: Any) -> Any:
        """Unpickle a value in place: its arrays are read-only views that keep `ref`, and so the segment, alive."""
        import numpy as np

        class_ = _shared_array_class(np)
        mapping = self._map(segment)
        offset, views = 0, []
        for size in segment.sizes:
            array = np.frombuffer(mapping, np.uint8, size, offset).view(class_)
            array.flags.writeable = False
            array.ref = ref
            views.append(array)
            offset += _aligned(size)
        return unpack(memoryview(views[0]), [memoryview(view) for view in views[1:]])

    def _map(self, segment: Segment) -> mmap.mmap:
        needed = sum(map(_aligned, segment.sizes))
        mapping = self._mappings.get(segment.name)
        if mapping is None or len(mapping) < needed:
            try:
                descriptor = os.open(self._path(segment.name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                raise ObjectLost(
                    f"the bytes of an object that {segment.creator} made are gone: its process died before they "
                    "were used"
                ) from None
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                raise ObjectStoreFull(
                    f"too many arrays from rlplat.get are alive ({len(self._mappings)} or more): each holds a file "
                    "descriptor. Drop or copy some, or raise the limit (ulimit -n)"
                ) from None
            try:
                mapping = mmap.mmap(descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
            finally:
                os.close(descriptor)
            if len(mapping) < needed:
                raise ObjectLost(f"segment {segment.name} is shorter than its description")
            self._mappings[segment.name] = mapping
            if len(self._mappings) > _MAX_MAPPINGS:
                self._mappings.popitem(last=False)
        return mapping

    def take_over(self, segment: Segment) -> Segment:
        """Its creator died: a name of our own for the same bytes, before the node removes the creator's files."""
        name = f"s-{self._client_id}-{next(self._numbers)}"
        try:
            os.link(self._path(segment.name), self._path(name))
        except FileNotFoundError:
            return segment
        size = os.path.getsize(self._path(name))
        self._in_use[name] = _Own(name, _class_bytes(sum(map(_aligned, segment.sizes))), size)
        return Segment(self._client_id, name, segment.sizes)

    def forget(self, creator: str) -> None:
        """It is dead and makes no more: views keep what they map, the rest of its pages can go."""
        for name in [name for name in self._mappings if name.startswith(f"s-{creator}-")]:
            del self._mappings[name]

    def close(self) -> None:
        """Forget the mappings; the session's folder is removed by the node."""
        self._mappings.clear()
        self._in_use.clear()
        self._spare.clear()


_cached_class: Any = None


def _shared_array_class(np: Any) -> Any:
    """uint8[n] over a mapping; it carries the ObjectRef, so that the segment lives as long as any view of it."""
    global _cached_class
    if _cached_class is None:

        class SharedArray(np.ndarray):
            ref: Any

        _cached_class = SharedArray
    return _cached_class
