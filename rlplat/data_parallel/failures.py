"""What went wrong in a group of ranks, told from how each of them answered. Pure.

A rank that dies or hangs makes the collective calls of all others fail: the cause is the rank that did not fail so.

    verdict([Failed(error), Lost("actor Rank-1 died ...")])        -> what `RankGroup.call` raises
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlplat.errors import ConfigError, RlplatError, RuntimeFault


class RanksLost(RuntimeFault):
    """Processes of ranks died or hung: the group can be built again from a checkpoint."""


class CollectiveFailed(RlplatError):
    """In a rank: a collective call failed, because another rank did not take part.

    (reason, steps of this rank so far, what its user can do for equal data on all ranks)
    """


@dataclass(frozen=True)
class Answered:
    """The call returned; num_steps: of the rank so far, where it says so; what: what it did."""

    num_steps: int | None = None
    what: str = "returned"


@dataclass(frozen=True)
class Cut:
    """A collective call failed in it; the fields of `CollectiveFailed`."""

    reason: str
    num_steps: int
    equal_data: str = ""


@dataclass(frozen=True)
class Raised:
    error: BaseException


@dataclass(frozen=True)
class Died:
    reason: str


@dataclass(frozen=True)
class Silent:
    """Neither of these yet, although others failed."""


Outcome = Answered | Cut | Raised | Died | Silent


def verdict(outcomes: Sequence[Outcome], hang_timeout_s: float) -> BaseException | None:
    """What to raise for the outcomes of one call, in the order of ranks; None: all went well."""
    for outcome in outcomes:
        if isinstance(outcome, Raised):
            return outcome.error
    if died := [f"rank {rank}: {one.reason}" for rank, one in enumerate(outcomes) if isinstance(one, Died)]:
        return RanksLost("; ".join(died))
    cut = [(rank, one) for rank, one in enumerate(outcomes) if isinstance(one, Cut)]
    if not cut:
        return None
    waits, reason = f"rank {cut[0][0]} waited in vain in step {cut[0][1].num_steps + 1}", cut[0][1].reason
    for rank, outcome in enumerate(outcomes):
        if isinstance(outcome, Answered):
            after = "" if outcome.num_steps is None else f" after {outcome.num_steps} steps"
            return ConfigError(
                f"rank {rank} {outcome.what}{after}, and {waits} for it: the ranks have unequal data or take different "
                f"ways. {cut[0][1].equal_data}"
            )
    if hung := [rank for rank, one in enumerate(outcomes) if isinstance(one, Silent)]:
        names = ", ".join(map(str, hung))
        return RanksLost(f"rank {names} hangs: no sign of it for {hang_timeout_s:g} s, while {waits}")
    return RanksLost(f"the connection between the ranks broke: {waits}: {reason}")
