"""What must hold after each event (RELIABILITY.md, R23), and what must be left when nothing happens any more."""

from __future__ import annotations

import gc
import itertools
from typing import Any

from rlplat.runtime.core.owner.lanes import MAX_AHEAD
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.values import Key
from rlplat.runtime.worker.worker import Worker
from tests.runtime.core.validity import check_book, check_scheduler
from tests.simulation.cluster import Cluster
from tests.simulation.workload import RETRIED, History
from tests.simulation.world import Violation, World

_MAX_QUEUE = 2_000


class Invariants:
    """Watches a cluster: `check` after each event, `check_end` at quiescence."""

    def __init__(self, world: World, cluster: Cluster, history: History) -> None:
        self.world, self.cluster, self.history = world, cluster, history
        self._committed: dict[tuple[str, int], str] = {}
        """(owner, object) -> the worker whose value was taken."""
        self._placed: dict[tuple[str, str], int] = {}
        self._leases: dict[str, list[str]] = {}
        """By client, as of when it ran last."""
        self._active: dict[str, str] = {}
        """Worker -> the actor in it."""
        cluster.watch_client = self._watch

    # -- in the way of messages

    def _watch(self, client: Any) -> None:
        handlers = client.link.handlers
        handlers[messages.Done] = self._watched_result(client, handlers[messages.Done])
        handlers[messages.Placed] = self._watched_placed(client, handlers[messages.Placed])
        client.objects._free = self._watched_freed(client, client.objects._free)

    def _watched_result(self, client: Any, handle: Any) -> Any:
        """Commits per task <= 1, and only from the attempt that counts (R1)."""

        def watched(sender: str, message: Any) -> None:
            before = []
            for id in message.tasks:
                record = client.objects.book.call(id)
                if record is not None:
                    before.append((record, record.worker))
            handle(sender, message)
            for record, target in before:
                if record.is_open:
                    continue
                key = (client.client_id, record.id)
                if record.message.creation is not None:
                    key = (f"{client.client_id} for {sender}", record.id)  # each incarnation is created once
                what = f"{record.name} {key} was committed"
                is_made_again = record.name == "large" and self.world.dead  # or what it needs was lost, or is freed
                if key in self._committed and not is_made_again:
                    raise Violation(f"{what} twice: by {self._committed[key]} and {sender}")
                if sender != target:
                    raise Violation(f"{what} by {sender}, and its attempt was {target or 'nobody'}'s")
                self._committed[key] = sender

        return watched

    def _watched_placed(self, client: Any, handle: Any) -> Any:
        def watched(sender: str, message: Any) -> None:
            key = (client.client_id, message.actor)
            if message.incarnation < self._placed.get(key, 0):
                raise Violation(f"{client.client_id} heard of actor {message.actor}'s incarnations in reverse")
            self._placed[key] = message.incarnation
            handle(sender, message)

        return watched

    def _watched_freed(self, client: Any, free: Any) -> Any:
        """What is freed is needed by nobody: no ref in a living process, none on its way to one."""

        def watched(entry: Any) -> None:
            key = (client.client_id, entry.id)
            is_excused = f"{client.client_id}:{entry.id}" in self.history.found_by_name
            if self.world.processes[client.client_id].is_alive and not is_excused:
                for other in self.cluster.clients():
                    borrow = other.objects.borrows.get(key)
                    if borrow is not None and borrow.num_refs:
                        refs = f"{other.client_id} has {borrow.num_refs} refs to it"
                        raise Violation(f"object {key} was freed, and {refs}")
                if self._is_under_way(key):
                    raise Violation(f"object {key} was freed while a ref to it was under way")
            free(entry)

        return watched

    def _is_under_way(self, key: tuple[str, int]) -> bool:
        for sender, receiver, frame in self.world.frames_in_flight():
            process = self.world.processes.get(receiver)
            if process is None or not process.is_alive or process.client is None:
                continue
            if sender in process.client.objects.dead:
                continue  # it takes nothing from the dead any more
            if any(key in lent_with(message) for message in messages.decode(frame)):
                return True
        for client in self.cluster.clients():
            for sender, message in _unopened(client):
                if sender not in client.objects.dead and key in lent_with(message):
                    return True
        return False

    # -- after each event

    def check(self) -> None:
        touched = self.world.touched
        if "node" in touched:
            check_scheduler(self.cluster.node.scheduler)
            _check_dropped(self.cluster.node._transport)
            _check_dropped(self.cluster.net)
        for machine in self.cluster.machines:
            if machine.node is not None and machine.node.name in touched:
                _check_dropped(machine.node._transport)
                _check_dropped(machine.node.trunk)
        for name in touched:
            process = self.world.processes[name]
            if process.client is not None:
                if process.is_alive:
                    self._check_client(process.client)
                else:
                    self._leases.pop(name, None)
                    self._active.pop(name, None)

    def _check_client(self, client: Any) -> None:
        name = client.client_id
        _check_dropped(client.link.transport)
        check_book(client.objects.book)
        leases = []
        for lane in client.calls.lanes():
            if lane.num_requested < 0:
                raise Violation(f"{name} has requested {lane.num_requested} leases")
            for worker, lease in (*lane.leases.items(), *lane.doomed.items()):
                leases.append(worker)
                if len(lease.in_flight) > MAX_AHEAD:
                    raise Violation(f"{len(lease.in_flight)} tasks are in flight to {worker}")
        if leases != self._leases.get(name, []):
            for other, theirs in self._leases.items():
                if other != name and not set(theirs).isdisjoint(leases):
                    raise Violation(f"{set(theirs).intersection(leases)} are leased to {name} and {other}")
            self._leases[name] = leases
        if len(client.owners_waiting()) > _MAX_QUEUE:
            raise Violation(f"{name} has {len(client.owners_waiting())} calls queued")
        self._check_incarnation(client)

    def _check_incarnation(self, client: Any) -> None:
        """At most one process is an actor at a time, and their numbers only grow."""
        executor = getattr(client, "executor", None)
        actor = None if executor is None or executor.actor is None else executor.actor.instance._name
        if actor is None:
            return
        account = actor.split("@")[0]
        if self._active.get(client.client_id) != account:
            for other, theirs in self._active.items():
                if theirs == account and self.world.processes[other].is_alive:
                    raise Violation(f"actor {account} is active in {other} and {client.client_id}")
            self._active[client.client_id] = account

    # -- at quiescence

    def check_end(self, is_done: bool) -> None:
        """Nothing is in flight, no timer is set, the driver's program is over and has dropped everything."""
        if not is_done:
            raise Violation("a wait without a cause (a lost wake-up or a deadlock): " + "; ".join(self._who_waits()))
        gc.collect(0)  # all that this seed has made: the collector is off

    def check_clean(self) -> None:
        node = self.cluster.node
        away = [machine.name for machine in self.cluster.machines if machine.node is None]
        if away or len(node.machines()) != len(self.cluster.machines):
            raise Violation(f"{away} are away, and the head has {node.machines()}")
        for client in self.cluster.clients():
            calls = client.objects.book.calls()
            if calls or client.calls.num_open:
                names = [f"{record.name} at {record.worker or 'nobody'}" for record in calls]
                raise Violation(f"{client.client_id} still has tasks: {names[:5]}")
            entries = [
                f"{entry.id}: {entry.num_refs} refs, borrowers {entry.borrowers}, value {entry.value!r:.80}"
                for entry in client.objects.book.values()
            ]
            if entries:
                raise Violation(f"{client.client_id} still has objects: {entries[:5]}")
            if client.objects.borrows:
                raise Violation(f"{client.client_id} still borrows {client.objects.borrows}")
            leases = {worker for lane in client.calls.lanes() for worker in (*lane.leases, *lane.doomed)}
            if leases:
                raise Violation(f"{client.client_id} still holds leases of {leases}")
        for name, amount in node.scheduler.total.items():
            if abs(node.scheduler.available[name] - amount) > 1e-6:
                raise Violation(f"of {amount:g} {name} only {node.scheduler.available[name]:g} came back")
        demands, in_use = node.scheduler.view()["demands"], node.scheduler.in_use()
        if demands or in_use:
            raise Violation(f"the head still has demands: {demands} or workers in use: {in_use}")
        self._check_calls()

    def _check_calls(self) -> None:
        """Each incarnation of an actor ran the calls of each caller in order; without retries no call ran twice."""
        once: set[tuple[str, str, int]] = set()
        for (actor, caller), seqs in self.history.calls.items():
            account = actor.partition("@")[0]
            if not account.endswith(RETRIED):
                again = [seq for seq in seqs if (account, caller, seq) in once]
                if again:
                    raise Violation(f"{account} ran the calls {again} of {caller} in two incarnations")
                once.update((account, caller, seq) for seq in seqs)
            if any(later <= earlier for earlier, later in itertools.pairwise(seqs)):
                raise Violation(f"{actor} ran the calls of {caller} in the order {seqs}")

    def _who_waits(self) -> list[str]:
        lines = []
        for client in self.cluster.clients():
            process = self.world.processes[client.client_id]
            for record in client.objects.book.calls():
                at = record.worker or "nobody"
                lines.append(f"{client.client_id}: {record.name} #{record.id} waits={record.waits} at {at}")
            if process.state != "ended" and getattr(client, "_running", "x"):
                lines.append(f"{client.client_id} is {process.state}")
        return lines[:20]


def _check_dropped(transport: Any) -> None:
    """Everything that is said here makes sense."""
    dropped = transport.dropped
    if dropped.count:
        raise Violation(f"{dropped.count} messages were dropped, the last one: {dropped.last}")


def _unopened(client: Any) -> list[tuple[str, Any]]:
    """Calls that have arrived at a worker, with what they brought."""
    return [*client.queue._held, *client.queue.calls] if isinstance(client, Worker) else []


def lent_with(message: Any) -> list[Key]:
    """Refs that a message hands to its receiver."""
    match message:
        case messages.Code():
            return message.refs
        case messages.Run():
            return [key for value in message.values() for key in value.keys()]
        case messages.Done():
            values = [each for result in message.results if isinstance(result, list) for each in result]
        case messages.Fetched() | messages.Item():
            values = [message.value]
        case _:
            return []
    return [key for value in values for key in value.refs]  # `holder` means something in arguments only
