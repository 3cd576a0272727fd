"""Defects on purpose: each must be found by the simulator within some hundred seeds, else an invariant is asleep.

`with planted(name): run_seed(...)` runs the product with one line of it undone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from rlplat.runtime.client.calls import Calls
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.client.reading import Reader
from rlplat.runtime.core.gone import Dead, Gone
from rlplat.runtime.core.node import leases
from rlplat.runtime.core.node.settling import Settling
from rlplat.runtime.core.owner.actor_calls import ActorCalls
from rlplat.runtime.core.owner.book import Book
from rlplat.runtime.core.owner.lanes import Lane, TaskRecord
from rlplat.runtime.core.scheduler.placing import Placing
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.node.copies import Copies
from rlplat.runtime.node.head import Head
from rlplat.runtime.node.machines import Machines
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.agent_messages import AskChunk
from rlplat.runtime.worker.worker import Worker

Mutant = Callable[[], Any]


def _forgets_to_release() -> Any:
    """A dead worker's resources are never free again."""

    def release(self: Any, worker: Any) -> None:
        worker.placement = None

    return mock.patch.object(Placing, "release", release)


def _grants_without_taking() -> Any:
    """Two leases for one worker: an idle worker stays in the list when it is taken."""
    from rlplat.runtime.core.scheduler.nodes import Node as SchedulerNode

    def take_idle(self: Any, env: str, *_: Any) -> Any:
        idle = self.idle.get(env)
        return idle[-1] if idle else None

    return mock.patch.object(SchedulerNode, "take_idle", take_idle)


def _forgets_the_queue_of_the_freed() -> Any:
    """What comes back is given to nobody."""
    return mock.patch.object(Placing, "freed", lambda self, pool: None)


@contextlib.contextmanager
def _commits_late_results() -> Iterator[None]:
    """Results of attempts that were given up count (R1), those of the dead among them."""
    finish = Calls.finish

    def commit(self: Any, sender: str, id: int, values: Any) -> None:
        record = self._book.call(id)
        if record is None or record.queue.kind == "call":
            return finish(self, sender, id, values)
        with mock.patch.object(TaskRecord, "worker", property(lambda _: sender)):
            return finish(self, sender, id, values)

    with mock.patch.object(Calls, "finish", commit), _late_frames():
        yield


@contextlib.contextmanager
def _late_frames() -> Iterator[None]:
    """What the dead had sent is read when it comes late."""
    forget = Transport.forget

    def remember(self: Any, peer: str) -> None:
        forget(self, peer)
        self._forgotten = Gone()
        self._senders[peer.encode()] = peer  # on the connection that we have made

    with mock.patch.object(Transport, "forget", remember):
        yield


def _drops_a_borrow() -> Any:
    """Only the first of several borrows of a peer is written down."""
    lend = Book.lend

    def forget(self: Any, id: int, peer: str, count: int = 1, lender: str = "") -> bool:
        entry = self.find(id)
        if count > 0 and entry is not None and entry.borrowers and peer in entry.borrowers:
            return True
        return lend(self, id, peer, count, lender)

    return mock.patch.object(Book, "lend", forget)


def _keeps_the_borrows_of_the_dead() -> Any:
    return mock.patch.object(Book, "settled", lambda self, peer: None)


def _never_lends() -> Any:
    """Refs travel without their owner being told."""
    return mock.patch.object(Objects, "hand_over", lambda self, keys, peer, count=1: None)


def _loses_tasks_of_the_dead() -> Any:
    """A worker's queued tasks die with it."""
    lose = Lane.lose

    def forget(self: Any, worker: str, *more: Any) -> list[TaskRecord]:
        lease = self.leases.get(worker)
        if lease is not None and len(lease.in_flight) > 1:
            lease.in_flight.popitem()
        return lose(self, worker, *more)

    return mock.patch.object(Lane, "lose", forget)


