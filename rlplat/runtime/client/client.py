"""How a process takes part in the cluster: the verbs, and what it hears from the node. The driver and every worker
have one.

The parts each keep a book of their own: `calls` of what is under way, `tasks` of leased workers, `actors` of those that
this process calls, `objects` of what it owns and borrows, `questions` of what it asked the node. `loop` sends and
receives for all of them.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from rlplat.errors import GetTimeout, NotInitialized, RuntimeFault
from rlplat.runtime.backend import Backend
from rlplat.runtime.client import report
from rlplat.runtime.client.actors import Actors
from rlplat.runtime.client.awaiting import Awaiting
from rlplat.runtime.client.calls import NODE, Calls
from rlplat.runtime.client.cancels import Cancels
from rlplat.runtime.client.envs import ClientEnvs
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.client.questions import Questions
from rlplat.runtime.client.streams import Streams
from rlplat.runtime.client.tasks import IDLE_LEASE_S, Tasks
from rlplat.runtime.demand import shape_of
from rlplat.runtime.generators import ObjectRefGenerator
from rlplat.runtime.link.loop import IoLoop, Patience
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.options import Options
from rlplat.runtime.process import signals
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.errors import to_exception
from rlplat.runtime.wire.values import ErrorInfo, Shape, Value

_IDLE_OBJECTS_S = 1.0


class Client:
    can_nest = False
    outer: Backend | None = None

    def __init__(self, session: str, client_id: str, *, spin: bool) -> None:
        self.client_id = client_id
        self.gpu_ids: tuple[int, ...] = ()
        self.namespace = ""
        self._session = session
        self._transport = Transport(session, client_id)
        self._loop = IoLoop(self._transport, spin=spin)
        self._lock = self._loop.lock
        self._total: dict[str, float] = {}
        self._lost_node: ErrorInfo | None = None
        self._objects = Objects(client_id, session, self._loop)
        self._envs = ClientEnvs(self._define_env)
        self._calls = Calls(self)
        self._tasks = Tasks(self, self._calls)
        self._actors = Actors(self, self._calls)
        self._questions = Questions(self)
        self._streams = Streams(self)
        self._cancels = Cancels(self)
        self._awaiting = Awaiting(self)
        # The verbs of the parts, bound here: a call less on the way of each task.
        self.submitter, self.submit_call = self._tasks.submitter, self._actors.submit_call
        self.create_actor, self.kill = self._actors.create, self._actors.kill
        self.handle_of = self._actors.handle_of
        self.get_actor, self.actor_names = self._actors.get, self._actors.names
        self.resources, self.cluster = self._questions.resources, self._questions.cluster
        self.create_group, self.group_ready = self._questions.create_group, self._questions.group_ready
        self.remove_group = self._questions.remove_group
        self.future, self.value_of = self._awaiting.future_of, self._awaiting.value_of
        self.cancel = self._cancels.cancel
        self._objects.on_freed, self._objects.on_returned = self._actors.on_freed, self._actors.on_returned
        self._objects.room.patience = lambda: self._patience(None)
        self._objects.room.check = self._check_open
        self._loop.after_frame = self._tasks.after_frame
        self._loop.on_tick = self._keep_house
        self._loop.idle_tick_s = self._idle_tick_s
        self._loop.on_lifeline = self._on_node_lost
        self._loop.on_failure = self._on_failure
        self._loop.handlers |= {
            messages.Farewell: lambda sender, _: self._transport.post(sender, messages.FarewellHeard()),
            messages.Welcome: self._on_welcome,
            messages.WorkerDied: self._on_worker_died,
            messages.Inspect: lambda sender, m: report.answer(self, sender, m),
        }
        if "RLPLAT_RECORD_CALLSITES" in os.environ:
            from rlplat.runtime.client.call_sites import record_call_sites

            record_call_sites(self)

    def start(self) -> None:
        """Join the cluster."""
        with self._lock:
            self._transport.post(NODE, messages.Hello(self.client_id))
            self._wait_until(lambda: bool(self._total), 30, "the node's welcome")
        self._loop.start()

    def nested_opened(self) -> None:
        """Workers override."""

    def use_runtime_env(self, env: dict[str, Any], snapshots: str) -> None:
        """What this process runs in, which what it submits inherits."""
        self._envs.own, self._envs.folder = env, snapshots

    def adopt(self, owner: str, id: int) -> ObjectRef:
        return self._objects.adopt(owner, id)

    def _define_env(self, key: str, spec: str) -> None:
        with self._lock:
            self._transport.post(NODE, messages.DefineEnv(key, spec))

    def _shape(self, options: Options, default_cpus: float, who: str) -> Shape:
        """What a task or an actor needs; raises for what could never be met."""
        return shape_of(options, default_cpus, self._total, who, self._envs.key(options))

    # ---------------------------------------------------------------- news from the node (lock held)

    def _on_welcome(self, sender: str, message: messages.Welcome) -> None:
        self._total.update(message.total)
        self.namespace = message.namespace
        self._objects.heard_who_lives(message.alive, message.next_worker, message.reasons)

    def _on_worker_died(self, sender: str, message: messages.WorkerDied) -> None:
        worker, reason = message.worker, message.reason
        if worker in self._objects.dead:
            return
        self._objects.peer_died(worker, reason)
        self._cancels.on_worker_died(worker)
        self._tasks.on_worker_died(worker, reason, message.kind)
        self._loop.notify()

    def _on_node_lost(self) -> None:
        self._lost_node = ErrorInfo(
            "NodeLost", "the node process of this cluster has ended; what it said last is above, on stderr"
        )
        self._loop.is_open = False
        for record in list(self._calls.records.values()):
            self._calls.fail(record, self._lost_node)
        self._awaiting.fail(self._lost_node)
        self._loop.notify()

    def _on_failure(self) -> None:
        """Reading, sending or house-keeping has raised. (Threads that wait in `get` hear of it by `_check_open`.)"""
        error = ErrorInfo("RuntimeFault", self._failure_text())
        self._awaiting.fail(error)
        for record in list(self._calls.records.values()):
            with contextlib.suppress(Exception):  # the books may be half written
                self._calls.fail(record, error)

    # ---------------------------------------------------------------- values

    def put(self, value: Any) -> ObjectRef:
        return self._objects.make(codec.pack(value, "the value of rlplat.put"))[1]

    def get(self, refs: Sequence[ObjectRef], timeout: float | None) -> list[Any]:
        me, entries, unpack = self.client_id, self._objects.book.entries, codec.unpack
        deadline = None if timeout is None else time.monotonic() + timeout
        values: list[Any] = []
        for index, ref in enumerate(refs):
            entry = entries.get(ref.id) if ref.owner == me else None
            value = None if entry is None else entry.value
            if value is None:
                value = self._await_value(refs, index, deadline, timeout)
            if value.segment is None and value.error is None:
                values.append(unpack(value.data))
            else:
                values.append(self._objects.open_value(value, ref, deadline))
        return values

    def _await_value(
        self, refs: Sequence[ObjectRef], index: int, deadline: float | None, timeout_s: float | None
    ) -> Value:
        """The value of `refs[index]`; the owners of those behind it are asked for theirs meanwhile."""
        with self._lock:
            holder = self._objects.holder(refs[index])
            if holder.value is None:
                if refs[index].owner != self.client_id:
                    for ref in refs[index + 1 :]:
                        self._objects.holder(ref)
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    self._wait_until(lambda: holder.value is not None, left, "", refs[index])
                except GetTimeout:
                    rest = refs[index:]
                    holders = [self._objects.holder(ref) for ref in rest]
                    raise GetTimeout(self._missing(rest, holders, len(refs), timeout_s)) from None
            value = holder.value
            assert value is not None
            return value

    def _missing(
        self, refs: Sequence[ObjectRef], holders: Sequence[Any], num_refs: int, timeout_s: float | None
    ) -> str:
        """What `get` waits for, in words."""
        waiting = [ref for ref, holder in zip(refs, holders, strict=True) if holder.value is None]
        ref = waiting[0]
        record = self._calls.records.get(ref.id) if ref.owner == self.client_id else None
        if ref.owner != self.client_id:
            why = f"{ref!r}, which {ref.owner} owns"
        elif record is None:
            why = f"{ref!r}"
        elif record.waits:
            why = f"{record.name}, which waits for {record.waits} of its arguments"
        elif record.lane is not None and not record.target:
            why = f"{record.name}, which waits for a worker with {dict(record.lane.shape.demand)}"
        elif record.lane is None:
            why = f"{record.name}, {self._actors.describe_wait(record)}"
        else:
            why = f"{record.name}, which is with worker {self._calls.worker_of(record)}"
        return f"get() timed out after {timeout_s:g} s: {len(waiting)} of {num_refs} values are missing, first {why}"

    def wait(
        self, refs: Sequence[Any], num_returns: int, timeout: float | None
    ) -> tuple[list[Any], list[Any]]:
        with self._lock:
            ready = self._first_ready(refs, num_returns)
            if len(ready) < num_returns:
                missing = list(map(self._waitable, refs))
                most_missing = len(refs) - num_returns

                def enough() -> bool:
                    nonlocal missing
                    missing = [holder for holder in missing if holder.value is None]
                    return len(missing) <= most_missing

                try:
                    self._wait_until(enough, timeout, "")
                except GetTimeout:
                    pass
                ready = self._first_ready(refs, num_returns)
        rest: list[Any] = []
        begin = 0
        for index in ready:
            rest += refs[begin:index]
            begin = index + 1
        rest += refs[begin:]
        return [refs[index] for index in ready], rest

    def _waitable(self, ref: Any) -> Any:
        return ref if type(ref) is ObjectRefGenerator else self._objects.holder(ref)

    def _first_ready(self, refs: Sequence[Any], most: int) -> list[int]:
        """Where they are; looks no further than it must: a loop takes one of a long list at a time."""
        found: list[int] = []
        for index, ref in enumerate(refs):
            if self._waitable(ref).value is not None:
                found.append(index)
                if len(found) == most:
                    break
        return found

    def _on_await_cancelled(self, ref: ObjectRef) -> None:
        """Workers override: a cancelled call of an async actor cancels what it awaits."""

    def exit_actor(self) -> None:
        raise TypeError("rlplat.exit_actor() is for the methods of an actor; this process is no actor")

    # ---------------------------------------------------------------- waiting, house-keeping, the end

    def _wait_until(
        self,
        is_done: Callable[[], bool],
        timeout_s: float | None,
        what: str,
        ref: ObjectRef | None = None,
    ) -> None:
        self._loop.wait_until(is_done, timeout_s, what, self._check_open, self._patience(ref))

    def _patience(self, ref: ObjectRef | None) -> Patience | None:
        """Workers override: the node is told that a task waits, so that its CPUs can be lent."""
        return None

    def _check_open(self) -> None:
        if self._loop.is_closed:
            raise NotInitialized("the runtime was shut down")
        if self._lost_node is not None:
            raise to_exception(self._lost_node)
        if self._loop.failure is not None:
            raise RuntimeFault(self._failure_text()) from self._loop.failure

    def _failure_text(self) -> str:
        failure = self._loop.failure
        assert failure is not None
        at = traceback.extract_tb(failure.__traceback__)[-1:]
        where = f" ({os.path.basename(at[0].filename)}:{at[0].lineno})" if at else ""
        return (
            f"the runtime in {self.client_id} failed: {failure!r}{where}. Its traceback is above, or on stderr; "
            "rlplat.shutdown() and rlplat.init() start a new cluster"
        )

    def _idle_tick_s(self) -> float | None:
        """How soon to look after the house when nothing comes in: leases and dropped refs must not lie about."""
        if self._tasks.has_leases():
            tick_s: float | None = IDLE_LEASE_S
        else:
            tick_s = _IDLE_OBJECTS_S if self._objects.has_any() else None
        next_s = self._cancels.next_s()
        return tick_s if next_s is None else min(next_s, tick_s or next_s)

    def _keep_house(self) -> None:
        """Every few milliseconds while there is life, else when an idle lease may be due."""
        self._objects.collect()
        self._streams.collect()
        self._cancels.tick()
        self._tasks.return_idle_leases()

    def close(self) -> None:
        self._awaiting.close()
        self._loop.close()
        with self._lock:
            self._objects.close()
            for record in self._calls.records.values():
                record.refs = None
        signals.unwrap_handlers()
