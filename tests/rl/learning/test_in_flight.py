"""`InFlight`: every answer is handed on once, and what has arrived is counted before a failure is raised."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import rlplat
from rlplat.errors import EnvError
from rlplat.rl.learning.queue_ring import InFlight


def test_answers_are_handed_on_and_may_ask_for_more(runtime: None) -> None:
    in_flight, heard = InFlight(), list[Any]()

    def on_answer(name: str, ref: Any) -> None:
        number = rlplat.get(ref)
        heard.append((name, number))
        if number:
            in_flight.ask(rlplat.put(number - 1), then=partial(on_answer, name))

    in_flight.ask(rlplat.put(2), then=partial(on_answer, "a"))
    in_flight.next()
    assert heard == [("a", 2)]
    in_flight.ask(rlplat.put(1), then=partial(on_answer, "b"))
    in_flight.finish()
    assert sorted(heard) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]


def test_the_first_failure_is_raised_when_all_were_heard(runtime: None) -> None:
    in_flight, heard = InFlight(), list[Any]()

    def on_answer(ref: Any) -> None:
        heard.append(rlplat.get(ref))
        if heard[-1]:
            raise EnvError(f"failure {len(heard)}")

    for fails in (True, True, False):
        in_flight.ask(rlplat.put(fails), then=on_answer)
    with pytest.raises(EnvError, match="failure 1"):
        in_flight.finish()
    assert sorted(heard) == [False, True, True]
    in_flight.finish()  # nothing is left


def test_closed_it_forgets(runtime: None) -> None:
    in_flight = InFlight()
    in_flight.ask(rlplat.put(1), then=pytest.fail)  # type: ignore[arg-type]
    in_flight.close()
    in_flight.finish()