def _retries_for_ever() -> Any:
    """A poison task is never charged."""
    lose = Lane.lose

    def spare(self: Any, worker: str, *more: Any) -> list[TaskRecord]:
        for record in self.leases[worker].in_flight.values() if worker in self.leases else ():
            record.retries_left = -1
        return lose(self, worker, *more)

    return mock.patch.object(Lane, "lose", spare)


def _never_gives_back() -> Any:
    """What is queued behind a waiting task stays there."""
    return mock.patch.object(Worker, "_give_back", lambda self: None)


def _stays_stalled() -> Any:
    """A worker that gave tasks back is never believed again... and its tasks are lost."""
    gave_back = Lane.gave_back

    def forget(self: Any, worker: str, ids: list[int]) -> None:
        gave_back(self, worker, ids)
        if ids:
            self.ready.popleft()

    return mock.patch.object(Lane, "gave_back", forget)


def _calls_out_of_order() -> Any:
    """An actor's queued calls are sent last one first."""
    assign = ActorCalls.assign

    def shuffle(self: Any, pace: object) -> Any:
        if self.worker is not None and len(self.queue) > 2 and not any(r.waits for r in self.queue):
            first, *rest = self.queue
            self.queue.clear()
            self.queue.extend([first, *reversed(rest)])
        return assign(self, pace)

    return mock.patch.object(ActorCalls, "assign", shuffle)


def _forgets_lost_calls() -> Any:
    """Calls that were with a lost incarnation neither fail nor run again."""
    restarting = ActorCalls.restarting

    def forget(self: Any, reason: str) -> Any:
        if self.lease is not None:
            in_flight = self.lease.in_flight
            self.lease.in_flight = {id: r for id, r in in_flight.items() if r.message.creation is not None}
        return restarting(self, reason)

    return mock.patch.object(ActorCalls, "restarting", forget)


def _repeats_every_call() -> Any:
    """Calls that may run once only run again after a restart."""
    restarting = ActorCalls.restarting

    def repeat(self: Any, reason: str) -> Any:
        for record in self.lease.in_flight.values() if self.lease is not None else ():
            record.retries_left = -1
        return restarting(self, reason)

    return mock.patch.object(ActorCalls, "restarting", repeat)


def _tells_nobody_of_deaths() -> Any:
    """`WorkerDied` is not sent."""
    post = Head._post

    def silent(self: Any, client: str, message: Any) -> None:
        if type(message) is not messages.WorkerDied:
            post(self, client, message)

    return mock.patch.object(Head, "_post", silent)


def _keeps_leases() -> Any:
    """Idle leases are never returned."""
    return mock.patch.object(Lane, "idle_leases", lambda self, now, idle_s: [])


def _says_nothing_of_the_dead() -> Any:
    """Borrowers do not tell the owners what they have from a dead process."""
    tell = Objects._tell_held

    def silent(self: Any, lender: str) -> None:
        borrows, self.borrows = self.borrows, {}
        tell(self, lender)
        self.borrows = borrows

    return mock.patch.object(Objects, "_tell_held", silent)


def _settles_at_once() -> Any:
    """The node waits for nobody before it says that a death is settled."""
    return mock.patch.object(Settling, "died", lambda self, process, witnesses: [process])


@contextlib.contextmanager
def _listens_to_the_dead() -> Iterator[None]:
    """Late frames of the dead are read, and calls among them are run."""
    open_argument = Reader.open_argument

    def run_on(self: Any, value: Any, caller: str) -> Any:
        objects = self._objects
        dead, objects.dead = objects.dead, Dead()
        try:
            return open_argument(self, value, caller)
        finally:
            objects.dead = dead

    with mock.patch.object(Reader, "open_argument", run_on), _late_frames():
        yield


def _holds_a_long_lease() -> Any:
    """A machine goes on without the head for longer than the head waits."""
    return mock.patch.object(leases, "LEASE_S", leases.SILENT_S + 1)


