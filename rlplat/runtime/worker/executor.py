"""What runs in a worker: a message in, its replies out. It knows nothing of queues, leases or the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlplat.given.say import say
from rlplat.runtime import connect, refs
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.core.owner.lanes import MOST_CODES
from rlplat.runtime.link.chores import NEVER
from rlplat.runtime.link.link import Link
from rlplat.runtime.link.waiters import Waiters
from rlplat.runtime.machine.session import checkpoint_path
from rlplat.runtime.process.crash_points import crash_point
from rlplat.runtime.process.spans import Span, Spans
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.remote import ActorExit
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.worker.actor import EXITED_AT_ONCE, Actor, End, exit_code_of
from rlplat.runtime.worker.arguments import Arguments
from rlplat.runtime.worker.capturing import Capturing
from rlplat.runtime.worker.exactly_once import ExactlyOnce
from rlplat.runtime.worker.outflow import Outflows
from rlplat.runtime.worker.queue import Queue
from rlplat.runtime.worker.replies import Replies
from rlplat.runtime.worker.runners import Runner, make_runner
from rlplat.runtime.worker.running import Running

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

    def execute(self, owner: str, message: Any) -> End | None:
        """Run a call, or see to it that it runs elsewhere. Returns why this process ends now, if it does."""
        kind = type(message)
        if kind is messages.Run:
            link, code = self._link, self._code.get(message.code)
            if code is None:
                self._replies.forgotten(owner, message)
                return None
            began = link.clock()
            try:
                target = code.target
                if type(target) is bytes:
                    target = self._open(code)
                if message.args == codec.NO_ARGS:
                    result = target()
                else:
                    args, kwargs = codec.unpack(message.args)
                    result = target(*args, **kwargs)
                    del args, kwargs
                data = codec.pack_scalar(result)
                if data is not None:
                    link.lock.take()
                    try:
                        link.transport.post_result(owner, message.task, data)
                    finally:
                        link.lock.release()
                else:
                    self._replies.result(owner, message.task, code.name, 1, result)
            except SystemExit as error:
                return exit_code_of(error)
            except BaseException as error:
                self._replies.error(owner, message.task, f"task {code.name}", 1, error)
            ended = link.clock()
            self._spans.append((code.name, began, ended))
            self._replies.pace(owner, code.key, ended - began)
        elif kind is messages.Call and self._plain is not None:
            return self._plain.call_small(owner, message)
        elif kind is messages.RunFull and message.code:
            return self._run_full(owner, message)
        elif kind is messages.CreateActor:
            return self._create_actor(owner, message)
        elif self.actor is None:
            self._queue.hold(owner, message)
        elif self.runner is not None:
            return self.runner.submit(owner, message)
        else:
            return self.actor.call(owner, message)
        return None

    def _run_full(self, owner: str, message: messages.RunFull) -> End | None:
        """A task with more than small arguments and one small result."""
        code = self._code.get(message.code)
        if code is None:
            self._replies.forgotten(owner, message)
            return None
        began, name = self._link.clock(), message.name or code.name
        backend = refs.backend()
        if message.capture is not None:
            refs.set_backend(Capturing(backend, message.capture))
        try:
            args, kwargs = self._arguments.open(owner, message)
            result = self._open(code)(*args, **kwargs)
            del args, kwargs
            if message.num_returns < 0:
                self._flows.stream(owner, message, name, result)
            else:
                self._replies.result(owner, message.task, name, message.num_returns, result)
        except SystemExit as error:
            return exit_code_of(error)
        except BaseException as error:
            self._replies.error(owner, message.task, f"task {name}", message.num_returns, error)
        if message.capture is not None:
            self.close_nested()
            refs.set_backend(backend)
        ended = self._link.clock()
        self._spans.append((name, began, ended))
        self._replies.pace(owner, message.code, ended - began)
        return None

    def _create_actor(self, owner: str, message: messages.CreateActor) -> End | None:
        code, link = self._code[message.code], self._link
        name = code.name
        self.actor_id = message.actor
        if message.capture is not None:
            refs.set_backend(Capturing(refs.backend(), message.capture))
        began, once = link.clock(), None
        try:
            crash_point("before_constructor")
            args, kwargs = self._arguments.open(owner, message)
            instance = self._open(code)(*args, **kwargs)
            if message.exactly_once:
                once = ExactlyOnce(checkpoint_path(link.session, message.actor))
                once.open(instance)
            crash_point("after_constructor_before_report")
        except ActorExit:
            self.actor_name = name
            return EXITED_AT_ONCE
        except BaseException as error:
            self._replies.error(owner, message.task, f"{name}.__init__", 1, error)
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
        self.runner = make_runner(actor, code.target, message, self._running, self._waiters, self._ask_to_end)
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

    def name_of(self, message: Any) -> str:
        """What messages call this call."""
        kind = type(message)
        if kind is messages.CreateActor:
            return f"{self._name(message.code)}.__init__"
        if kind is messages.Call:
            return f"{self.actor_name}.{message.method}"
        if message.code:
            return str(getattr(message, "name", "") or self._name(message.code))
        return message.label or f"{self.actor_name}.{message.name}"

    def spans(self) -> list[Span]:
        """(name, began, ended) of the last calls."""
        return self._spans.last()


ENTRIES = (Executor.execute.__code__, Executor._run_full.__code__, Outflows.stream.__code__)
"""What calls the code of tasks (see `Interrupts`)."""
