"""The networks on torch, and what learns with them."""

from __future__ import annotations

from rlplat.given.triton_first import guard

guard()
