"""`keep_freed_memory`: what a round frees, the next round fills, without the kernel in between."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of <malloc.h>."""
KEPT_BYTES = 512 << 20
LARGEST_KEPT = 256 << 20


def keep_freed_memory() -> None:
    """Let this process keep freed memory for the arrays that come next: up to 512 MiB, arrays of up to 256 MiB.

    By itself the C library gives memory of some MiB back, and the kernel clears every page that it hands out again: for
    minibatches of images, made anew at each step, that takes longer than to fill them. Without glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT) or mallopt(M_MMAP_THRESHOLD, 32 << 20)  # glibc's most before 2.35
