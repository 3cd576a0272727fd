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
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_FAILED = ctypes.c_void_p(-1).value
_POPULATE = mmap.MAP_SHARED | mmap.MAP_POPULATE
_FIXED = 1 | 2
"""Of mremap: MAYMOVE, and in the place of what is there."""


class Mapping:
    """What numpy makes an array of (`numpy.asarray`), which keeps it alive."""

    def __init__(self, name: str, descriptor: int, size: int, flags: int, protection: int) -> None:
        self.name, self.size = name, size
        self.key: Key | None = None
        """Of the object whose views it has."""
        self.address = 0
        self.address = address = _mapped(descriptor, size, flags, protection)
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, not protection & mmap.PROT_WRITE),
        }

    def make_private(self, descriptor: int) -> None:
        """What is written to it from now on, through whatever view or pointer, is seen by this process alone."""
        address = _mapped(descriptor, self.size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        # (Not by mmap with MAP_FIXED: where that fails, it has unmapped what was there.)
        if _libc.mremap(address, self.size, self.size, _FIXED, self.address) == _FAILED:
            number = ctypes.get_errno()
            _libc.munmap(address, self.size)
            raise OSError(number, os.strerror(number))

    def __del__(self, unmap: Any = _libc.munmap) -> None:
        if self.address:
            unmap(self.address, self.size)


def _mapped(descriptor: int, size: int, flags: int, protection: int) -> int:
    address: int = _libc.mmap(None, size, protection, flags, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        if number == errno.ENOMEM:
            raise ObjectStoreFull(
                "a segment could not be mapped: this process has too little address space (ulimit -v), or as many "
                "mappings as it may (sysctl vm.max_map_count); drop or copy arrays that came from rlplat.get"
            )
        raise OSError(number, os.strerror(number))
    return address


def to_read(name: str, descriptor: int, size: int) -> Mapping:
    return Mapping(name, descriptor, size, _POPULATE, mmap.PROT_READ)


def to_change(name: str, descriptor: int, size: int) -> Mapping:
    """What is written to it is copied page by page, and no other process sees it."""
    return Mapping(name, descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)


def to_fill(name: str, descriptor: int, size: int) -> Mapping:
    """Its pages are there already."""
    return Mapping(name, descriptor, size, _POPULATE, mmap.PROT_READ | mmap.PROT_WRITE)
