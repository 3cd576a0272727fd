"""What runs in a worker: a message in, its replies out. It knows nothing of queues, leases or the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlplat.given.say import say
from rlplat.runtime import connect, refs
from rlplat.runtime.backend import Backend
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.core.owner.lanes import MOST_CODES
from rlplat.runtime.demand import captured
from rlplat.runtime.link.chores import NEVER
from rlplat.runtime.link.link import Link
from rlplat.runtime.link.waiters import Waiters
from rlplat.runtime.machine.session import checkpoint_path
from rlplat.runtime.options import Options
from rlplat.runtime.process.crash_points import crash_point
from rlplat.runtime.process.forked import end_if_forked
from rlplat.runtime.process.spans import Span, Spans
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.remote import ActorExit, ActorHandle
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.values import Capture
from rlplat.runtime.worker.actor import EXITED_AT_ONCE, Actor, End, Runner, exit_code_of
from rlplat.runtime.worker.exactly_once import ExactlyOnce
from rlplat.runtime.worker.outflow import Outflows
from rlplat.runtime.worker.queue import Queue, Running
from rlplat.runtime.worker.replies import Arguments, Replies
from rlplat.runtime.worker.runners import make_runner


class Capturing:
    """A backend that submits into the group, unless the options of what is submitted say otherwise."""

    def __init__(self, backend: Backend, capture: Capture) -> None:
        self._backend, self._capture = backend, capture
        # Bound here, as these are called often.
        self.get, self.put, self.wait = backend.get, backend.put, backend.wait
        self.submit_call, self.adopt = backend.submit_call, backend.adopt

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        return self._backend.submitter(code, captured(options, self._capture))

    def create_actor(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> ActorHandle:
        return self._backend.create_actor(code, args, kwargs, captured(options, self._capture))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


_SPANS = 10_000


@dataclass(slots=True, eq=False)
class Code:
    key: str
    name: str
    target: Any
    """Bytes until it is first needed."""
    refs: list[ObjectRef] | None
    """What it closes over."""


class Executor:
    def __init__(
        self,
        link: Link,
        objects: Objects,
        arguments: Arguments,
        replies: Replies,
        flows: Outflows,
        waiters: Waiters,
        queue: Queue,
        running: Running,
        ask_to_end: Callable[[End], None],
    ) -> None:
        """`ask_to_end(reason)`: a call that does not run in the main thread wants the actor to end."""
        self._link, self._objects, self._arguments, self._replies = link, objects, arguments, replies
        self._flows, self._waiters, self._queue, self._running = flows, waiters, queue, running
        self._ask_to_end = ask_to_end
        self._code: dict[str, Code] = {}
        """Functions and classes by key, those last that came or were opened last."""
        self.actor: Actor | None = None
        """Once its constructor has returned."""
        self.actor_id = ""
        """From then on when its constructor began."""
        self.actor_name = ""
        """Of its class; when it has been created, or has ended in its constructor."""
        self.runner: Runner | None = None
        """Of an actor whose calls do not run in the main thread."""
        self._plain: Actor | None = None
        """An actor whose calls do."""
        self._spans = Spans(_SPANS)
        """(name, began, ended) of the last calls, for `rlplat timeline`."""
        self.has_nested = False
        """A task has opened a cluster inside this process."""

    # ---------------------------------------------------------------- code

    def learn(self, message: messages.Code, refs: list[ObjectRef] | None) -> None:
        """Lock held."""
        known = self._code.pop(message.key, None)
        self._code[message.key] = known or Code(message.key, message.name, message.blob, refs)

    def knows(self, key: str) -> bool:
        return key in self._code

    def _open(self, code: Code) -> Any:
        """Its function or class; those that were not needed for longest go, and come again where they are."""
        if type(code.target) is not bytes:
            return code.target
        code.target = codec.unpack(code.target)
        gone = []
        with self._link.lock:
            self._code.pop(code.key, None)
            self._code[code.key] = code
            while len(self._code) > MOST_CODES:
                gone.append(self._code.pop(next(iter(self._code))))
        del gone  # what is the user's in them, without the lock
        return code.target

    # ---------------------------------------------------------------- calls (main thread)

    def execute(self, owner: str, message: Any, began: float) -> End | None:
        """Run a call, now, or see to it that it runs elsewhere. Returns why this process ends now, if it does."""
        if type(message) is not messages.Run or not message.code:
            if self._plain is not None:
                return self._plain.call(owner, message, began)
            if self.runner is not None:
                return self.runner.submit(owner, message)
            self._queue.hold(owner, message)
            return None
        more = message.more
        if more is not None and more.creation is not None:
            return self._create_actor(owner, message, more, more.creation)
        code = self._code.get(message.code)
        if code is None:
            self._replies.forgotten(owner, message)
            return None
        name, outer = code.name, None
        if more is not None:
            name = more.label or name
            if more.capture is not None:
                outer = refs.backend()
                refs.set_backend(Capturing(outer, more.capture))
        try:
            args, kwargs = self._arguments.open(owner, message)
            target = code.target
            if type(target) is bytes:
                target = self._open(code)
            result = target(*args, **kwargs)
            end_if_forked()
            del args, kwargs
            if more is not None and more.num_returns < 0:
                self._flows.stream(owner, message, name, result)
            else:
                self._replies.result(owner, message, name, result)
        except SystemExit as error:
            end_if_forked(error)
            return exit_code_of(error)
        except BaseException as error:
            end_if_forked(error)
            self._replies.error(owner, message, f"task {name}", error)
        if outer is not None:
            self.close_nested()
            refs.set_backend(outer)
        ended = self._link.clock()
        self._spans.append((name, began, ended))
        self._replies.pace(owner, code.key, ended - began)
        return None

    def _create_actor(
        self, owner: str, message: messages.Run, more: messages.More, creation: messages.Creation
    ) -> End | None:
        code, link = self._code[message.code], self._link
        name = code.name
        self.actor_id = creation.actor
        if more.capture is not None:
            refs.set_backend(Capturing(refs.backend(), more.capture))
        began, once = link.clock(), None
        try:
            crash_point("before_constructor")
            args, kwargs = self._arguments.open(owner, message)
            instance = self._open(code)(*args, **kwargs)
            end_if_forked()
            if creation.exactly_once:
                once = ExactlyOnce(checkpoint_path(link.session, creation.actor))
                once.open(instance)
            crash_point("after_constructor_before_report")
        except ActorExit:
            self.actor_name = name
            return EXITED_AT_ONCE
        except BaseException as error:
            end_if_forked(error)
            self._replies.error(owner, message, f"{name}.__init__", error)
            return None
        self._spans.append((f"{name}.__init__", began, link.clock()))
        actor = Actor(
            link,
            self._objects,
            self._arguments,
            self._replies,
            self._flows,
            self._spans,
            name,
            instance,
            once,
        )
        self.runner = make_runner(actor, code.target, creation, self._running, self._waiters, self._ask_to_end)
        self.actor, self.actor_name = actor, name
        self._plain = actor if self.runner is None else None
        with link.lock:
            if once is not None:
                window = once
                link.chore(window.commit, lambda: window.due_s(link.clock()) if window.held else NEVER)
            link.transport.post_result(owner, message.task, codec.NONE)
            self._queue.release_held()
        return None

    # ---------------------------------------------------------------- clusters inside this process

    def close_nested(self) -> None:
        """The next task must not see what this one has left open."""
        self.has_nested = False
        if not refs.backend().can_nest:
            say(
                "warning: a task has not closed the cluster that it opened by rlplat.init(backend='inproc'): "
                "call rlplat.shutdown() in a `finally`"
            )
            connect.shutdown()

    # ---------------------------------------------------------------- between calls (lock held)

    def commit(self) -> None:
        """Nothing follows now that could share a checkpoint with what ran."""
        if self.actor is not None and self.actor.once is not None:
            self.actor.once.commit()

    def pack(self) -> None:
        self._spans.pack()

    def caller_died(self, caller: str) -> None:
        if self.actor is not None and self.actor.once is not None:
            self.actor.once.window.forget(caller)

    # ---------------------------------------------------------------- for those who look

    def _name(self, key: str) -> str:
        code = self._code.get(key)
        return key if code is None else code.name

    def name_of(self, message: messages.Run) -> str:
        """What messages call this call."""
        if message.more is not None and message.more.label:
            return message.more.label
        if not message.code:
            return f"{self.actor_name}.{message.method}"
        return self._name(message.code) + (".__init__" if message.creation is not None else "")

    def spans(self) -> list[Span]:
        """(name, began, ended) of the last calls."""
        return self._spans.last()


ENTRIES = (Executor.execute.__code__, Outflows.stream.__code__)
"""What calls the code of tasks (see `Interrupts`)."""
