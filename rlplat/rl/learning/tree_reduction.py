"""What many workers return, combined by few: in one process, or in a tree of tasks, with equal results bit for bit.

    refs = [worker.sample.remote() for worker in workers]               # 1,000 of them
    refs = reduce_in_tasks(refs, join, fan_in=16)                       # 1,000 -> 63 -> 4, by tasks
    total = reduce_pairs(get(refs), join)                               # as if it had got all 1,000 itself

Floating-point addition is not associative, so both keep to one order: neighbours are combined two by two, level by
level, an odd last one goes up as it is. A group of 2^k neighbours is a subtree of that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import rlplat

if TYPE_CHECKING:
    from rlplat import ObjectRef

T = TypeVar("T")


def reduce_pairs(items: Sequence[T], combine: Callable[[T, T], T]) -> T:
    """combine(combine(0, 1), combine(2, 3)) and so on; one item is returned as it is."""
    assert items, "nothing to reduce"
    level = list(items)
    while len(level) > 1:
        pairs = [combine(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def reduce_in_tasks(
    refs: Sequence[ObjectRef], combine: Callable[[Any, Any], Any], fan_in: int
) -> list[ObjectRef]:
    """At most `fan_in` refs (a power of two) that `reduce_pairs` makes the same of; returns at once.

    Of up to `fan_in` refs they are these themselves. A ref that fails makes every ref above it fail.
    """
    assert fan_in >= 2 and fan_in & (fan_in - 1) == 0, f"fan_in is {fan_in}, expected a power of two"
    task = rlplat.remote(_reduce).options(num_cpus=0)
    level = list(refs)
    while len(level) > fan_in:
        level = [
            task.remote(combine, *level[start : start + fan_in]) for start in range(0, len(level), fan_in)
        ]
    return level


def _reduce(combine: Callable[[Any, Any], Any], *items: Any) -> Any:
    return reduce_pairs(items, combine)
