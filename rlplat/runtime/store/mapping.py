"""A segment's file mapped into this process, without a descriptor for as long as it lives.

Python's `mmap` keeps a copy of the descriptor, so that a process with 1,000 arrays had no file left to open. The
kernel needs none: the mapping itself keeps the open file, and its lock (flock), alive.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Any

from rlplat.errors import ObjectStoreFull
from rlplat.runtime.wire.values import Key

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value
_POPULATE = mmap.MAP_SHARED | mmap.MAP_POPULATE


class Mapping:
    """What numpy makes an array of (`numpy.asarray`), which keeps it alive."""

    def __init__(self, name: str, descriptor: int, size: int, flags: int, protection: int) -> None:
        self.name, self.size = name, size
        self.key: Key | None = None
        """Of the object whose views it has."""
        self._address: int | None = None
        address = _libc.mmap(None, size, protection, flags, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            if number == errno.ENOMEM:
                raise ObjectStoreFull(
                    "a segment could not be mapped: this process has too little address space (ulimit -v), or as many "
                    "mappings as it may (sysctl vm.max_map_count); drop or copy arrays that came from rlplat.get"
                )
            raise OSError(number, os.strerror(number))
        self._address = address
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, not protection & mmap.PROT_WRITE),
        }

    def __del__(self, unmap: Any = _libc.munmap) -> None:
        if self._address is not None:
            unmap(self._address, self.size)


def to_read(name: str, descriptor: int, size: int) -> Mapping:
    return Mapping(name, descriptor, size, _POPULATE, mmap.PROT_READ)


def to_change(name: str, descriptor: int, size: int) -> Mapping:
    """What is written to it is copied page by page, and no other process sees it."""
    return Mapping(name, descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)


def to_fill(name: str, descriptor: int, size: int) -> Mapping:
    return Mapping(name, descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
