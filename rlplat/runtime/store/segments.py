"""Shared memory: values of more than `OUT_OF_BAND_BYTES` live in files of the session's folder on /dev/shm.

The process that writes a segment is its creator; the object's owner says when it is free, and then the creator writes
the next value of that size class into it: its pages are there already, which is worth three times the speed.
Readers map a segment once and keep the mapping for the next value in it.

A fresh segment is filled with pwrite, a reused one through its mapping and only as far as it has pages: a full
/dev/shm is an ENOSPC that becomes `ObjectStoreFull`, never a SIGBUS.

Fresh pages are entered in the node's account first (`account`); `room` makes room when that refuses. A spilled
segment has the same name in the spill folder, where readers map it: that is all that restoring takes. A reader holds a
shared lock on what it maps, for as long as the mapping exists, even beyond its death, so a creator that gets the
exclusive one knows that nobody looks.

An array can be born in a segment (`empty`), behind room for the pickle stream. A value that has the whole of it, and no
other large buffer, is not copied: its stream is written there, the segment is sealed, and what the maker writes to that
memory afterwards, through whatever view, goes to pages of its own (`Mapping.make_private`). The segment is used again
when its owner and its maker are both done with it.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import shutil
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from rlplat.errors import ObjectLost, ObjectStoreFull
from rlplat.runtime.link.transport import SEVERAL
from rlplat.runtime.machine.session import SPILL_LINK
from rlplat.runtime.process.signals import uninterrupted
from rlplat.runtime.store.account import Account
from rlplat.runtime.store.mapping import Mapping, to_change, to_fill, to_read
from rlplat.runtime.wire.codec import Packed, unpack
from rlplat.runtime.wire.values import Key, Segment

_ALIGN = 64
_HEAD_BYTES = 4096
"""Before an array that is born in a segment."""
_SPARE_BYTES = 512 << 20
"""Freed segments that a creator keeps for reuse, in bytes."""
_MAX_MAPPINGS = 512
_MUCH = 1 << 20
"""Bytes of other programs in /dev/shm that are worth a word; the account and sockets take some pages too."""
_SHARED_COPY_BYTES = 4 << 20
"""From here on a second thread copies one half: 1.7 times the speed where a core is idle."""
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)


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
    mapping: Mapping | None = None
    owner: str = ""
    is_spilled: bool = False
    is_moving: bool = False
    """It is being copied to disk; `is_freed` when its owner gave it up meanwhile."""
    is_freed: bool = False
    array: weakref.ref[Any] | None = None
    """That was born in it last."""
    num_bytes: int = 0
    """Of that array."""
    views: weakref.KeyedRef[str, Any] | None = None
    """What they all keep."""


class BytesMissing(ObjectLost):
    """Neither in shared memory nor on disk: the owner may know how to make it again."""


class Store:
    def __init__(self, session: str, client_id: str, lock: AbstractContextManager[Any] | None = None) -> None:
        """The caller holds `lock` around everything but `write` and `read`."""
        self._session, self._client_id = session, client_id
        self._lock = lock or threading.RLock()
        self.account = Account.open(session, client_id)
        self._spill_folder = os.path.join(session, SPILL_LINK)
        self._numbers = itertools.count(1)
        self._in_use: dict[str, _Own] = {}
        """In shared memory, oldest first."""
        self._on_disk: dict[str, _Own] = {}
        self._spare: dict[int, list[_Own]] = {}
        self._spare_bytes = 0
        # Where machines have copies of each other's segments, a name stands for one value: none is used again.
        self._most_spare = 0 if os.path.exists(os.path.join(session, SEVERAL)) else _SPARE_BYTES
        self._moving: dict[str, _Own] = {}
        self.born: dict[str, _Own] = {}
        """Segments of which this process has an array that was born in them, or a view of it."""
        self._unsealed: dict[int, _Own] = {}
        """Of these, what is no object yet, by the address of the mapping."""
        self.let_go: deque[Any] = deque()
        """Those whose last view was garbage-collected; `collect` acts on them."""
        self._mappings: OrderedDict[str, Mapping] = OrderedDict()
        self._live = weakref.WeakSet[Mapping]()
        """Those above, and others that only views keep."""
        self._mappings_lock = threading.Lock()

    def _path(self, name: str, is_spilled: bool = False) -> str:
        if os.sep in name or not name.startswith("s-"):
            raise ObjectLost(f"refused a segment of the name {name!r}")
        return os.path.join(self._spill_folder if is_spilled else self._session, name)

    # -- creator

    @uninterrupted
    def write(self, packed: Packed, owner: str) -> Segment:
        """Copy a packed value into a segment that `owner` will free; `ObjectStoreFull` when there is no room now.

        The bytes are copied without the lock: other threads go on meanwhile."""
        parts = [memoryview(packed.data), *(buffer.raw() for buffer in packed.buffers)]
        sizes = [part.nbytes for part in parts]
        own = self._seal(*parts) if self._unsealed and len(parts) == 2 else None
        if own is not None:
            sizes[0] = _HEAD_BYTES
        else:
            own = self._filled(sum(map(_aligned, sizes)), lambda own: self._fill(own, parts))
        with self._lock:
            own.owner = owner
            self._in_use[own.name] = own
        return Segment(self._client_id, own.name, sizes, packed.has_tensors)

    def _filled(self, total: int, fill: Callable[[_Own], None]) -> _Own:
        """A segment of so many bytes that `fill` has filled."""
        while True:
            with self._lock:
                own = self._reuse(total) or self._create(total)
            try:
                fill(own)
                return own
            except BaseException as error:
                with self._lock:
                    self._remove(own)
                    if not (isinstance(error, OSError) and error.errno in _NO_ROOM):
                        if isinstance(error, OSError) and error.errno == errno.EFBIG:
                            error.strerror = (
                                f"a value of {total / 1e6:.1f} MB is a larger file than allowed (ulimit -f)"
                            )
                        raise
                    if not self.drop_spares(own.filled):
                        raise ObjectStoreFull(self.full_text(total)) from None

    def _reuse(self, total: int) -> _Own | None:
        spares = self._spare.get(_class_bytes(total))
        if not spares or spares[-1].filled < total:
            return None
        own = spares.pop()
        self._spare_bytes -= own.capacity
        self.account.spare(-own.filled)
        try:
            if own.mapping is not None:
                os.stat(self._path(own.name))
                return own
            descriptor = os.open(self._path(own.name), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # somebody removed it: a value in it would be found by nobody
            self.account.release(own.filled)
            return None
        try:
            own.mapping = to_fill(own.name, descriptor, own.filled)
        finally:
            os.close(descriptor)
        return own

    def _create(self, total: int) -> _Own:
        filled = total + (-total) % mmap.PAGESIZE
        while not self.account.reserve(filled):
            if not self.drop_spares(filled):
                raise ObjectStoreFull(self.full_text(total))
        return _Own(f"s-{self._client_id}-{next(self._numbers)}", _class_bytes(total), filled)

    def _fill(self, own: _Own, parts: list[memoryview]) -> None:
        offset = 0
        if own.mapping is not None:
            for part in parts:
                _copy_to(own.mapping, offset, part)
                offset += _aligned(part.nbytes)
            return
        descriptor = os.open(self._path(own.name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for part in parts:
                self._write_all(descriptor, part, offset)
                offset += _aligned(part.nbytes)
            # Padding is never written, but each page has a byte of some part by now: this only moves the end.
            os.ftruncate(descriptor, own.filled)
        finally:
            os.close(descriptor)

    def has_memory(self, needed: int) -> bool:
        """Whether /dev/shm itself has so many bytes, our spares included: other programs fill it as well."""
        return shutil.disk_usage(self._session).free + self._spare_bytes >= needed

    def full_text(self, total: int) -> str:
        usage = shutil.disk_usage(self._session)
        others = usage.used - self.account.used()
        return (
            f"no room for {total / 1e6:.1f} MB in the object store: {self.account.describe()}; "
            f"{usage.free / 1e6:.1f} of {usage.total / 1e6:.1f} MB are free in {os.path.dirname(self._session)}"
            f"{f' (other programs hold {others / 1e6:.1f} MB there)' if others > _MUCH else ''}. "
            "Drop refs and arrays that are no longer needed, raise init(object_store_memory=), or give the machine "
            "(or container: --shm-size) more shared memory"
        )

    @staticmethod
    def _write_all(descriptor: int, part: memoryview, offset: int) -> None:
        part = part.cast("B")
        while part.nbytes:
            written = os.pwrite(descriptor, part, offset)
            part, offset = part[written:], offset + written

    def free(self, *names: str) -> None:
        """The owners are done with these segments of ours."""
        self.collect()
        for name in names:
            own = self._in_use.pop(name, None) or self._on_disk.pop(name, None)
            if own is None:
                continue
            if own.is_moving or name in self.born:
                own.is_freed = True
            else:
                self._recycle(own)

    def _recycle(self, own: _Own) -> None:
        """Nobody needs it any more, nor has a view of it that counts."""
        if own.is_spilled or self._spare_bytes + own.capacity > self._most_spare:
            self._remove(own)
            return
        own.is_freed = False
        self._spare_bytes += own.capacity
        self.account.spare(own.filled)
        spares = self._spare.setdefault(own.capacity, [])
        spares.append(own)
        if len(spares) > 1 and spares[-2].filled > own.filled:  # the fullest last: it fits most values
            spares[-1], spares[-2] = spares[-2], spares[-1]

    def has_values(self) -> bool:
        """Whether segments of ours hold what somebody has not freed."""
        return bool(self._in_use or self._on_disk or self._moving)

    def lose(self, *names: str) -> None:
        """The owners found the bytes of these segments of ours missing: never use them again."""
        for name in names:
            own = self._in_use.pop(name, None) or self._on_disk.pop(name, None)
            if own is not None and own.is_moving:
                own.is_freed = True
            elif own is not None:
                self._remove(own)

    def drop_spares(self, needed: int) -> int:
        """Give segments that wait for reuse back to the system until `needed` bytes are; returns how many were."""
        dropped = 0
        for capacity in sorted(self._spare, reverse=True):
            spares = self._spare[capacity]
            while spares and dropped < needed:
                own = spares.pop()
                self._spare_bytes -= own.capacity
                self.account.spare(-own.filled)
                self._remove(own)
                dropped += own.filled
        return dropped

    def _remove(self, own: _Own) -> None:
        """Nobody looks at it any more: give its pages back although readers may still have the file mapped."""
        own.mapping = None
        try:
            if not own.is_spilled and own.name not in self.born:
                os.truncate(self._path(own.name), 0)
            os.unlink(self._path(own.name, own.is_spilled))
        except FileNotFoundError:
            pass
        self._uncount(own)

    def _uncount(self, own: _Own) -> None:
        self.born.pop(own.name, None)
        if own.is_spilled:
            self.account.spilled(-own.filled)
        else:
            self.account.release(own.filled)

    def owner_died(self, owner: str) -> None:
        """Nobody will free what a dead process owned. Others may still look at it: its pages go with their views."""
        for name, own in [*self._in_use.items(), *self._on_disk.items()]:
            if own.owner != owner:
                continue
            self._in_use.pop(name, None)
            self._on_disk.pop(name, None)
            if own.is_moving:
                own.is_freed = True
                continue
            with suppress(FileNotFoundError):
                os.unlink(self._path(name, own.is_spilled))
            self._uncount(own)

    # -- arrays that are born here

    @uninterrupted
    def empty(self, like: Any) -> Any:
        """An array of the shape and type of `like`, with whatever is in its memory; `ObjectStoreFull`."""
        import numpy as np

        own = self._filled(_HEAD_BYTES + like.nbytes, self._allocate)
        assert own.mapping is not None
        whole = np.asarray(own.mapping)
        array = np.ndarray(like.shape, like.dtype, whole, _HEAD_BYTES)
        with self._lock:
            own.array, own.num_bytes = weakref.ref(array), array.nbytes
            # All views of the array, and views of these, keep `whole` (numpy sees to that).
            own.views = weakref.KeyedRef(whole, self.let_go.append, own.name)  # (calls back no line of Python)
            self.born[own.name] = self._unsealed[own.mapping.address] = own
            self.account.owned(own.num_bytes, 1)
        return array

    def _allocate(self, own: _Own) -> None:
        """Its pages; what is in them does not matter."""
        if own.mapping is not None:
            return
        descriptor = os.open(self._path(own.name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, own.filled)
            own.mapping = to_fill(own.name, descriptor, own.filled)
        finally:
            os.close(descriptor)

    def _seal(self, stream: memoryview, buffer: memoryview) -> _Own | None:
        """The segment in which `buffer` was born, with `stream` in it; None where it has to be copied."""
        import numpy as np

        address = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] - _HEAD_BYTES
        with self._lock:
            own = self._unsealed.get(address)
            if own is None or own.num_bytes != buffer.nbytes or stream.nbytes > _HEAD_BYTES:
                return None
            del self._unsealed[address]
        try:
            shared = self._make_private(own, stream)
        except (OSError, ObjectStoreFull):  # somebody removed it; no descriptor or mapping more is to be had
            with self._lock:
                self._unsealed[address] = own
            return None
        with self._lock:
            own.mapping = shared
            self.account.owned(-own.num_bytes, -1)
        array = own.array() if own.array is not None else None
        if array is not None:
            array.flags.writeable = False
        return own

    def _make_private(self, own: _Own, stream: memoryview | bytes = b"") -> Mapping | None:
        assert own.mapping is not None
        descriptor = os.open(self._path(own.name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self._write_all(descriptor, memoryview(stream), 0)
            return own.mapping.make_private(descriptor)
        finally:
            os.close(descriptor)

    def collect(self) -> None:
        """Take back what arrays were born in that this process has no view of any more."""
        while self.let_go:
            own = self.born.pop(self.let_go.popleft().key, None)
            if own is None:
                continue
            if own.mapping is not None and self._unsealed.pop(own.mapping.address, None) is not None:
                self.account.owned(-own.num_bytes, -1)
                self._recycle(own)
            elif own.is_freed:
                self._recycle(own)

    def viewed_born(self) -> list[Any]:
        """What keeps the memory of arrays that were born here."""
        return [own.views() for own in self.born.values() if own.views is not None]

    def after_fork_in_child(self) -> None:
        """What the child writes to inherited arrays is its own affair."""
        for own in self._unsealed.values():
            with suppress(OSError, ObjectStoreFull):
                self._make_private(own)

    # -- spilling (`room.Spiller` says when)

    def can_spill(self) -> bool:
        return os.path.isdir(self._spill_folder)

    def begin_move(self, tried: set[str]) -> str | None:
        """The oldest segment of ours that could go to disk, marked as on its way."""
        for name, own in self._in_use.items():
            if not (own.is_moving or name in tried):
                own.is_moving = True
                own.mapping = None
                self._moving[name] = own
                return name
        return None

    def move(self, name: str) -> Literal["moved", "mapped", "missing"]:
        """Copy a segment to the spill folder and give up its pages, unless somebody has it mapped.

        The only method to be called without the lock. The copy gets its name when it is whole, and the original loses
        its own after that: a reader finds one or the other. Raises OSError when the disk has no room.
        """
        try:
            source = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return "missing"
        try:
            try:
                fcntl.flock(source, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return "mapped"
            part = os.path.join(self._spill_folder, f".{name}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            target = os.open(part, flags, 0o600)
            try:
                _copy(source, target)
                os.rename(part, self._path(name, is_spilled=True))
            except OSError:
                os.unlink(part)
                raise
            finally:
                os.close(target)
            os.unlink(self._path(name))
            return "moved"
        finally:
            fcntl.flock(source, fcntl.LOCK_UN)  # closing is not enough: a child may have been forked meanwhile
            os.close(source)

    def end_move(self, name: str, outcome: str) -> int:
        """Enter into the books how the move of a segment ended; returns the bytes of shared memory that it gave."""
        own = self._moving.pop(name)
        own.is_moving = False
        freed = 0
        if outcome == "moved":
            self.account.release(own.filled)
            self.account.spilled(own.filled)
            own.is_spilled, freed = True, own.filled
            if not own.is_freed:
                self._in_use.pop(name, None)
                self._on_disk[name] = own
        elif outcome == "missing":  # somebody removed it; its owner will hear of that when it is read
            self.account.release(own.filled)
            own.filled, freed = 0, own.filled
        if own.is_freed:
            freed = max(freed, own.filled)
            with suppress(FileNotFoundError):
                os.unlink(self._path(name, own.is_spilled))
            self._uncount(own)
        return freed

    # -- readers

    def read(self, segment: Segment, ref: Any, key: Key | None = None) -> Any:
        """Unpickle a value in place: its arrays are read-only views that keep `ref`, and so the segment, alive.

        Tensors, which cannot be read-only, are views of memory that is copied when it is written.
        """
        views = self._mapped(segment, ref, key)
        return unpack(memoryview(views[0]), [memoryview(view) for view in views[1:]])

    @uninterrupted
    def _mapped(self, segment: Segment, ref: Any, key: Key | None) -> list[Any]:
        """Its parts, bytes each."""
        with self._mappings_lock:  # `drop_mappings` must not come between a mapping and its views
            mapping = None if segment.is_writable else self._mappings.get(segment.name)
            if mapping is not None and mapping.size >= _needed(segment):
                mapping.key = key
                return _views(mapping, segment, ref)
        # Without the lock: it may wait for as long as the bytes go to disk.
        descriptor = self._open(segment)
        try:
            with self._mappings_lock:
                mapping = self._map(segment, descriptor)
                mapping.key = key
                return _views(mapping, segment, ref)
        finally:
            os.close(descriptor)

    def _map(self, segment: Segment, descriptor: int) -> Mapping:
        size = os.fstat(descriptor).st_size
        if size < _needed(segment):
            raise ObjectLost(f"segment {segment.name} is shorter than its description")
        if segment.is_writable:  # for one reading
            mapping = to_change(segment.name, descriptor, size)
        else:
            mapping = self._mappings[segment.name] = to_read(segment.name, descriptor, size)
            if len(self._mappings) > _MAX_MAPPINGS:
                self._mappings.popitem(last=False)
        self._live.add(mapping)
        return mapping

    def _open(self, segment: Segment) -> int:
        """Open a segment for reading, wherever it is, and lock it there: the mapping inherits the lock."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            while True:
                try:
                    descriptor = os.open(self._path(segment.name), flags)
                except FileNotFoundError:
                    return os.open(self._path(segment.name, is_spilled=True), flags)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                if os.fstat(descriptor).st_nlink:
                    return descriptor
                os.close(descriptor)  # it went to disk while we waited for the lock
        except FileNotFoundError:
            raise BytesMissing(f"the bytes of an object that {segment.creator} made are gone") from None
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise ObjectStoreFull(
                "a value cannot be read: this process has as many files open as it may (ulimit -n)"
            ) from None

    def place(self, segment: Segment) -> str:
        """Where its bytes are: "shm", "spilled" or "lost"."""
        if os.path.exists(self._path(segment.name)):
            return "shm"
        return "spilled" if os.path.exists(self._path(segment.name, is_spilled=True)) else "lost"

    def drop_mappings(self) -> None:
        """Give up mappings that no view needs, so that their creators may spill them."""
        with self._mappings_lock:
            for name in list(self._mappings):
                mapping = weakref.ref(self._mappings.pop(name))
                if (viewed := mapping()) is not None:
                    self._mappings[name] = viewed

    def viewed(self) -> list[Key]:
        """The keys of objects with a view in this process."""
        self.drop_mappings()
        with self._mappings_lock:
            return [mapping.key for mapping in self._live if mapping.key is not None]

    def take_over(self, segment: Segment) -> Segment:
        """Its creator died: a name of our own for the same bytes, before the node removes the creator's files."""
        name = f"s-{self._client_id}-{next(self._numbers)}"
        is_spilled = False
        try:
            os.link(self._path(segment.name), self._path(name))
        except FileNotFoundError:
            try:
                os.link(self._path(segment.name, is_spilled=True), self._path(name, is_spilled=True))
            except FileNotFoundError:
                return segment
            is_spilled = True
        size = os.path.getsize(self._path(name, is_spilled))
        own = _Own(name, _class_bytes(sum(map(_aligned, segment.sizes))), size)
        own.owner, own.is_spilled = self._client_id, is_spilled
        (self._on_disk if is_spilled else self._in_use)[name] = own
        self.account.take_over(segment.creator, 0 if is_spilled else size, size if is_spilled else 0)
        return Segment(self._client_id, name, segment.sizes, segment.is_writable)

    def forget(self, creator: str) -> None:
        """It is dead and makes no more: views keep what they map, the rest of its pages can go."""
        with self._mappings_lock:
            for name in [name for name in self._mappings if name.startswith(f"s-{creator}-")]:
                del self._mappings[name]

    def close(self) -> None:
        """Forget the mappings; the session's folder is removed by the node."""
        self._mappings.clear()
        self._in_use.clear()
        self._on_disk.clear()
        self._spare.clear()
        self.account.close()


