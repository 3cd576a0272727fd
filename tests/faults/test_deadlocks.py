"""Those that wait for themselves or for each other (fault catalogue 66)."""

from __future__ import annotations

from typing import Any

import pytest

import rlplat
from rlplat.errors import Deadlock
from tests.faults.programs import eventually


def narcissus(**options: Any) -> Any:
    class Narcissus:
        def set(self, box: list) -> None:
            self.me = box[0]

        def f(self) -> int:
            return 1

        @rlplat.method(num_returns=2)
        def pair(self) -> tuple[int, int]:
            return 1, 2

        def look(self) -> int:
            return rlplat.get(self.me.f.remote())

        def look_twice(self) -> int:
            return rlplat.get(self.me.pair.remote()[1])

        def glance(self) -> list:
            return [self.me.f.remote()]

    actor = rlplat.remote(Narcissus).options(**options).remote()
    rlplat.get(actor.set.remote([actor]))
    return actor


def test_an_actor_that_waits_for_itself_is_told_so(cluster: None) -> None:
    actor = narcissus()
    for call in (actor.look, actor.look_twice):
        with pytest.raises(
            Deadlock, match=r"Narcissus waits in one of its calls for the result of .*self\.method\(\)"
        ):
            rlplat.get(call.remote(), timeout=10)
    assert rlplat.get(actor.f.remote(), timeout=10) == 1
    (ref,) = rlplat.get(actor.glance.remote(), timeout=10)  # to call itself is fine, to wait is not
    assert rlplat.get(ref, timeout=10) == 1
    rlplat.kill(actor)


def test_an_actor_with_room_for_two_calls_may_wait_for_itself(cluster: None) -> None:
    actor = narcissus(max_concurrency=2)
    assert rlplat.get(actor.look.remote(), timeout=10) == 1
    rlplat.kill(actor)


def test_a_cycle_of_waits_is_reported(capfd: pytest.CaptureFixture[str], cluster: None) -> None:
    class Left:
        def meet(self, box: list) -> None:
            self.other = box[0]

        def ask(self) -> int:
            return rlplat.get(self.other.answer.remote())

        def answer(self) -> int:
            return rlplat.get(self.other.ask.remote())

    class Right(Left):
        pass

    left, right = rlplat.remote(Left).remote(), rlplat.remote(Right).remote()
    rlplat.get([left.meet.remote([right]), right.meet.remote([left])])
    stuck = left.ask.remote()
    said = ""

    def is_said() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "wait for each other" in said

    assert eventually(is_said, 30)
    assert "Left.ask" in said
    assert "Right.answer" in said
    assert said.count("wait for each other") == 1
    rlplat.kill(right)
    with pytest.raises(rlplat.errors.ActorDied):
        rlplat.get(stuck, timeout=10)
    rlplat.kill(left)


def test_nested_tasks_need_no_cpu_of_their_own(cluster: None) -> None:
    @rlplat.remote
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + rlplat.get(depth.remote(n - 1))

    assert rlplat.get([depth.remote(6) for _ in range(3)], timeout=60) == [6, 6, 6]
