"""A worker process: the main thread runs tasks or one actor's calls, in the order in which they came.

It is a client as well: tasks may submit tasks, call actors and hold objects. While the main thread waits for work
it reads the socket itself; while it runs user code the background thread does.
"""

from __future__ import annotations

import atexit
import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from rlplat.errors import Deadlock, GetTimeout, UsageError
from rlplat.runtime import api, refs
from rlplat.runtime.client.calls import values_of
from rlplat.runtime.client.client import Client
from rlplat.runtime.core.reply_window import Kept
from rlplat.runtime.link.chores import NEVER
from rlplat.runtime.link.link import Link
from rlplat.runtime.link.loop import Patience
from rlplat.runtime.link.system import SYSTEM, System
from rlplat.runtime.machine.session import checkpoint_path
from rlplat.runtime.process.crash_points import crash_point
from rlplat.runtime.process.spans import Spans
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.remote import TERMINATE
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.wire.values import ErrorInfo, Value
from rlplat.runtime.worker.capturing import Capturing
from rlplat.runtime.worker.exactly_once import ExactlyOnce
from rlplat.runtime.worker.interrupts import Interrupts
from rlplat.runtime.worker.replies import Replies
from rlplat.runtime.worker.runners import (
    EXITED,
    EXITED_AT_ONCE,
    TERMINATED,
    ActorExit,
    EndOfActor,
    Key,
    Outflow,
    Runner,
    make_runner,
    running_coroutine,
    stream,
)

_FLUSH_S = 0.002
_FLUSH_RESULTS = 256
_BLOCKED_AFTER_S = 0.002
_SPANS = 10_000
_KEPT_CANCELS = 1000
_FAREWELL_S, _END_S = 2.0, 10.0
_MOST_RETURNS = 1 << 24
_ACTOR_ID = re.compile(r"[a-z][a-z0-9-]*:[0-9]+")
"""Also part of the name of its checkpoint's file."""