def _has_no_zygote_that_fences() -> Any:
    """A node that hangs keeps its workers."""
    from tests.simulation.cluster import SimProcesses

    return mock.patch.object(SimProcesses, "lease_zygote", lambda self, until: None)


def _counts_the_lease_from_the_answer() -> Any:
    """Not from the question: it is too long by the time that the answer was under way."""

    def answered(self: Any, number: int) -> bool:
        self.until = max(self._asked.values(), default=0.0) + leases.LEASE_S + leases.SILENT_S - leases.BROKEN_S
        return True

    return mock.patch.object(leases.Lease, "answered", answered)


def _takes_a_break_for_a_death() -> Any:
    """The head waits for no lease to end."""
    return mock.patch.object(leases, "BROKEN_S", 0.5)


def _never_gives_up() -> Any:
    """A machine that is silent is waited for."""
    return mock.patch.object(leases.Patience, "is_over", lambda self, now: False)


def _answers_no_reader_of_lost_bytes() -> Any:
    """Pulls from a machine that was lost wait on."""
    return mock.patch.object(Copies, "lost", lambda self, creators: None)


def _says_nothing_of_gone_creators() -> Any:
    """Who asks for bytes of a process that is not there hears nothing."""
    send_on = Machines._send_on

    def silent(self: Any, message: Any) -> None:
        if not isinstance(message, AskChunk) or self._node_of(message.creator):
            send_on(self, message)

    return mock.patch.object(Machines, "_send_on", silent)


MUTANTS_OF_MACHINES: dict[str, Mutant] = {
    "a machine that holds its lease for too long": _holds_a_long_lease,
    "a lease that counts from the answer": _counts_the_lease_from_the_answer,
    "a machine whose zygote does not fence": _has_no_zygote_that_fences,
    "a head that takes a break for a death": _takes_a_break_for_a_death,
    "a head that never gives up": _never_gives_up,
    "a pull from a lost machine that waits on": _answers_no_reader_of_lost_bytes,
    "a head that says nothing of gone creators": _says_nothing_of_gone_creators,
}
"""Found by programs on several machines."""
FIRST_SEEDS = {
    "a lease that counts from the answer": 25,
    "a machine whose zygote does not fence": 100,
    "a pull from a lost machine that waits on": 35,
}
"""Where to begin, which is quicker."""
MUTANTS_OF_LOANS: dict[str, Mutant] = {
    "borrowers that say nothing of the dead": _says_nothing_of_the_dead,
    "a node that settles deaths at once": _settles_at_once,
    "a process that listens to the dead": _listens_to_the_dead,
}
"""Found by programs about loans."""
MUTANTS: dict[str, Mutant] = {
    "a scheduler that forgets to release": _forgets_to_release,
    "a scheduler that grants a worker twice": _grants_without_taking,
    "a scheduler that serves nobody with what comes back": _forgets_the_queue_of_the_freed,
    "an owner that commits late results": _commits_late_results,
    "a book that drops a borrow": _drops_a_borrow,
    "a book that keeps the borrows of the dead": _keeps_the_borrows_of_the_dead,
    "refs that travel unlent": _never_lends,
    "a lane that loses the tasks of the dead": _loses_tasks_of_the_dead,
    "a lane that never charges a poison task": _retries_for_ever,
    "a worker that never gives tasks back": _never_gives_back,
    "a lane that loses what was given back": _stays_stalled,
    "calls to an actor out of order": _calls_out_of_order,
    "a restart that forgets the calls under way": _forgets_lost_calls,
    "a restart that repeats calls that may run once": _repeats_every_call,
    "a node that tells nobody of deaths": _tells_nobody_of_deaths,
    "an owner that keeps its leases": _keeps_leases,
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    with (MUTANTS | MUTANTS_OF_LOANS | MUTANTS_OF_MACHINES)[name]():
        yield
