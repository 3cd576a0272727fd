"""Leases of machines: whatever arrives and whatever is lost, the kill comes before the head's verdict."""

from __future__ import annotations

import random

import pytest

from rlplat.runtime.core.node.leases import (
    ASK_EVERY_S,
    BROKEN_S,
    LEASE_S,
    SILENT_S,
    ZYGOTE_S,
    Lease,
    Patience,
)


def test_a_lease_counts_from_the_question() -> None:
    lease = Lease(100.0)
    assert lease.until == 100.0 + LEASE_S
    first, second = lease.ask(101.0), lease.ask(102.0)
    assert lease.ask_at == 102.0 + ASK_EVERY_S
    assert lease.answered(second)
    assert lease.until == 102.0 + LEASE_S
    assert not lease.answered(first)  # late: it would be shorter
    assert not lease.answered(99)
    assert lease.until == 102.0 + LEASE_S


def test_the_head_waits_for_less_after_a_break() -> None:
    patience = Patience(0.0)
    for now in range(1, 8):
        assert not patience.is_over(float(now))
    patience.is_broken = True
    assert patience.is_over(BROKEN_S)
    silent = Patience(0.0)
    assert not any(silent.is_over(float(now)) for now in range(int(SILENT_S)))
    assert silent.is_over(SILENT_S)


def test_after_a_gap_in_its_own_clock_the_head_waits_anew() -> None:
    patience = Patience(0.0)
    assert not patience.is_over(60.0)
    assert not patience.is_over(60.0 + 2.0)


@pytest.mark.parametrize("seed", range(50))
def test_the_kill_is_always_first(seed: int) -> None:
    """Questions and answers are delayed or lost at random; then the connection falls silent, or breaks."""
    random_ = random.Random(seed)
    lease, patience = Lease(0.0), Patience(0.0)
    events: list[tuple[float, str, int]] = []
    cut_at = random_.uniform(2, 30)
    now, ask_at = 0.0, 0.0
    while now < cut_at + 40:
        now += 0.05
        if now >= ask_at and now < lease.until:
            number, ask_at = lease.ask(now), now + ASK_EVERY_S
            if random_.random() > 0.2 and now < cut_at:
                arrives = now + random_.uniform(0, 2)
                events.append((arrives, "asked", number))
        for event in [event for event in events if event[0] <= now]:
            events.remove(event)
            if event[1] == "asked":
                patience.heard(now)
                if random_.random() > 0.2:
                    events.append((now + random_.uniform(0, 2), "answered", event[2]))
            elif now < lease.until:
                lease.answered(event[2])
        patience.is_broken = patience.is_broken or now >= cut_at + 2
        if patience.is_over(now):
            break
    assert patience.is_over(now)
    assert now >= lease.until + ZYGOTE_S + 2.0