class Worker(Client):
    can_nest = True

    def __init__(
        self,
        session: str,
        client_id: str,
        gpu_ids: tuple[int, ...],
        *,
        system: System = SYSTEM,
        interrupts: type[Interrupts] = Interrupts,
    ) -> None:
        """Made by the thread that will `run` it."""
        self.interrupts = interrupts(Worker._execute.__code__, (stream.__code__,))
        link = Link(
            session,
            client_id,
            spin=False,
            patience=self._patience,
            check=self.interrupts.check,
            system=system,
        )
        super().__init__(link, on_await_cancelled=self._on_await_cancelled)
        self._transport, self._loop, self._lock = link.transport, link.loop, link.lock
        self.replies = Replies(link, self.objects, self.interrupts)
        self.gpu_ids = gpu_ids
        self._work: deque[tuple[str, Any]] = deque()
        """(owner, message) in order of arrival."""
        self._code: dict[str, Any] = {}
        self._code_name: dict[str, str] = {}
        self._calls_left: dict[str, int] = {}
        """Of functions with `max_calls`."""
        self._is_worn = False
        """One of them has had its last call here: whatever comes now goes back."""
        self._is_actor = False
        """From the constructor's message on: what comes now is never given back."""
        self._instance: Any = None
        self.actor_name = ""
        self._what: dict[str, str] = {}
        """Names of the actor's methods, as messages call them."""
        self._held_calls: list[tuple[str, Any]] = []
        """Calls of others that came ahead of the constructor's message."""
        self._runner: Runner | None = None
        """Of an actor whose calls do not run in the main thread."""
        self._actor_id = ""
        self._once: ExactlyOnce | None = None
        self._is_ending = False
        """The actor ends by its own will."""
        self._farewells: set[str] = set()
        """Callers that have not answered our farewell."""
        self._flows: dict[tuple[str, int], Outflow] = {}
        self._cancelled: dict[Key, None] = {}
        """The last calls that were cancelled after they had begun: see `is_cancelled`."""
        self._first_child = 0
        """Tasks of this process from this id on were submitted by the task that runs."""
        self._is_blocked = False
        self._main_thread = threading.current_thread()
        self._exits = False
        self._running = ""
        self._spans = Spans(_SPANS)
        """(name or key of the code, began, ended) of the last calls, for `rlplat timeline`."""
        link.on(messages.Code, self._on_code)
        for kind in (messages.Run, messages.RunFull, messages.Call, messages.CreateActor):
            link.on(kind, self._on_work)
        link.on(messages.GiveBack, lambda sender, _: self._give_back())
        link.on(messages.Exit, self._on_exit)
        link.on(messages.CancelTask, self._on_cancel)
        link.on(messages.ItemsTaken, self._on_items_taken)
        link.on(messages.FarewellHeard, lambda sender, _: self._farewells.discard(sender))
        link.on(messages.Ping, lambda sender, _: link.transport.post(NODE, messages.Pong()))
        link.chore(self._commit, self._commit_s)

    # ---------------------------------------------------------------- messages

    def _on_code(self, sender: str, message: messages.Code) -> None:
        self._code.setdefault(message.key, message.blob)
        self._code_name[message.key] = message.name
        if message.max_calls:
            self._calls_left.setdefault(message.key, message.max_calls)
        if message.refs:
            held = self.objects.receive(message.refs, sender)
            self.calls.code_refs.setdefault(message.key, held or [])

    def _on_work(self, sender: str, message: Any) -> None:
        kind = type(message)
        if kind is not messages.Call:
            self._check_work(kind, message)
        self._work.append((sender, message))
        if kind is messages.CreateActor:
            self._is_actor = True
        if self._is_worn or (self._is_blocked and not self._is_actor):
            self._give_back()

    def _check_work(self, kind: type, message: Any) -> None:
        """Raise ValueError for what the main thread cannot even answer with an error."""
        if message.code not in self._code and (message.code or kind is not messages.RunFull):
            raise ValueError(f"its code {message.code!r:.50} was not sent")
        if kind is messages.RunFull and not -2 <= message.num_returns <= _MOST_RETURNS:
            raise ValueError(f"num_returns={message.num_returns}")
        if kind is messages.CreateActor:
            if self._is_actor:
                raise ValueError("there is an actor in this process")
            if not _ACTOR_ID.fullmatch(message.actor):
                raise ValueError(f"{message.actor!r:.50} is not an actor's id")

    def _on_worker_died(self, sender: str, message: messages.WorkerDied) -> None:
        super()._on_worker_died(sender, message)
        if self._once is not None:
            self._once.window.forget(message.worker)
        if self._running == message.worker and not self._is_actor:
            self.link.system.exit(1)  # nobody waits for this task
        for item in [item for item in self._work if item[0] == message.worker]:
            try:
                self._work.remove(item)
            except ValueError:
                pass  # the main thread has just begun it

    def _on_exit(self, sender: str, message: messages.Exit) -> None:
        self._exits = True
        if (
            self._is_actor and self._running and not self._is_ending
        ):  # its handles are all gone, so nobody waits for this call
            self.link.system.exit(0)

    def _give_back(self) -> None:
        """Return to their owners the tasks that have not begun. Owners hear of it even when there are none."""
        tasks: dict[str, list[int]] = {self._running: []} if self._running else {}
        while self._work:
            owner, message = self._work.popleft()
            tasks.setdefault(owner, []).append(message.task)
        crash_point("before_tasks_are_given_back")
        for owner, ids in tasks.items():
            self._transport.post(owner, messages.GaveBack(ids, self._is_worn))
        self._transport.flush()

    # ---------------------------------------------------------------- the main loop

    def run(self) -> None:
        """Run work until told to exit."""
        work, clock = self._work, self.link.clock
        num_results, flushed_at = 0, clock()
        while True:
            try:
                owner, message = work.popleft()
            except IndexError:
                if not self._await_work():
                    return
                num_results, flushed_at = 0, clock()
                continue
            self._running = owner
            try:
                self._execute(owner, message)
            except Exception as error:  # not the user's: what his code raises is a reply
                self._drop_work(owner, message, error)
            if self._calls_left:
                self._count_call(message)
            num_results += 1
            now = clock()
            if num_results >= _FLUSH_RESULTS or now - flushed_at > _FLUSH_S:
                with self._lock:
                    self._loop.send_now()
                    self._spans.pack()
                num_results, flushed_at = 0, now
            self._running = ""
            if self.calls.records:
                self._first_child = next(self.objects.ids)

    def _count_call(self, message: Any) -> None:
        """After the last call that a function may have here its result leaves, and then the lease goes back."""
        left = self._calls_left.get(getattr(message, "code", ""))
        if left is None or self._is_actor:
            return
        self._calls_left[message.code] = left - 1
        if left == 1:
            with self._lock:
                self._is_worn = True
                self._give_back()

    def _drop_work(self, owner: str, message: Any, error: Exception) -> None:
        """It cannot be executed: its caller must not wait for ever."""
        if type(message) is EndOfActor:
            raise error
        with self._lock:
            self._transport.dropped.add(
                f"{type(message).__name__} from", owner, f"{type(error).__name__}: {error}", error
            )
            text = f"worker {self.client_id} cannot execute this call: {type(error).__name__}: {error}"
            num_returns = getattr(message, "num_returns", 1)
            self.replies.failed(owner, message.task, num_returns, ErrorInfo("RuntimeFault", text))

    def _await_work(self) -> bool:
        """Send what there is and wait; False: this process may end."""
        with self._lock:
            while not self._work:
                if self._once is not None:
                    self._once.commit()
                self.objects.collect()
                self._spans.pack()
                if self._transport.num_unsent:
                    crash_point("before_results_leave")
                    self._transport.flush()
                if self._exits and (self._is_actor or not len(self.objects.book)):
                    return False
                self._loop.enter()
                try:
                    self._loop.pump(None)
                finally:
                    self._loop.leave()
        return True

    def _execute(self, owner: str, message: Any) -> None:
        kind, clock = type(message), self.link.clock
        if kind is messages.Run:
            began, code = clock(), message.code
            try:
                target = self._code[code]
                if type(target) is bytes:
                    target = self._target(code)
                if message.args == codec.NO_ARGS:
                    result = target()
                else:
                    args, kwargs = codec.unpack(message.args)
                    result = target(*args, **kwargs)
                data = codec.pack_scalar(result)
                if data is not None:
                    self._lock.take()
                    try:
                        self._transport.post_result(owner, message.task, data)
                    finally:
                        self._lock.release()
                else:
                    self.replies.result(owner, message.task, self._code_name[code], 1, result)
            except BaseException as error:
                self.replies.error(owner, message.task, f"task {self._code_name[code]}", 1, error)
            ended = clock()
            self._spans.append((code, began, ended))
            self.replies.pace(owner, code, ended - began)
        elif kind is messages.Call and self._runner is None and self.actor_name:
            began, method = clock(), message.method
            what = self._what.get(method) or self._name_call(method)
            try:
                call = getattr(self._instance, method)
                if message.args == codec.NO_ARGS:
                    result = call()
                else:
                    args, kwargs = codec.unpack(message.args)
                    result = call(*args, **kwargs)
                data = codec.pack_scalar(result)
                if data is not None:
                    self._lock.take()
                    try:
                        self._transport.post_result(owner, message.task, data)
                    finally:
                        self._lock.release()
                else:
                    self.replies.result(owner, message.task, what, 1, result)
            except ActorExit:
                self.end_actor(EXITED)
            except BaseException as error:
                self.replies.error(owner, message.task, what, 1, error)
            self._spans.append((what, began, clock()))
        elif kind is messages.CreateActor:
            self._create_actor(owner, message)
        elif kind is messages.RunFull and message.code:
            began = clock()
            name = message.name or self._code_name[message.code]
            if message.capture is not None:
                refs.set_backend(Capturing(self, message.capture))
            try:
                args, kwargs = self._open_args(owner, message)
                result = self._target(message.code)(*args, **kwargs)
                del args, kwargs
                if message.num_returns < 0:
                    stream(self, owner, message, name, result)
                else:
                    self.replies.result(owner, message.task, name, message.num_returns, result)
            except BaseException as error:
                self.replies.error(owner, message.task, f"task {name}", message.num_returns, error)
            if message.capture is not None:
                self._close_nested()
                refs.set_backend(self)
            ended = clock()
            self._spans.append((name, began, ended))
            self.replies.pace(owner, message.code, ended - began)
        elif not self.actor_name:
            self._held_calls.append((owner, message))
        elif self._runner is not None:
            self._runner.submit(owner, message)
        else:
            self._call(owner, message)

    def _name_call(self, method: str) -> str:
        name = self._what[method] = f"{self.actor_name}.{method}"
        return name

    def _target(self, key: str) -> Any:
        target = self._code[key]
        if type(target) is bytes:
            target = self._code[key] = codec.unpack(target)
        return target

    def _open_args(self, owner: str, message: Any) -> tuple[tuple, dict]:
        """Arguments of a full call, refs among them replaced by their values."""
        read, num_tried = self.reader.open_argument, 1
        try:
            args, kwargs = read(message.args, owner)
            args = list(args)
            for place, value in message.deps:
                num_tried += 1
                if isinstance(place, int):
                    args[place] = read(value, owner)
                else:
                    kwargs[place] = read(value, owner)
        except BaseException:
            with self._lock:  # one did not open: those behind it are given back all the same
                self.replies.drop_values(owner, values_of(message)[num_tried:])
            raise
        return tuple(args), kwargs

    def _call(self, owner: str, message: Any) -> None:
        if self._once is not None and type(message) is messages.RunFull and message.seq:
            self._call_once(owner, message)
            return
        if type(message) is messages.Call:
            method, num_returns = message.method, 1
        else:
            method, num_returns = message.name, message.num_returns
            if method == TERMINATE:
                self.end_actor(TERMINATED)
        what = f"{self.actor_name}.{method}"
        began = self.link.clock()
        try:
            args, kwargs = self._open_call(owner, message)
            result = getattr(self._instance, method)(*args, **kwargs)
            del args, kwargs
            if num_returns < 0:
                stream(self, owner, message, what, result)
            else:
                self.replies.result(owner, message.task, what, num_returns, result)
        except ActorExit:
            if self._runner is None:
                self.end_actor(EXITED)
            self.request_end(EXITED)
        except BaseException as error:
            self.replies.error(owner, message.task, what, num_returns, error)
        self._spans.append((what, began, self.link.clock()))
        if self._runner is not None:
            with self._lock:
                self._loop.send_now()

    def _call_once(self, owner: str, message: messages.RunFull) -> None:
        """A numbered call: it runs unless it has run, and its reply waits for the checkpoint."""
        once, what, began = self._once, f"{self.actor_name}.{message.name}", self.link.clock()
        assert once is not None
        packed: Any = None
        with self._lock:
            kept = once.window.asked(owner, message.seq, message.answered)
            if kept is not None:
                self.replies.drop_arguments(owner, message)
        if kept is not None:
            values = self._kept_values(owner, kept, message.num_returns)
        else:
            try:
                args, kwargs = self._open_args(owner, message)
                result = getattr(self._instance, message.name)(*args, **kwargs)
                del args, kwargs
                n = message.num_returns
                parts = [result] if n == 1 else codec.split_returns(result, n, what)
                if type(parts[-1]) is codec.Raised:  # such a reply is one thing, to be repeated as it was
                    raise parts[-1].error
                packed = [codec.pack(part, f"the result of {what}") for part in parts]
                values = [self.objects.make_value(each, owner) for each in packed]
                if any(each.refs for each in packed):
                    text = (
                        f"{what} ran, but its result held object refs, which ended with the actor's process"
                    )
                    kept = Kept([], ErrorInfo("ObjectLost", text))
                else:
                    # In one piece: a later incarnation may have to say it again.
                    kept = Kept([codec.pack_inline(part)[0] for part in parts])
                state = once.snapshot()
            except BaseException as error:
                kept = Kept([], self.replies.describe(what, error))
                values = self._kept_values(owner, kept, message.num_returns)
                try:
                    state = once.snapshot()
                except BaseException as bad_state:
                    print(f"rlplat: {what} changed a state that cannot be kept: {bad_state}", file=sys.stderr)
                    state = None
            self._spans.append((what, began, self.link.clock()))
            with self._lock:
                once.finished(owner, message.seq, kept, state)
        with self._lock:
            # (`packed` holds the refs inside the values until then.)
            once.hold(
                lambda packed=packed: self.replies.values(owner, message.task, values),  # type: ignore[misc]
                self.link.clock(),
            )
            if once.is_due(self.link.clock()):
                once.commit()
                self._loop.send_now()
            else:
                self._loop.tick_soon()

    def _kept_values(self, owner: str, kept: Kept, num_returns: int) -> list[Value]:
        if kept.error is not None:
            return [Value(error=kept.error)] * num_returns
        return [self.objects.make_value(codec.pack(codec.unpack(data)), owner) for data in kept.values]

    def _commit_s(self) -> float:
        return NEVER if self._once is None else self._once.due_s(self.link.clock())

    def _commit(self) -> None:
        assert self._once is not None
        self._once.commit()

    def _open_call(self, owner: str, message: Any) -> tuple[tuple, dict]:
        if type(message) is messages.Call:
            args, kwargs = codec.unpack(message.args)
            return args, kwargs
        return self._open_args(owner, message)

    def _create_actor(self, owner: str, message: messages.CreateActor) -> None:
        name = self._code_name[message.code]
        self._actor_id = message.actor
        if message.capture is not None:
            refs.set_backend(Capturing(self, message.capture))
        began = self.link.clock()
        try:
            crash_point("before_constructor")
            args, kwargs = self._open_args(owner, message)
            self._instance = self._target(message.code)(*args, **kwargs)
            if message.exactly_once:
                once = ExactlyOnce(checkpoint_path(self.link.session, message.actor))
                once.open(self._instance)
                self._once = once
            crash_point("after_constructor_before_report")
        except ActorExit:
            self.actor_name = name
            self.end_actor(EXITED_AT_ONCE)
        except BaseException as error:
            self.replies.error(owner, message.task, f"{name}.__init__", 1, error)
            return
        self._spans.append((f"{name}.__init__", began, self.link.clock()))
        self._runner = make_runner(self, self._target(message.code), message)
        self.actor_name = name
        with self._lock:
            self._transport.post_result(owner, message.task, codec.NONE)
            self._work.extendleft(reversed(self._held_calls))
            self._held_calls.clear()

    # ---------------------------------------------------------------- the call that runs

    def _running_call(self) -> tuple[str, Any] | None:
        """(owner, message) of what asks: read from its own stack or coroutine, so that nobody has to write it down."""
        call, frame = running_coroutine(), sys._getframe().f_back
        while call is None and frame is not None:
            message = frame.f_locals.get("message") if frame.f_code in _RUN_USER_CODE else None
            if message is not None:
                call = (frame.f_locals["owner"], message)
            frame = frame.f_back
        return call

    @property
    def running_task(self) -> str | None:
        call = self._running_call()
        return None if call is None else f"{call[0]}:{call[1].task}"

    @property
    def running_name(self) -> str | None:
        call = self._running_call()
        if call is None:
            return None
        message, kind = call[1], type(call[1])
        if kind is messages.CreateActor:
            return f"{self._code_name[message.code]}.__init__"
        if kind is messages.Call:
            return f"{self.actor_name}.{message.method}"
        if message.code:
            return getattr(message, "name", "") or self._code_name[message.code]
        return f"{self.actor_name}.{message.name}"

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the call that asks."""
        call = self._running_call()
        return call is not None and (call[0], call[1].task) in self._cancelled

    def shutdown(self) -> None:
        raise UsageError(
            "rlplat.shutdown() is for the driver; a task or an actor cannot end the cluster it runs in"
        )

    # ---------------------------------------------------------------- clusters inside this process

    def nested_opened(self) -> None:
        if not self._is_actor:  # an actor's may stay open from call to call
            self._execute = self._execute_behind  # type: ignore[method-assign]

    def _execute_behind(self, owner: str, message: Any) -> None:
        """The task before this one has opened a nested cluster: it must not see it."""
        del self._execute
        self._close_nested()
        self._execute(owner, message)

    def _close_nested(self) -> None:
        if not refs.backend().can_nest:
            print(
                "rlplat: warning: a task has not closed the cluster that it opened by rlplat.init(backend='inproc'): "
                "call rlplat.shutdown() in a `finally`",
                file=sys.stderr,
                flush=True,
            )
            api.shutdown()

    # ---------------------------------------------------------------- calls that are cancelled

    def _on_cancel(self, sender: str, message: messages.CancelTask) -> None:
        key = (sender, message.task)
        flow = self._flows.get(key)
        if message.is_close and flow is not None:
            flow.is_closed = True
            flow.wake(None)
            return
        for queue in (self._work, self._held_calls):
            for call in list(queue):
                if call[0] == sender and call[1].task == message.task:
                    try:
                        queue.remove(call)
                    except ValueError:  # the main thread has taken it just now
                        break
                    self.replies.drop_arguments(sender, call[1])
                    self.replies.cancelled(key, getattr(call[1], "num_returns", 1))
                    self._transport.flush()
                    return
        if message.is_close:
            return
        self._cancelled[key] = None
        if len(self._cancelled) > _KEPT_CANCELS:
            del self._cancelled[next(iter(self._cancelled))]
        if self._runner is not None:
            self._runner.cancel(key, message.recursive)
        elif not self._is_actor:  # a plain actor's running call goes on
            self.interrupts.interrupt(key)
            if message.recursive and self.interrupts.is_running(key, self._main_thread):
                for record in [each for each in self.calls.records.values() if each.id > self._first_child]:
                    self.cancels.stop(record, force=False, recursive=True)

    def _on_await_cancelled(self, ref: ObjectRef) -> None:
        if self._runner is not None and self._runner.awaits_for_cancelled():
            self.cancels.cancel(ref, force=False, recursive=True)

    # ---------------------------------------------------------------- generators

    def open_flow(self, owner: str, message: messages.RunFull, what: str) -> Outflow:
        flow = self._flows[(owner, message.task)] = Outflow(self, owner, message, what)
        return flow

    def close_flow(self, owner: str, task: int) -> None:
        del self._flows[(owner, task)]

    def _on_items_taken(self, sender: str, message: messages.ItemsTaken) -> None:
        flow = self._flows.get((sender, message.task))
        if flow is not None:
            flow.num_taken = max(flow.num_taken, message.count)
            flow.wake(None)

    # ---------------------------------------------------------------- the end of an actor

    def exit_actor(self) -> None:
        if not self._is_actor:
            super().exit_actor()
        raise ActorExit

    def request_end(self, reason: str) -> None:
        """A call in a thread or coroutine wants the actor to end: the main thread sees to it, ahead of all calls."""
        if self._runner is not None:
            self._runner.refuse_waiting(reason)
        self._work.appendleft((self.client_id, EndOfActor(reason)))
        self._loop.wake()

    def end_actor(self, reason: str) -> NoReturn:
        """End this process in order (main thread): calls that were not begun fail, `atexit` handlers run."""
        with self._lock:
            self._is_ending = True
            for owner, message in (*self._held_calls, *self._work):
                if type(message) is not EndOfActor:
                    self.replies.refuse(owner, message, self.actor_name, reason)
            self._held_calls.clear()
            self._work.clear()
            # The news of our death comes from the node, and must not overtake our results.
            self._farewells.update(set(self._transport.peers()) - {NODE, self.client_id})
            for peer in self._farewells:
                self._transport.post(peer, messages.Farewell())
            self._wait_for(lambda: all(peer in self.objects.dead for peer in self._farewells), _FAREWELL_S)
            self._transport.post(NODE, messages.EndActor(self._actor_id, reason, False))
            self._wait_for(lambda: self._exits, _END_S)
        leave(self)

    def _wait_for(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        try:
            self._loop.wait_until(is_done, timeout_s, "")
        except GetTimeout:
            pass

    # ---------------------------------------------------------------- waiting for others

    def _patience(self, ref: ObjectRef | None) -> Patience | None:
        runner = self._runner
        if runner is not None and runner.loop_thread is threading.current_thread():
            runner.warn_of_blocking()
        if self._running and threading.current_thread() is self._main_thread:
            return _BlockedNotice(self, ref)
        return None

    def _refuse_self_call(self, ref: ObjectRef) -> None:
        """Lock held."""
        name = self.actors.is_to_run(self._actor_id, ref) if self._is_actor and self._runner is None else None
        if name is not None:
            raise Deadlock(
                f"actor {self.actor_name} waits in one of its calls for the result of {name}, which it can only run "
                "when this call is done: call the method directly (self.method()), return the ref, or create the actor "
                "with max_concurrency=2 or async methods"
            )


class _BlockedNotice:
    """While a task waits: its CPUs are lent, and what is queued behind it goes back."""

    def __init__(self, worker: Worker, ref: ObjectRef | None) -> None:
        self._worker, self._ref = worker, ref
        self._since = worker.link.clock()
        self._is_told = False

    def patience(self, left_s: float | None) -> float | None:
        if self._is_told:
            return left_s
        until = self._since + _BLOCKED_AFTER_S - self._worker.link.clock()
        if until > 0:
            return until if left_s is None else min(left_s, until)
        worker, ref = self._worker, self._ref
        if ref is not None:
            worker._refuse_self_call(ref)
        self._is_told = worker._is_blocked = True
        worker.link.transport.post(NODE, messages.Blocked([] if ref is None else [(ref.owner, ref.id)]))
        if worker._is_actor:
            worker.link.transport.flush()
        else:
            worker._give_back()
        return left_s

    def finish(self) -> None:
        if self._is_told:
            self._worker._is_blocked = False
            self._worker.link.transport.post(NODE, messages.Unblocked())


_RUN_USER_CODE = frozenset({Worker._execute.__code__, Worker._call.__code__})


def leave(worker: Worker) -> NoReturn:
    """End this process in order: what it has sent gets its time to leave."""
    worker._instance = None
    if worker._is_actor:
        atexit._run_exitfuncs()
    worker.objects.drop_spares()
    worker.link.loop.close(linger_s=1)
    sys.stdout.flush()
    sys.stderr.flush()
    worker.link.system.exit(0)
