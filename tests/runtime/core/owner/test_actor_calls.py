"""One actor as its caller sees it: the rules at the head of `actor_calls`."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from rlplat.runtime.core.owner.actor_calls import WINDOW, ActorCalls
from rlplat.runtime.core.owner.lanes import TaskRecord
from rlplat.runtime.wire.messages import Creation, More, Run
from rlplat.runtime.wire.values import ErrorInfo
from tests.runtime.core.validity import check_calls

GONE = ErrorInfo("ActorDied", "actor A is gone: its process w1 died")


class Caller:
    """The shell in short: it keeps what is open, and notes what was sent and what failed."""

    def __init__(self, *, is_creator: bool = False, may_restart: bool = False) -> None:
        self.open: dict[int, TaskRecord] = {}
        self.actor = ActorCalls("driver:1", "A")
        self.sent: list[int] = []
        self.failed: dict[int, str] = {}
        self._next = 1
        if is_creator:
            record = self._record(Run(1, "code", "__init__", b"", More(creation=Creation("driver:1"))))
            self.actor.queued(record)
            if may_restart:
                self.actor.creation = msgspec.structs.replace(record)

    def _record(self, message: Any, retries: int = 0, waits: int = 0) -> TaskRecord:
        id, self._next = self._next, self._next + 1
        record = TaskRecord(id, message, None, f"A.f{id}", (id,), None, self.actor, retries, waits=waits)
        self.open[id] = record
        return record

    def call(self, retries: int = 0, waits: int = 0, is_exactly_once: bool = False) -> TaskRecord:
        more = More(seq=-1) if is_exactly_once else None
        record = self._record(Run(0, "", "f", b"", more), retries, waits)
        self.actor.queued(record)
        self.send()
        return record

    def placed(self, worker: str, incarnation: int) -> None:
        if self.actor.placed(worker, incarnation):
            again = msgspec.structs.replace(self.actor.creation, waits=0)
            self.open[again.id] = again
            self.actor.queue.appendleft(again)
        self.send()

    def argument_came(self, record: TaskRecord) -> None:
        record.waits -= 1
        self.send()

    def in_flight(self) -> dict[int, TaskRecord]:
        return {} if self.actor.lease is None else self.actor.lease.in_flight

    def reply(self, id: int) -> None:
        record = self.in_flight()[id]
        record.is_open = False
        self.open.pop(id, None)
        self.actor.lease.remove(record)  # type: ignore[union-attr]
        self.send()

    def restarting(self) -> None:
        self._fail(self.actor.restarting("its process w1 died: SIGKILL"))

    def ended(self, was_made: bool = True) -> None:
        self._fail(self.actor.ended(GONE, was_made))

    def send(self) -> None:
        for lease, records in self.actor.assign():
            assert lease is self.actor.lease
            self.sent += [record.id for record in records]
        check_calls(self.actor)

    def _fail(self, fails: Any) -> None:
        for fail in fails:
            assert fail.record.id in self.open, "failed twice"
            self.open.pop(fail.record.id).is_open = False
            self.failed[fail.record.id] = fail.error.message
        check_calls(self.actor)


def test_calls_wait_for_the_address_and_leave_in_order() -> None:
    caller = Caller()
    caller.call()
    caller.call()
    assert caller.sent == []
    caller.placed("w1", 1)
    caller.call()
    assert caller.sent == [1, 2, 3]


def test_a_call_that_waits_for_an_argument_holds_up_those_behind_it() -> None:
    caller = Caller()
    caller.placed("w1", 1)
    waiting = caller.call(waits=1)
    caller.call()
    assert caller.sent == []
    caller.argument_came(waiting)
    assert caller.sent == [1, 2]


def test_a_call_that_failed_or_was_cancelled_meanwhile_is_passed_over() -> None:
    caller = Caller()
    caller.placed("w1", 1)
    waiting = caller.call(waits=1)
    caller.call()
    waiting.is_open = False
    caller.send()
    assert caller.sent == [2]


def test_calls_under_way_go_back_to_the_head_in_order_and_pay_with_a_retry() -> None:
    caller = Caller()
    caller.placed("w1", 1)
    first, second = caller.call(retries=1), caller.call(retries=-1)
    caller.restarting()
    third = caller.call(retries=1)
    assert caller.sent == [1, 2]
    caller.placed("w2", 2)
    assert caller.sent == [1, 2, 1, 2, 3]
    assert (first.retries_left, second.retries_left, third.retries_left) == (0, -1, 1)
    caller.restarting()
    assert list(caller.failed) == [1]


def test_without_retries_a_lost_call_fails_and_says_that_it_may_have_run() -> None:
    caller = Caller()
    caller.placed("w1", 1)
    caller.call()
    caller.reply(1)
    caller.call()
    caller.restarting()
    caller.call()
    assert list(caller.failed) == [2]
    assert "A.f2 may or may not have run" in caller.failed[2]
    assert "SIGKILL" in caller.failed[2]
    caller.placed("w2", 2)
    assert caller.sent == [1, 2, 3]  # what was never sent just waited


def test_the_end_fails_everything_and_says_what_can_have_run() -> None:
    caller = Caller()
    caller.placed("w1", 1)
    caller.call(retries=5)
    caller.call(waits=1)
    caller.ended()
    assert caller.failed == {
        1: f"A.f1 may or may not have run: {GONE.message}",
        2: f"A.f2 did not run: {GONE.message}",
    }
    assert caller.actor.gone is GONE
    caller.ended()
    caller.restarting()
    caller.placed("w2", 2)
    assert caller.actor.worker is None


def test_when_the_constructor_failed_no_call_has_run() -> None:
    caller = Caller()
    caller.placed("w1", 1)
    caller.call()
    caller.ended(was_made=False)
    assert caller.failed == {1: f"A.f1 did not run: {GONE.message}"}


def test_the_creator_creates_each_incarnation_ahead_of_its_calls() -> None:
    caller = Caller(is_creator=True, may_restart=True)
    caller.call(retries=1)
    caller.placed("w1", 1)
    assert caller.sent == [1, 2]
    caller.reply(1)
    caller.restarting()
    caller.placed("w2", 2)
    assert caller.sent == [1, 2, 1, 2]
    caller.restarting()  # this one did not even get through its constructor
    assert list(caller.failed) == [2]
    caller.placed("w3", 3)
    assert caller.sent == [1, 2, 1, 2, 1]


def test_a_creation_that_waits_for_an_argument_is_sent_once_it_is_there() -> None:
    caller = Caller(is_creator=True, may_restart=True)
    caller.actor.queue[0].waits = 1
    caller.placed("w1", 1)
    caller.restarting()
    caller.placed("w2", 2)
    assert caller.sent == []
    caller.argument_came(caller.actor.queue[0])
    assert caller.sent == [1]


def test_news_of_an_older_incarnation_is_void() -> None:
    caller = Caller()
    caller.placed("w2", 2)
    caller.placed("w1", 1)
    assert caller.actor.worker == "w2"
    caller.actor.lease.known_code.add("code")  # type: ignore[union-attr]
    caller.placed("w2", 2)
    assert caller.actor.lease.known_code == {"code"}


def test_code_is_sent_to_each_incarnation() -> None:
    caller = Caller()
    caller.placed("w1", 1)
    caller.actor.lease.known_code.add("code")  # type: ignore[union-attr]
    caller.restarting()
    caller.placed("w2", 2)
    assert caller.actor.lease.known_code == set()


def test_exactly_once_calls_are_numbered_and_say_what_is_answered() -> None:
    caller = Caller()
    caller.placed("w1", 1)
    records = [caller.call(retries=-1, is_exactly_once=True) for _ in range(3)]
    assert [record.message.more.seq for record in records] == [1, 2, 3]
    assert [record.message.more.answered for record in records] == [0, 0, 0]
    caller.reply(1)
    caller.reply(2)
    assert caller.call(retries=-1, is_exactly_once=True).message.more.answered == 2
    caller.restarting()
    caller.placed("w2", 2)
    assert caller.sent == [1, 2, 3, 4, 3, 4]
    assert [record.message.more.answered for record in caller.in_flight().values()] == [2, 2]


def test_no_more_exactly_once_calls_are_under_way_than_the_actor_remembers() -> None:
    caller = Caller()
    caller.placed("w1", 1)
    for _ in range(WINDOW + 10):
        caller.call(retries=-1, is_exactly_once=True)
    assert len(caller.sent) == WINDOW
    caller.reply(1)
    assert caller.sent[-1] == WINDOW + 1


def test_random_lives_lose_and_repeat_nothing() -> None:
    """Every call ends exactly once: with a reply, or with an error."""
    for seed in range(300):
        rng = random.Random(seed)
        caller = Caller(is_creator=rng.random() < 0.5, may_restart=True)
        replied: set[int] = set()
        incarnation, waiting = 0, []
        for _ in range(80):
            match rng.randrange(6):
                case 0 | 1:
                    waits = int(rng.random() < 0.2)
                    record = caller.call(rng.choice([0, 1, -1]), waits, rng.random() < 0.3)
                    waiting += [record] * waits
                case 2 if caller.actor.worker is None:
                    incarnation += 1
                    caller.placed(f"w{incarnation}", incarnation)
                case 3 if caller.actor.worker is not None and rng.random() < 0.3:
                    caller.restarting()
                case 4 if caller.in_flight():
                    id = rng.choice(list(caller.in_flight()))
                    assert id not in replied or id == 1
                    replied.add(id)
                    caller.reply(id)
                case 5 if waiting:
                    caller.argument_came(waiting.pop())
        caller.ended()
        assert not caller.open
        assert not replied & set(caller.failed) - {1}, seed
