"""When a death is settled (docs/decisions/0011): the cases, and random histories against the rule in words."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.runtime.core.node.settling import Settling


def test_a_death_is_settled_when_all_witnesses_are_heard() -> None:
    settling = Settling()
    assert settling.died("w1", ["driver", "w2"]) == []
    assert settling.heard("w2", "w1") == []
    assert settling.heard("w2", "w1") == []  # saying it twice is saying it once
    assert settling.heard("driver", "w1") == ["w1"]
    assert settling.heard("driver", "w1") == []


def test_without_witnesses_it_is_settled_at_once() -> None:
    assert Settling().died("w1", []) == ["w1"]


def test_deaths_are_settled_in_their_order() -> None:
    settling = Settling()
    settling.died("w1", ["driver", "w3"])
    settling.died("w2", ["driver", "w3"])
    assert settling.heard("driver", "w2") == settling.heard("w3", "w2") == []
    assert settling.heard("driver", "w1") == []
    assert settling.heard("w3", "w1") == ["w1", "w2"]


def test_a_witness_that_dies_unheard_ties_the_death_to_its_own() -> None:
    settling = Settling()
    settling.died("w1", ["driver", "w2"])
    assert settling.heard("driver", "w1") == []
    assert settling.died("w2", ["driver"]) == []  # w2 may have passed on what it had from w1
    assert settling.heard("driver", "w2") == ["w1", "w2"]


def test_one_that_was_heard_before_it_died_ties_nothing() -> None:
    settling = Settling()
    settling.died("w1", ["driver", "w2"])
    settling.heard("w2", "w1")
    settling.died("w2", ["driver"])
    assert settling.heard("driver", "w1") == ["w1"]
    assert settling.heard("driver", "w2") == ["w2"]


def test_whoever_comes_later_is_no_witness() -> None:
    settling = Settling()
    settling.died("w1", ["driver"])
    assert settling.heard("w9", "w1") == []
    assert settling.heard("driver", "w1") == ["w1"]


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(st.data())
def test_nothing_is_settled_that_somebody_alive_or_unsettled_was_not_heard_of(data: st.DataObject) -> None:
    settling = Settling()
    alive, number = [f"w{i}" for i in range(4)], 4
    witnesses: dict[str, set[str]] = {}
    heard: set[tuple[str, str]] = set()
    order: list[str] = []
    done: list[str] = []
    for _ in range(data.draw(st.integers(1, 25))):
        asked = [(w, d) for d in order for w in sorted(witnesses[d]) if w in alive and (w, d) not in heard]
        if asked and data.draw(st.booleans()):
            witness, dead = data.draw(st.sampled_from(asked))
            heard.add((witness, dead))
            done += settling.heard(witness, dead)
        else:
            dead = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            order.append(dead)
            witnesses[dead] = set(alive)
            done += settling.died(dead, list(alive))
            alive.append(f"w{number}")
            number += 1
        assert done == order[: len(done)]
        for dead in done:
            for witness in witnesses[dead]:
                assert (witness, dead) in heard or witness in done
        # And nothing waits without a cause: the next group has one who is not heard, in itself or tied to it.
        if len(done) < len(order):
            until = len(done)
            group_is_open = False
            index = len(done)
            while index <= until and index < len(order):
                dead = order[index]
                for witness in witnesses[dead]:
                    if (witness, dead) not in heard:
                        if witness in alive:
                            group_is_open = True
                        else:
                            until = max(until, order.index(witness))
                index += 1
            assert group_is_open
