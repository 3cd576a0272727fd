"""The set of processes that are gone: like a set, and small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlplat.runtime.core.gone import Dead, Gone

PEERS = [f"w{number}" for number in range(1, 40)]


@given(
    st.lists(st.sampled_from([*PEERS, "driver", "cli-1-1", "w0", "w01", "w\u00b2", ""])),
    st.integers(0, 30),
    st.sets(st.sampled_from(PEERS[:30])),
)
def test_it_is_a_set(added: list[str], end: int, alive: set[str]) -> None:
    alive = {peer for peer in alive if int(peer[1:]) < end}
    gone = Gone()
    gone.begin_with(end, alive)
    model = {peer for peer in PEERS if int(peer[1:]) < end} - alive
    for peer in added:
        gone.add(peer)
        model.add(peer)
    for peer in [*PEERS, "driver", "cli-1-1", "w0", "w01", "w\u00b2", "", "x"]:
        assert (peer in gone) == (peer in model), (peer, gone._bounds)
    assert gone._bounds == sorted(set(gone._bounds))


def test_a_hundred_thousand_deaths_are_a_few_numbers() -> None:
    dead = Dead()
    for number in range(1, 100_000):
        if number not in (7, 5000):
            dead.add_with(f"w{number}", "it was killed")
    assert dead.num_ranges() == 3
    assert len(dead.reasons) <= 100
    assert "w7" not in dead and "w8" in dead and "w100000" not in dead
    assert dead.reason("w99999") == "it was killed" and dead.reason("w8") == "long ago"
