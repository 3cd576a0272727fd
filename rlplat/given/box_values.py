"""`box_values`: numbers that a caller has in hand, in the dtype of a Box space; none of them becomes another."""

from __future__ import annotations

from typing import Any

import numpy as np


def box_values(array: np.ndarray, dtype: Any) -> np.ndarray:
    """array in `dtype`: whole numbers of any dtype where they fit, floats of any width for floats. ValueError, whose
    text follows the array's name, for all else; NaN and infinity are not looked for."""
    dtype = np.dtype(dtype)
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in ("biuf" if dtype.kind == "f" else "biu"):
        raise ValueError(f"has dtype {array.dtype}")
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = array.astype(dtype)
        wrong = np.isinf(values) & np.isfinite(array)
        low, high = np.finfo(dtype).min, np.finfo(dtype).max
    else:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        # An array of one sign has no room for the other's limit: its dtype's own is nearer.
        own = (0, 1) if array.dtype.kind == "b" else (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max)
        wrong = (array < max(low, own[0])) | (array > min(high, own[1]))
        values = array.astype(dtype)
    if wrong.any():
        raise ValueError(f"holds {array[wrong][0]}, which is not between {low} and {high}")
    return values
