"""The caller's side of actors: the shell around `actor_calls`. Create, call, find, kill; news of them from the node."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import msgspec

from rlplat.errors import ActorDied, OptionError, PendingCallsLimitExceeded
from rlplat.given.say import say, say_traceback
from rlplat.runtime.client.calls import Calls, Deps
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.client.questions import ClientEnvs, Questions
from rlplat.runtime.client.reading import Reader
from rlplat.runtime.core.owner.actor_calls import ActorCalls, Fail
from rlplat.runtime.core.owner.book import Entry
from rlplat.runtime.core.owner.lanes import TaskRecord
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
    """All but the verbs is called with the client's lock held."""

    def __init__(
        self,
        link: Link,
        objects: Objects,
        reader: Reader,
        calls: Calls,
        questions: Questions,
        envs: ClientEnvs,
    ) -> None:
        self._link, self._loop, self._transport, self._lock = link, link.loop, link.transport, link.lock
        self._objects, self._reader, self._calls = objects, reader, calls
        self._questions, self._envs = questions, envs
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
        creation = messages.Creation("", options.max_concurrency or 0, options.concurrency_groups, options.exactly_once)
        more = messages.More(capture=capture_of(options), creation=creation)
        refs: list[ObjectRef] = []
        deps: Deps = []
        ref: ObjectRef | None = None
        if is_detached:
            args, kwargs = self._reader.values(args, kwargs)  # it outlives whoever owns the refs among them
            run = messages.Run(0, key, "__init__", _inline(code.name, args, kwargs), more)
        else:
            run, deps, refs = self._calls.make(args, kwargs, f"{code.name}.__init__", key, "__init__", more)
        info = describe_actor(code, options)
        with self._lock:
            self._link.check_open()
            self._objects.collect()
            id = run.task = next(self._objects.ids)
            actor_id = creation.actor = f"{self._link.client_id}:{id}"
            actor = self.books[actor_id] = ActorCalls(actor_id, code.name)
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
                self._transport.post(NODE, messages.KeepCreation(actor_id, self._calls.code_message(code), run))
                self._detached.add(actor_id)
            else:
                record = TaskRecord(id, run, code, code.name, (id,), refs, actor)
                self._calls.open(record)
                ref = self._objects.add_ref(self._link.client_id, id)
                self._objects.at_end(id, lambda: self._on_unreachable(actor_id))
                actor.queued(record)
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
        return ActorHandle(actor_id, info, ref)

    def _on_name_taken(self, sender: str, message: messages.NameTaken) -> None:
        if message.actor in self._naming:
            self._is_taken[message.actor] = message
        else:  # its creator was interrupted
            self._never_made(message.actor)

    def _never_made(self, actor_id: str) -> None:
        """Somebody has its name already."""
        self.books.pop(actor_id, None)
        self._detached.discard(actor_id)
        record = self._objects.book.call(int(actor_id.rsplit(":", 1)[1]))
        if record is not None:
            self._calls.end(record, [Value(codec.NONE)])

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

    def submit_call(self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, options: CallOptions) -> Any:
        if handle._info.max_pending_calls > 0:
            self._check_pending(handle)
        is_plain, label, deps = options == PLAIN_CALL, options.name, None
        more = None if is_plain else self._more(handle._info, method, options)
        data = codec.pack_scalars(args) if more is None and not kwargs else None
        refs: tuple[ObjectRef | None, ...] = (handle._creation,)
        if data is not None:
            run = messages.Run(0, "", method, data)
        else:
            what = label or f"{handle._info.class_name}.{method}"
            run, deps, held = self._calls.make(args, kwargs, what, "", method, more)
            refs += tuple(held)
        objects, calls = self._objects, self._calls
        self._lock.take()
        try:
            if not self._loop.is_open:
                self._link.check_open()
            actor = self.books.get(handle._actor_id) or self._book(handle)
            if objects.dropped:  # large values that went are room for the next ones
                objects.collect()
            name = label or actor.names.get(method, "")
            if not name:
                name = actor.names[method] = f"{actor.class_name}.{method}"
            id = run.task = next(objects.ids)
            # (The number of retries is None or 0 but for few.)
            record = TaskRecord(id, run, None, name, (id,), refs, actor, options.max_task_retries or 0)
            objects.book.entries[id] = Entry(id, 1, record)
            calls.num_open += 1
            out: Any = ObjectRef(self._link.client_id, id, objects.drop, id)
            if not is_plain:
                names, window = options.retry_exceptions, options.generator_backpressure
                exceptions = names if isinstance(names, bool) else frozenset(names)
                out = calls.specialize(record, out, options.num_returns, exceptions, options.timeout_s, window)
            if deps:
                calls.resolve(record, deps)
            lease = actor.lease
            if data is not None and lease is not None and not actor.queue:  # as it is for most
                record.lease, lease.in_flight[id] = lease, record
                self._transport.post(lease.worker, run)
            elif actor.gone is not None:
                if record.is_open:
                    calls.fail(record, actor.gone)
            else:
                actor.queued(record)
                calls.dispatch(actor)
            self._loop.send_soon(calls.num_open)
            return out
        finally:
            self._lock.release()

    @staticmethod
    def _more(info: ActorInfo, method: str, options: CallOptions) -> messages.More | None:
        group, num_returns = options.concurrency_group, options.num_returns
        name = options.name or f"{info.class_name}.{method}"
        if options.retry_exceptions:
            check_retries(name, info.exactly_once)
        if group != TERMINATE:
            check_group(name, group, info.groups)
        # (A stream is not numbered: after a restart it goes on behind the values that its owner has.)
        seq = -1 if options.max_task_retries and info.exactly_once and num_returns >= 0 else 0
        if not (seq or group or options.name or num_returns not in (0, 1)):
            return None
        return messages.More(num_returns or 1, label=options.name, group=group, seq=seq)

    def _check_pending(self, handle: ActorHandle) -> None:
        info = handle._info
        with self._lock:
            actor = self.books.get(handle._actor_id)
            if actor is not None and actor.num_pending() >= info.max_pending_calls:
                raise PendingCallsLimitExceeded(
                    f"actor {info.class_name} has {info.max_pending_calls} calls of this process to finish "
                    "(max_pending_calls): get or wait for some of their results first"
                )

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
        actor = self.books[actor_id] = ActorCalls(actor_id, handle._info.class_name)
        if creation is None:
            self._detached.add(actor_id)
        elif creation.owner != self._link.client_id:
            self._watch_handles((creation.owner, creation.id), actor_id)
        return actor

    def _fail_all(self, fails: list[Fail]) -> None:
        for fail in fails:
            self._calls.fail(fail.record, fail.error)
        self._loop.notify()

    # ---------------------------------------------------------------- news (lock held)

    def _on_placed(self, sender: str, message: messages.Placed) -> None:
        actor = self.books.get(message.actor)
        if actor is not None:
            if actor.placed(message.worker, message.incarnation):
                self._create_again(actor)
            self._calls.dispatch(actor)
            self._loop.notify()

    def _create_again(self, actor: ActorCalls) -> None:
        """Its constructor goes ahead of what waits: a call of its own, whose result nobody gets."""
        assert actor.creation is not None
        id, run = next(self._objects.ids), actor.creation.message
        again = msgspec.structs.replace(actor.creation, id=id, ids=(id,), message=msgspec.structs.replace(run, task=id))
        self._calls.open(again)
        actor.queue.appendleft(again)

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
        return is_own and (is_death or not was_made) and not any(each and each.num_refs for each in waited_for)

    def _on_unreachable(self, actor_id: str) -> None:
        """No handle of an actor that this process made is left anywhere, nor a call: it may go."""
        actor = self.books.pop(actor_id, None)
        if actor is not None and actor.gone is None:
            reason = "its last handle is gone"
            for fail in actor.ended(ErrorInfo("ActorDied", f"actor {actor.class_name} is gone: {reason}")):
                self._calls.end(fail.record, [Value(codec.NONE)])  # its creation, which was under way again
            self._transport.post(NODE, messages.EndActor(actor_id, reason, False))
            self._remove_checkpoint(actor_id)

    def _watch_handles(self, creation: Key, actor_id: str) -> None:
        """When no handle of another process's actor is left here, nor a call, its book goes. (The numbers of
        exactly-once calls go on.)"""

        def forget() -> None:
            actor = self.books.get(actor_id)
            if actor is not None and (actor.last_seq or actor.calls()):
                self._objects.at_end(creation, forget)
            elif actor is not None:
                del self.books[actor_id]
                if actor.gone is None:  # for what would run again there
                    actor.ended(ErrorInfo("ActorDied", f"no handle of actor {actor.class_name} is left here"))

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
        return next((record.name for record in actor.calls() if ref.id in record.ids), None)

    def not_made(self, record: TaskRecord, error: ErrorInfo) -> ErrorInfo:
        """Its constructor raised, or an argument of it failed: the error of every call."""
        text = f"actor {record.name} could not be created: {error.message}"
        gone, actor_id = ErrorInfo("ActorDied", text, error.exception), record.queue.actor_id
        self._transport.post(NODE, messages.EndActor(actor_id, gone.message, True))
        self._on_gone(actor_id, gone, was_made=False)
        return gone


def _template(record: TaskRecord) -> TaskRecord:
    """What it takes to create the actor again; holds the refs among the arguments."""
    return msgspec.structs.replace(record, waits=0)


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
