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
_READ, _WRITE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED = 0x10
_REMAP_TO, _DONT_UNMAP = 1 | 2, 4
"""Flags of mremap: MAYMOVE to a place where something may be mapped; and leave the old place mapped, without pages."""
_can_leave = True
"""Whether this kernel knows that (from 5.13 on, of files)."""
_LARGE = 2 << 20
"""Page tables of so many bytes move as one, from a multiple of it to another."""


class Mapping:
    """What numpy makes an array of (`numpy.asarray`), which keeps it alive."""

    def __init__(self, name: str, address: int, size: int, protection: int) -> None:
        self.name, self.address, self.size = name, address, size
        self.key: Key | None = None
        """Of the object whose views it has."""
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, not protection & mmap.PROT_WRITE),
        }

    def make_private(self, descriptor: int) -> Mapping | None:
        """What is written to it from now on, through whatever view or pointer, is seen by this process alone. Returns
        a mapping to fill the file by, with the pages that this one had; None where the kernel cannot do that."""
        global _can_leave
        private, shared = to_change(self.name, descriptor, self.size), None
        if _can_leave:
            shared = Mapping(self.name, _place(self.size), self.size, _WRITE)
            if not _moved(self, shared, _DONT_UNMAP):  # nor is it known whether there is a mapping at that place still
                _can_leave, shared.size, shared = False, 0, None
        # (Not by mmap with MAP_FIXED: where that fails, it has unmapped what was there.)
        if not _moved(private, self):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        private.size = 0
        return shared

    def __del__(self, unmap: Any = _libc.munmap) -> None:
        if self.size:
            unmap(self.address, self.size)


def to_read(name: str, descriptor: int, size: int) -> Mapping:
    return Mapping(name, _mapped(descriptor, size, _POPULATE, _READ), size, _READ)


def to_change(name: str, descriptor: int, size: int) -> Mapping:
    """What is written to it is copied page by page, and no other process sees it."""
    return Mapping(name, _mapped(descriptor, size, mmap.MAP_PRIVATE, _WRITE), size, _WRITE)


def to_fill(name: str, descriptor: int, size: int) -> Mapping:
    """Its pages are there already."""
    mapping = Mapping(name, _place(size), size, _WRITE)
    _mapped(descriptor, size, _POPULATE | _MAP_FIXED, _WRITE, mapping.address)
    return mapping


def _place(size: int) -> int:
    """Where a mapping of this size can be, at a multiple of `_LARGE` if it is that large."""
    slack = _LARGE if size >= _LARGE else 0
    address = _mapped(-1, size + slack, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0)
    if not slack:
        return address
    size += -size % mmap.PAGESIZE
    before = -address % _LARGE
    if before:
        _libc.munmap(address, before)
    _libc.munmap(address + before + size, slack - before)
    return address + before


def _mapped(descriptor: int, size: int, flags: int, protection: int, at: int | None = None) -> int:
    address: int = _libc.mmap(at, size, protection, flags, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        if number == errno.ENOMEM:
            raise ObjectStoreFull(
                "a segment could not be mapped: this process has too little address space (ulimit -v), or as many "
                "mappings as it may (sysctl vm.max_map_count); drop or copy arrays that came from rlplat.get"
            )
        raise OSError(number, os.strerror(number))
    return address


def _moved(source: Mapping, target: Mapping, flags: int = 0) -> bool:
    moved: int = _libc.mremap(source.address, source.size, source.size, _REMAP_TO | flags, target.address)
    return moved != _FAILED
