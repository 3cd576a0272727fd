"""The caller's side of actors: the shell around `actor_calls`. Create, call, find, kill; news of them from the node."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec

from rlplat.errors import ActorDied, OptionError, PendingCallsLimitExceeded
from rlplat.given.say import say, say_traceback
from rlplat.runtime.client.calls import Calls, Deps
from rlplat.runtime.client.cancels import Cancels
from rlplat.runtime.client.envs import ClientEnvs
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.client.questions import Questions
from rlplat.runtime.client.reading import Reader
from rlplat.runtime.client.streams import Streams
from rlplat.runtime.core.owner.actor_calls import ActorCalls, Fail
from rlplat.runtime.core.owner.book import Entry
from rlplat.runtime.core.owner.lanes import TaskRecord
from rlplat.runtime.core.owner.retries import History
from rlplat.runtime.demand import capture_of, shape_of
from rlplat.runtime.link.link import Link
from rlplat.runtime.machine.session import checkpoint_path
from rlplat.runtime.options import Options, check_exactly_once, check_group, check_name, check_retries
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.remote import TERMINATE, ActorHandle, describe_actor
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.errors import to_exception
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.wire.values import PLAIN_CALL, ActorInfo, CallOptions, ErrorInfo, Key, Value

_REMEMBERED = 100
"""Detached actors that are gone, whose calls fail without asking the node."""


class Actors:
    """The way of every actor call (see `Route`). All but the verbs is called with the client's lock held."""

    kind, lane = "call", None

    def __init__(
        self,
        link: Link,
        objects: Objects,
        reader: Reader,
        calls: Calls,
        cancels: Cancels,
        streams: Streams,
        questions: Questions,
        envs: ClientEnvs,
    ) -> None:
        self._link, self._loop, self._transport, self._lock = link, link.loop, link.transport, link.lock
        self._objects, self._reader, self._calls, self._records = objects, reader, calls, calls.records
        self._cancels, self._streams, self._questions, self._envs = cancels, streams, questions, envs
        self.books: dict[str, ActorCalls] = {}
        self._naming: set[str] = set()
        """Actors whose creators wait for the news of their names."""
        self._is_taken: dict[str, messages.NameTaken] = {}
        self._detached: set[str] = set()
        """Those among the books: they do not end with the handles here, nor do their books."""
        self._gone_detached: dict[str, None] = {}
        self._watchers: dict[str, list[Callable[[ActorDied], Any]]] = {}
        """By actor: who is to be told of its death."""
        link.on(messages.Placed, self._on_placed)
        link.on(messages.ActorRestarting, self._on_restarting)
        link.on(messages.ActorGone, lambda _, m: self._on_gone(m.actor, m.error))
        link.on(messages.NameTaken, self._on_name_taken)

    # ---------------------------------------------------------------- verbs

    def create(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> ActorHandle:
        check_name(options)
        check_exactly_once(code, options)
        key = self._calls.code_key(code)
        shape = shape_of(options, 0, self._link.total, f"actor {code.name}", self._envs.key(options))
        is_detached = options.lifetime == "detached"
        if is_detached and code.refs:
            raise OptionError(
                f"detached actor {code.name}: its class closes over {code.refs[0]!r}, and objects end with the process "
                "that made them: pass the value, or the ref itself as an argument of the constructor"
            )
        creation = messages.Creation(
            "", options.max_concurrency or 0, options.concurrency_groups, options.exactly_once
        )
        more = messages.More(capture=capture_of(options), creation=creation)
        if is_detached:
            args, kwargs = self._reader.values(args, kwargs)  # it outlives whoever owns the refs among them
            deps: Deps = []
            refs: list[ObjectRef] = []
            message = messages.Run(0, key, "__init__", _inline(code.name, args, kwargs), more)
        else:
            what = f"{code.name}.__init__"
            message, deps, refs = self._calls.make(args, kwargs, what, 1, key, "__init__", more)
        info = describe_actor(code, options)
        with self._lock:
            self._link.check_open()
            record, ref = self._calls.record(message, code, code.name, 1, refs)
            record.route = self
            actor_id = record.target = creation.actor = f"{self._link.client_id}:{record.id}"
            actor = self.books[actor_id] = ActorCalls(code.name, self._records)
            if not is_detached:
                self._objects.at_end(record.id, lambda: self._on_unreachable(record.id, actor_id))
            place = messages.PlaceActor(
                actor_id,
                info,
                shape,
                options.name or "",
                self._link.namespace if options.namespace is None else options.namespace,
                options.max_restarts,
                is_detached,
                options.get_if_exists,
            )
            self._transport.post(NODE, place)
            if is_detached:
                # The node creates it, again and again; for us it is there as soon as it has a worker.
                self._transport.post(
                    NODE, messages.KeepCreation(actor_id, self._calls.code_message(code), message)
                )
                self._detached.add(actor_id)
                del self._records[record.id]
                self._calls.fill(record, (Value(codec.pack(None).data),))
            else:
                actor.queue.append(record)
                if options.max_restarts:
                    actor.creation = _template(record)
                if deps:
                    self._calls.resolve(record, deps)
            if options.name is not None:  # a taken name is the caller's affair, here and now
                self._naming.add(actor_id)  # ahead of the question: sending may read the answer
            self._loop.send_now()
            if options.name is not None:
                taken = None
                try:
                    self._questions.await_node()  # that the name is taken is said ahead of the answer
                finally:
                    self._naming.discard(actor_id)
                    if actor_id in self._is_taken:
                        taken = self._is_taken.pop(actor_id)
                        self._never_made(actor_id)
                if taken is not None:
                    return self._handle(taken.existing, taken.info, taken.is_detached)
                if actor.gone is not None and actor.gone.kind == "OptionError":
                    raise to_exception(actor.gone)
        return ActorHandle(actor_id, info, None if is_detached else ref)

    def _on_name_taken(self, sender: str, message: messages.NameTaken) -> None:
        if message.actor in self._naming:
            self._is_taken[message.actor] = message
        else:  # its creator was interrupted
            self._never_made(message.actor)

    def _never_made(self, actor_id: str) -> None:
        """Somebody has its name already."""
        self.books.pop(actor_id, None)
        self._detached.discard(actor_id)
        record = self._records.pop(int(actor_id.rsplit(":", 1)[1]), None)
        if record is not None:
            self._calls.fill(record, (Value(codec.pack(None).data),))

    def _handle(self, actor_id: str, info: ActorInfo, is_detached: bool) -> ActorHandle:
        if is_detached:
            return ActorHandle(actor_id, info, None)
        owner, id = actor_id.rsplit(":", 1)
        creation = self._objects.borrow_from(owner, int(id))
        self._loop.send_now()
        return ActorHandle(actor_id, info, creation)

    def get(self, name: str, namespace: str | None) -> ActorHandle:
        where = self._link.namespace if namespace is None else namespace
        answer = self._questions.ask(lambda request: messages.AskByName(request, name, where))
        if answer.error is not None:
            raise to_exception(answer.error)
        assert answer.info is not None
        return self.handle_of(answer.actor, answer.info, answer.is_detached)

    def handle_of(self, actor_id: str, info: ActorInfo, is_detached: bool) -> ActorHandle:
        with self._lock:
            return self._handle(actor_id, info, is_detached)

    def names(self, all_namespaces: bool) -> list[tuple[str, str]]:
        """(namespace, name) of the named actors that are alive."""
        where = None if all_namespaces else self._link.namespace
        return self._questions.ask(lambda request: messages.AskNames(request, where)).names

    def kill(self, handle: ActorHandle, no_restart: bool) -> None:
        actor_id = handle._actor_id
        reason = "it was killed by rlplat.kill"
        with self._lock:
            self._link.check_open()
            if not no_restart:
                self._transport.post(NODE, messages.EndActor(actor_id, reason, True, no_restart=False))
                self._loop.send_now()
                return
            if actor_id not in self.books:
                self._open_book(handle)
            self._transport.post(NODE, messages.EndActor(actor_id, reason, True))
            self._loop.send_now()
            text = f"actor {handle._info.class_name} is gone: {reason}"
            self._on_gone(actor_id, ErrorInfo("ActorDied", text))

    def on_death(self, handle: ActorHandle, callback: Callable[[ActorDied], Any]) -> None:
        """See `ActorHandle.on_death`."""
        with self._lock:
            self._link.check_open()
            error = self._book(handle).gone
            if error is None:
                self._watchers.setdefault(handle._actor_id, []).append(callback)
                self._loop.send_now()
        if error is not None:
            _tell([callback], error)

    # ---------------------------------------------------------------- calls

    def submit_call(
        self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, options: CallOptions
    ) -> Any:
        if handle._info.max_pending_calls > 0:
            self._check_pending(handle)
        data = codec.pack_scalars(args) if options == PLAIN_CALL and not kwargs else None
        if data is not None:
            self._lock.take()
            try:
                actor = self.books.get(handle._actor_id)
                if actor is not None and actor.worker is not None and not actor.queue:
                    return self._submit_plain_call(handle, actor, method, data)
            finally:
                self._lock.release()
        actor_id, info, creation = handle._actor_id, handle._info, handle._creation
        num_returns = options.num_returns
        name = options.name or f"{info.class_name}.{method}"
        if options.retry_exceptions:
            check_retries(name, info.exactly_once)
        retries, group = options.max_task_retries, options.concurrency_group  # None or 0 and "" but for few
        if group != TERMINATE:
            check_group(name, group, info.groups)
        # (A stream is not numbered: after a restart it goes on behind the values that its owner has.)
        is_exactly_once = bool(retries) and info.exactly_once and num_returns >= 0
        more = None
        if is_exactly_once or group or options.name:
            more = messages.More(label=options.name, group=group)
        message, deps, refs = self._calls.make(args, kwargs, name, num_returns, "", method, more)
        if creation is not None:
            refs.append(creation)
        with self._lock:
            self._link.check_open()
            actor = self.books.get(actor_id) or self._book(handle)
            record, out = self._calls.record(message, None, name, num_returns, refs)
            record.target, record.route = actor_id, self
            if retries:
                record.retries_left = retries
            if options.retry_exceptions:
                classes = options.retry_exceptions
                record.history = History(classes if isinstance(classes, bool) else frozenset(classes))
            if options.timeout_s is not None:
                self._cancels.add_deadline(record, options.timeout_s)
            if num_returns < 0:
                out = self._streams.open(record, out, num_returns, options.generator_backpressure)
            if deps:
                self._calls.resolve(record, deps)
            if actor.gone is not None:
                if record.id in self._records:
                    self._calls.fail(record, actor.gone)
                return out
            self._send(actor, actor.queued(record, is_exactly_once))
            self._loop.send_soon(len(self._records))
        return out

    def _check_pending(self, handle: ActorHandle) -> None:
        info = handle._info
        with self._lock:
            actor = self.books.get(handle._actor_id)
            if actor is not None and actor.num_pending() >= info.max_pending_calls:
                raise PendingCallsLimitExceeded(
                    f"actor {info.class_name} has {info.max_pending_calls} calls of this process to finish "
                    "(max_pending_calls): get or wait for some of their results first"
                )

    def _submit_plain_call(
        self, handle: ActorHandle, actor: ActorCalls, method: str, data: bytes
    ) -> ObjectRef:
        """The short way of a call with small plain arguments to an actor whose queue is empty (lock held)."""
        if not self._loop.is_open:
            self._link.check_open()
        objects = self._objects
        if objects.dropped:  # large values that went are room for the next ones
            objects.collect()
        id = next(objects.ids)
        name = actor.names.get(method)
        if name is None:
            name = actor.names[method] = f"{actor.class_name}.{method}"
        record = self._records[id] = TaskRecord(
            id,
            messages.Run(id, "", method, data),
            None,
            name,
            (id,),
            (handle._creation,),
            self,
            0,
            handle._actor_id,
        )
        objects.book.entries[id] = Entry(id)
        actor.in_flight[id] = record
        assert actor.worker is not None
        self._transport.post(actor.worker, record.message)
        self._loop.send_soon(len(self._records))
        return ObjectRef(self._link.client_id, id, objects.drop, id)

    # ---------------------------------------------------------------- calls on their way (lock held)

    def _book(self, handle: ActorHandle) -> ActorCalls:
        """The book of a handle's actor; opened, and its address asked for, at the first call."""
        actor_id = handle._actor_id
        actor = self.books.get(actor_id)
        if actor is None:
            actor = self._open_book(handle)
            self._transport.post(NODE, messages.FindActor(actor_id))
        return actor

    def _open_book(self, handle: ActorHandle) -> ActorCalls:
        actor_id, creation = handle._actor_id, handle._creation
        actor = self.books[actor_id] = ActorCalls(handle._info.class_name, self._records)
        if creation is None:
            self._detached.add(actor_id)
        elif creation.owner != self._link.client_id:
            self._watch_handles((creation.owner, creation.id), actor_id)
        return actor

    def _send(self, actor: ActorCalls, records: Iterable[TaskRecord]) -> None:
        for record in records:
            self._records[record.id] = record  # a creation that is sent again had left the books
            assert actor.worker is not None
            self._calls.introduce(actor.worker, actor.known_code, record)
            self._transport.post(actor.worker, record.message)

    def _advance(self, actor_id: str) -> None:
        actor = self.books.get(actor_id)
        if actor is not None and actor.queue:
            self._send(actor, actor.advance())

    def _fail_all(self, fails: list[Fail]) -> None:
        for fail in fails:
            self._calls.fail(fail.record, fail.error)
        self._loop.notify()

    # ---------------------------------------------------------------- news (lock held)

    def _on_placed(self, sender: str, message: messages.Placed) -> None:
        actor = self.books.get(message.actor)
        if actor is not None:
            self._send(actor, actor.placed(message.worker, message.incarnation))
            self._loop.notify()

    def _on_restarting(self, sender: str, message: messages.ActorRestarting) -> None:
        actor = self.books.get(message.actor)
        if actor is not None:
            self._fail_all(actor.restarting(message.reason))

    def _on_gone(self, actor_id: str, error: ErrorInfo, was_made: bool = True) -> None:
        actor = self.books.get(actor_id)
        if actor is not None:
            is_news = actor.gone is None
            fails = actor.ended(error, was_made)
            watchers = self._watchers.pop(actor_id, [])
            if watchers:
                _tell(watchers, error)
            elif is_news and self._is_unheard(actor_id, error, was_made, fails):
                say(error.message)
            self._fail_all(fails)
            self._remove_checkpoint(actor_id)
            if actor_id in self._detached:
                self._gone_detached[actor_id] = None
                if len(self._gone_detached) > _REMEMBERED:  # a call of an older one asks the node
                    oldest = next(iter(self._gone_detached))
                    del self._gone_detached[oldest], self.books[oldest]
                    self._detached.discard(oldest)

    def _is_unheard(self, actor_id: str, error: ErrorInfo, was_made: bool, fails: list[Fail]) -> bool:
        """Whether an actor of this process died, which nobody meant, and no call of it tells of that."""
        is_own, is_death = actor_id.startswith(f"{self._link.client_id}:"), " died: " in error.message
        # Not the creation: it is the handles that hold its ref.
        calls = (fail.record for fail in fails if fail.record.message.creation is None)
        waited_for = (self._objects.book.find(id) for call in calls for id in call.ids)
        return (
            is_own and (is_death or not was_made) and not any(each and each.num_refs for each in waited_for)
        )

    def _on_unreachable(self, creation: int, actor_id: str) -> None:
        """No handle of an actor that this process made is left anywhere, nor a call: it may go."""
        actor = self.books.pop(actor_id, None)
        if actor is not None:
            self._records.pop(creation, None)  # one that was under way again
            if actor.gone is None:
                self._transport.post(NODE, messages.EndActor(actor_id, "its last handle is gone", False))
                self._remove_checkpoint(actor_id)

    def _watch_handles(self, creation: Key, actor_id: str) -> None:
        """When no handle of another process's actor is left here, nor a call, its book goes. (The numbers of
        exactly-once calls go on.)"""

        def forget() -> None:
            actor = self.books.get(actor_id)
            if actor is not None and (actor.last_seq or actor.queue or actor.in_flight):
                self._objects.at_end(creation, forget)
            elif actor is not None:
                del self.books[actor_id]

        self._objects.at_end(creation, forget)

    def _remove_checkpoint(self, actor_id: str) -> None:
        if actor_id.startswith(f"{self._link.client_id}:"):
            path = checkpoint_path(self._link.session, actor_id)
            for each in (os.path.realpath(path), path):  # (a link where shared memory was full)
                with suppress(FileNotFoundError):
                    os.unlink(each)

    def is_to_run(self, actor_id: str, ref: ObjectRef) -> str | None:
        """The name of this process's call of that actor which is to make `ref`, if it is one."""
        actor = self.books.get(actor_id)
        if actor is None or ref.owner != self._link.client_id:
            return None
        calls = (*actor.in_flight.values(), *actor.queue)
        return next((record.name for record in calls if ref.id in record.ids), None)

    # ---------------------------------------------------------------- the route of their calls (lock held)

    def sent_to(self, record: TaskRecord) -> str | None:
        actor = self.books.get(record.target)
        return actor.worker if actor is not None and record.id in actor.in_flight else None

    def in_flight(self, record: TaskRecord, worker: str) -> dict[int, TaskRecord] | None:
        actor = self.books.get(record.target)
        return actor.in_flight if actor is not None and actor.worker == worker and not actor.queue else None

    def resolved(self, record: TaskRecord) -> None:
        self._advance(record.target)

    def finished(self, record: TaskRecord, worker: str, values: Sequence[Value]) -> Sequence[Value]:
        actor = self.books[record.target]
        if record.message.creation is not None and values[0].error is not None:
            error = values[0].error
            # No restart: what the constructor raised once it would raise again.
            del actor.in_flight[record.id]
            return (Value(error=self._not_made(record, error)),)
        if actor.queue:
            self._send(actor, actor.replied(record.id))
        else:
            actor.in_flight.pop(record.id, None)
        return values

    def _not_made(self, record: TaskRecord, error: ErrorInfo) -> ErrorInfo:
        """Its constructor raised, or an argument of it failed: the error of every call."""
        text = f"actor {record.name} could not be created: {error.message}"
        gone = ErrorInfo("ActorDied", text, error.exception)
        self._transport.post(NODE, messages.EndActor(record.target, gone.message, True))
        self._on_gone(record.target, gone, was_made=False)
        return gone

    def again(self, record: TaskRecord) -> None:
        actor = self.books[record.target]
        self._send(actor, actor.again(record))

    def rebuild(self, record: TaskRecord) -> None:
        actor = self.books.get(record.target)
        if actor is None or actor.gone is not None:
            gone = ErrorInfo("ActorDied", f"the actor that made it ({record.name}) is gone")
            self._calls.fail(record, gone if actor is None or actor.gone is None else actor.gone)
        else:
            self._send(actor, actor.queued(record, False))

    def failed(self, record: TaskRecord) -> None:
        actor = self.books.get(record.target)
        if actor is not None:
            actor.in_flight.pop(record.id, None)

    def fail_unsent(self, record: TaskRecord, error: ErrorInfo) -> None:
        if record.message.creation is not None:
            self._not_made(record, error)
        else:
            self._calls.fail(record, error)  # (a queued call that has left the books is passed over)
            self._advance(record.target)

    def waits_for(self, record: TaskRecord) -> tuple[str, TaskRecord]:
        actor = self.books.get(record.target)
        if actor is None:
            return "", record
        is_queued = actor.queue and record.id not in actor.in_flight
        return actor.worker or "", actor.queue[0] if is_queued else record

    def why_waiting(self, record: TaskRecord) -> str:
        actor = self.books.get(record.target)
        if actor is None or actor.worker is not None:
            return f"which is with worker {None if actor is None else actor.worker}"
        return "whose actor starts again" if actor.incarnation else "whose actor waits for its resources"


def _template(record: TaskRecord) -> TaskRecord:
    """What it takes to create the actor again; holds the refs among the arguments."""
    return msgspec.structs.replace(record, retries_left=0, waits=0, is_suspect=False, history=None)


def _inline(name: str, args: tuple, kwargs: dict) -> bytes:
    data, refs = codec.pack_inline((args, kwargs), f"an argument of {name}")
    if refs:
        raise OptionError(
            f"detached actor {name}: an argument contains {refs[0]!r}, and objects end with the process that made "
            "them: pass the value, or the ref itself as an argument"
        )
    codec.check_fits(f"detached actor {name}", [len(data)], "Load what is large in the constructor.")
    return data


def _tell(watchers: list[Callable[[ActorDied], Any]], error: ErrorInfo) -> None:
    """In a thread of their own: what they do is theirs, and they may call the runtime."""

    def tell() -> None:
        for watcher in watchers:
            try:
                watcher(cast(ActorDied, to_exception(error)))
            except Exception:
                say_traceback()

    try:
        threading.Thread(target=tell, name="rlplat-on-death", daemon=True).start()
    except (
        RuntimeError
    ) as refusal:  # the interpreter ends, or a limit of threads; calls that wait must hear of it still
        say(f"no callback of on_death is called ({refusal}): {error.message}")
