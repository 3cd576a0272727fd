"""State by declaration: what a class names is kept and comes back, as copies and of its own type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlplat.rl.saved import Saved


class Part(Saved):
    saved = {"count": "count"}

    def __init__(self) -> None:
        self.count = 0


class Base(Saved):
    saved = {"rng": "_rng", "array": "_array", "**part": "part", "**absent": "absent"}

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)
        self._array = np.zeros(3, np.float32)
        self.part, self.absent = Part(), None


class Whole(Base):
    saved = {
        "by_name": "_by_name",
        "share": "_share",
        "nothing": "_nothing",
        "parts": "_parts_of",
        "net": "net",
        "noise": "noise",
    }

    def __init__(self) -> None:
        super().__init__()
        self._by_name: dict[str, Any] = {}
        self._share, self._nothing, self._parts_of = 0.5, None, {"one": Part()}
        self.net, self.noise = nn.Linear(2, 1), torch.Generator().manual_seed(1)


def test_what_is_named_comes_back_with_that_of_the_bases_and_shares_no_memory() -> None:
    one, other = Whole(), Whole()
    one._rng.random(), torch.rand(1, generator=one.noise)
    one._array += 2
    one.part.count, one._parts_of["one"].count, one._share = 3, 4, 1
    one._by_name = {"a": {"b": np.ones(2, np.float32)}}
    with torch.no_grad():
        one.net.weight.fill_(7.0)
    state = one.get_state()
    assert set(state) == {"rng", "array", "count", "by_name", "share", "nothing", "parts", "net", "noise"}
    other.set_state(state | {"more": 1})
    expected_draws = one._rng.random(), float(torch.rand(1, generator=one.noise))
    one._array += 1
    one._by_name["a"]["b"] += 1
    state["array"] += 5
    state["by_name"]["a"]["b"] += 5
    assert (other._rng.random(), float(torch.rand(1, generator=other.noise))) == expected_draws
    assert other._array.tolist() == [2, 2, 2] and other._array.dtype == np.float32
    assert other._by_name["a"]["b"].tolist() == [1, 1]
    assert (other.part.count, other._parts_of["one"].count, other._nothing) == (3, 4, None)
    assert isinstance(other._share, float) and other._share == 1.0
    assert other.net.weight.flatten().tolist() == [7.0, 7.0]


def test_what_a_state_lacks_is_told() -> None:
    with pytest.raises(KeyError, match="count"):
        Part().set_state({})
