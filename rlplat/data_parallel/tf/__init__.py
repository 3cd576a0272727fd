"""Data-parallel training on TensorFlow: what runs in the processes of the ranks."""

from __future__ import annotations

from rlplat.given.triton_first import before_tensorflow

before_tensorflow()
