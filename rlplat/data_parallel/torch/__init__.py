"""Data-parallel training on torch: what runs in the processes of the ranks."""

from __future__ import annotations

from rlplat.given.triton_first import guard

guard()