def _copy_to(mapping: Mapping, offset: int, part: memoryview) -> None:
    """By numpy, which lets other threads of Python run meanwhile; a slice of a memoryview does not."""
    import numpy as np

    target, source = np.asarray(mapping)[offset : offset + part.nbytes], np.frombuffer(part, np.uint8)
    half, helper = part.nbytes // 2, None
    if part.nbytes >= _SHARED_COPY_BYTES:
        helper = threading.Thread(target=np.copyto, args=(target[:half], source[:half]))
        try:
            helper.start()
        except RuntimeError:  # the interpreter ends, or a limit of threads
            helper = None
    first = 0 if helper is None else half
    np.copyto(target[first:], source[first:])
    if helper is not None:
        helper.join()


def _needed(segment: Segment) -> int:
    return sum(map(_aligned, segment.sizes))


def _views(mapping: Mapping, segment: Segment, ref: Any) -> list[Any]:
    """Read-only arrays of the segment's parts, which keep `ref`."""
    import numpy as np

    whole, offset, views = np.asarray(mapping).view(_shared_array_class(np)), 0, []
    for size in segment.sizes:
        array = whole[offset : offset + size]
        array.flags.writeable = False
        array.ref = ref
        views.append(array)
        offset += _aligned(size)
    return views


def _copy(source: int, target: int) -> None:
    offset, size = 0, os.fstat(source).st_size
    while offset < size:
        sent = os.sendfile(target, source, offset, size - offset)
        if not sent:
            raise OSError(errno.EIO, "the segment ended early")
        offset += sent


_cached_class: Any = None


def _shared_array_class(np: Any) -> Any:
    """uint8[n] over a mapping; it carries the ObjectRef, so that the segment lives as long as any view of it."""
    global _cached_class
    if _cached_class is None:

        class SharedArray(np.ndarray):
            ref: Any

        _cached_class = SharedArray
    return _cached_class
