"""A worker process: the main thread runs tasks or one actor's calls, in the order in which they came.

It is a client as well: tasks may submit tasks, call actors and hold objects. While the main thread waits for work
it reads the socket itself; while it runs user code the background thread does. What a call does is the `executor`'s
business; here is what the process says to others: it takes calls, gives back those that others can do sooner, hears of
cancels and deaths, lends its CPUs while it waits, and takes its leave.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from rlplat.errors import Deadlock, GetTimeout, UsageError
from rlplat.runtime import refs
from rlplat.runtime.client.client import Client
from rlplat.runtime.link.link import Link
from rlplat.runtime.link.loop import Patience
from rlplat.runtime.link.system import SYSTEM, System
from rlplat.runtime.machine.worker_logs import SNAPSHOTS
from rlplat.runtime.process import stacks
from rlplat.runtime.process.crash_points import crash_point
from rlplat.runtime.process.forked import set_worker
from rlplat.runtime.process.spans import Span
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.remote import TERMINATE, ActorExit
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.worker import ending
from rlplat.runtime.worker.actor import End
from rlplat.runtime.worker.executor import ENTRIES, Executor
from rlplat.runtime.worker.interrupts import Interrupts
from rlplat.runtime.worker.lending import Blocking, Lending
from rlplat.runtime.worker.outflow import Outflows
from rlplat.runtime.worker.queue import EndOfActor, Key, Queue, Running
from rlplat.runtime.worker.replies import Arguments, Replies

_FLUSH_S = 0.002
_FLUSH_RESULTS = 256
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
        self._running = Running()
        self.interrupts = interrupts(self._running, ENTRIES)
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
        self.gpu_ids = gpu_ids
        self.queue = Queue()
        arguments = Arguments(link, self.objects, self.reader)
        self._replies = Replies(link, self.objects, arguments, self.interrupts)
        self._flows = Outflows(link, self.objects, self._replies)
        self.executor = Executor(
            link,
            self.objects,
            arguments,
            self._replies,
            self._flows,
            self.waiters,
            self.queue,
            self._running,
            self._ask_to_end,
        )
        self._calls_left: dict[str, int] = {}
        """Of functions with `max_calls`."""
        self._is_worn = False
        """One of them has had its last call here: whatever comes now goes back."""
        self._is_actor = False
        """From the constructor's message on: what comes now is never given back."""
        self._is_ending = False
        """The actor ends by its own will."""
        self._farewells: set[str] = set()
        """Callers that have not answered our farewell."""
        self._cancelled: dict[Key, None] = {}
        """The last calls that were cancelled after they had begun: see `is_cancelled`."""
        self._first_child = 0
        """Tasks of this process from this id on were submitted by the task that runs."""
        self._lending = Lending(link, self._running, self._on_lend)
        self.waiters.on_wait = self._lending.awaits
        self._exits = False
        self._unparked = threading.Condition(self._lock)
        self._is_parked = False
        """The thread of an event loop reads the socket, and begins the calls; the main thread sees to the end."""
        link.at_end(lambda error: self._unparked.notify())
        link.on(messages.Code, self._on_code)
        link.on(messages.Run, self._on_run)
        link.on(messages.GiveBack, lambda sender, _: self._give_back())
        link.on(messages.Exit, self._on_exit)
        link.on(messages.CancelTask, self._on_cancel)
        link.on(messages.FarewellHeard, lambda sender, _: self._farewells.discard(sender))
        link.on(messages.Ping, lambda sender, _: link.transport.post(NODE, messages.Pong()))

    # ---------------------------------------------------------------- messages

    def _on_code(self, sender: str, message: messages.Code) -> None:
        self.executor.learn(message, self.objects.receive(message.refs, sender))
        if message.max_calls:
            self._calls_left.setdefault(message.key, message.max_calls)

    def _on_run(self, sender: str, message: messages.Run) -> None:
        if message.more is not None:
            self._check(message, message.more)
        if self._is_parked and not self.queue.calls and message.method != TERMINATE:
            assert self.executor.runner is not None
            try:
                self.executor.runner.submit(sender, message)
            except Exception as error:
                self._replies.not_executed(sender, message, error)
            return
        self.queue.calls.append((sender, message))
        self._unparked.notify()
        if self._is_worn or (self._lending.is_lent and not self._is_actor):
            self._give_back()

    def _check(self, message: messages.Run, more: messages.More) -> None:
        """Raise ValueError for what the main thread cannot even answer with an error."""
        if not -2 <= more.num_returns <= _MOST_RETURNS:
            raise ValueError(f"num_returns={more.num_returns}")
        if more.creation is not None:
            if not self.executor.knows(message.code):
                raise ValueError(f"its code {message.code!r:.50} was not sent")
            if self._is_actor:
                raise ValueError("there is an actor in this process")
            if not _ACTOR_ID.fullmatch(more.creation.actor):
                raise ValueError(f"{more.creation.actor!r:.50} is not an actor's id")
            self._is_actor = True

    def _on_worker_died(self, sender: str, message: messages.WorkerDied) -> None:
        super()._on_worker_died(sender, message)
        self.executor.caller_died(message.worker)
        self._flows.owner_died(message.worker)
        call = self._running.call
        if call is not None and call[0] == message.worker and not self._is_actor:
            self.link.system.exit(1)  # nobody waits for this task
        self.queue.forget(message.worker)

    def _on_exit(self, sender: str, message: messages.Exit) -> None:
        self._exits = True
        self._unparked.notify()
        if (
            self._is_actor and self._running.call is not None and not self._is_ending
        ):  # its handles are all gone, so nobody waits for this call
            self.link.system.exit(0)

    def _give_back(self) -> None:
        """Return to their owners the tasks that have not begun. Owners hear of it even when there are none."""
        call, calls = self._running.call, self.queue.calls
        tasks: dict[str, list[int]] = {} if call is None else {call[0]: []}
        while calls:
            owner, message = calls.popleft()
            tasks.setdefault(owner, []).append(message.task)
        crash_point("before_tasks_are_given_back")
        for owner, ids in tasks.items():
            self._transport.post(owner, messages.GaveBack(ids, self._is_worn))
        self._transport.flush()

    # ---------------------------------------------------------------- the main loop

    def run(self) -> None:
        """Run work until told to exit."""
        calls, running, executor, clock = self.queue.calls, self._running, self.executor, self.link.clock
        execute, lending = executor.execute, self._lending
        num_results = 0
        now = flushed_at = clock()
        while True:
            try:
                running.call = owner, message = calls.popleft()
            except IndexError:
                if not self._await_work():
                    return
                num_results = 0
                now = flushed_at = clock()
                continue
            try:
                reason = execute(owner, message, now)
            except Exception as error:  # not the user's: what his code raises is a reply
                if type(message) is EndOfActor:
                    raise
                self._replies.not_executed(owner, message, error)
                reason = None
            if reason is not None:
                self._end(reason)
            if executor.has_nested and not self._is_actor:  # an actor's may stay open from call to call
                executor.close_nested()
            if self._calls_left:
                self._count_call(message)
            num_results += 1
            now = clock()
            if num_results >= _FLUSH_RESULTS or now - flushed_at > _FLUSH_S:
                with self._lock:
                    self._loop.send_now()
                    executor.pack()
                num_results = 0
                now = flushed_at = clock()
            running.call = None
            if lending.waits and executor.runner is None:
                with self._lock:
                    lending.call_ended()
            if self.calls.num_open:
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

    def _await_work(self) -> bool:
        """Send what there is and wait; False: this process may end."""
        with self._lock:
            while not self.queue.calls:
                if self.executor.runner is not None and self.executor.runner.loop_thread is not None:
                    if self._exits:
                        return False
                    self._transport.flush()
                    self._is_parked = True
                    self._unparked.wait()
                    self._is_parked = False
                    self.link.check_open()
                    continue
                self.executor.commit()
                self.executor.pack()
                self.objects.collect()
                if self._transport.num_unsent:
                    crash_point("before_results_leave")
                    self._transport.flush()
                if self._exits and (self._is_actor or not self._is_needed()):
                    return False
                self._loop.enter()
                try:
                    self._loop.pump(None)
                finally:
                    self._loop.leave()
        return True

    def _is_needed(self) -> bool:
        """For what it owns; or what it has made, for an owner on another machine, who cannot take that over."""
        return len(self.objects.book) > 0 or (self._transport.is_spread and self.objects.store.has_values())

    # ---------------------------------------------------------------- the call that runs

    @property
    def running_task(self) -> str | None:
        call = self._running.here()
        return None if call is None else f"{call[0]}:{call[1].task}"

    @property
    def running_name(self) -> str | None:
        call = self._running.here()
        return None if call is None else self.executor.name_of(call[1])

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the call that asks."""
        call = self._running.here()
        return call is not None and (call[0], call[1].task) in self._cancelled

    @property
    def actor_name(self) -> str:
        return self.executor.actor_name

    def nested_opened(self) -> None:
        self.executor.has_nested = True

    def shutdown(self) -> None:
        raise UsageError("rlplat.shutdown() is for the driver; a task or an actor cannot end the cluster it runs in")

    # ---------------------------------------------------------------- for those who look

    def owners_waiting(self) -> list[str]:
        runner = self.executor.runner
        return self.queue.owners() + ([] if runner is None else runner.owners_waiting())

    def spans(self) -> list[Span]:
        return self.executor.spans()

    def coroutines(self) -> list[Any]:
        runner = self.executor.runner
        return [] if runner is None else runner.coroutines()

    # ---------------------------------------------------------------- calls that are cancelled

    def _on_cancel(self, sender: str, message: messages.CancelTask) -> None:
        key = (sender, message.task)
        if message.is_close and self._flows.stop(key):
            return
        waiting = self.queue.remove(*key)
        if waiting is not None:
            self._replies.withdrawn(sender, waiting)
            self._transport.flush()
            return
        if message.is_close:
            self._flows.stop_early(key)
            return
        self._cancelled[key] = None
        if len(self._cancelled) > _KEPT_CANCELS:
            del self._cancelled[next(iter(self._cancelled))]
        runner = self.executor.runner
        if self._is_actor and (runner is None or runner.loop_thread is None):
            # A running sync call of an actor goes on, a generator to its next value.
            if not self._flows.stop(key, is_cancelled=True):
                self._flows.stop_early(key, is_cancelled=True)
        if runner is not None:
            runner.cancel(key, message.recursive)
        elif not self._is_actor:
            self.interrupts.interrupt(key)
            if message.recursive and self._running.key == key:
                for record in [each for each in self.objects.book.calls() if each.id > self._first_child]:
                    self.cancels.stop(record, force=False, recursive=True)

    def _on_await_cancelled(self, ref: ObjectRef) -> None:
        runner = self.executor.runner
        if runner is not None and runner.awaits_for_cancelled():
            self.cancels.cancel(ref, force=False, recursive=True)

    # ---------------------------------------------------------------- the end of an actor

    def exit_actor(self) -> None:
        if not self._is_actor:
            super().exit_actor()
        raise ActorExit

    def _ask_to_end(self, reason: End) -> None:
        """A call in a thread or coroutine wants the actor to end: the main thread sees to it, ahead of all calls."""
        runner = self.executor.runner
        if runner is not None:
            runner.refuse_waiting(reason)
        with self._lock:
            self.queue.calls.appendleft((self.client_id, EndOfActor(reason)))
            self._unparked.notify()
        self._loop.wake()

    def _end(self, reason: End) -> NoReturn:
        """End this process in order (main thread): an actor's calls that were not begun fail, `atexit` handlers run. Or
        with an exit code, as one that crashed, after its last results."""
        with self._lock:
            if isinstance(reason, str):
                self._is_ending = True
                for owner, message in self.queue.take_all():
                    self._replies.refuse(owner, message, self.actor_name, reason)
            # The news of our death comes from the node, and must not overtake our results.
            self._farewells.update(set(self._transport.peers()) - {NODE, self.client_id})
            for peer in self._farewells:
                self._transport.post(peer, messages.Farewell())
            self._wait_for(lambda: all(peer in self.objects.dead for peer in self._farewells), _FAREWELL_S)
            if isinstance(reason, str):
                self._transport.post(NODE, messages.EndActor(self.executor.actor_id, reason, False))
                self._wait_for(lambda: self._exits, _END_S)
        self.leave(0 if isinstance(reason, str) else reason)

    def leave(self, code: int = 0) -> NoReturn:
        """End this process in order: what it has sent gets its time to leave."""
        if self.executor.actor is not None:
            self.executor.actor.instance = None
        ending.run_handlers()
        self.objects.drop_spares()
        self._loop.close(linger_s=1)
        self.link.system.exit(code)

    def _wait_for(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        try:
            self._loop.wait_until(is_done, timeout_s, "")
        except GetTimeout:
            pass

    # ---------------------------------------------------------------- waiting for others

    def _patience(self, ref: ObjectRef | None) -> Patience | None:
        call, runner, blocks_all = self._running.here(), self.executor.runner, False
        if runner is not None and runner.loop_thread is threading.current_thread():
            runner.warn_of_blocking()
            blocks_all = True
        if call is None:
            return None
        refuse = self._refuse_self_call if runner is None else None
        return Blocking(self._lending, call, ref, refuse, blocks_all)

    def _on_lend(self) -> None:
        """What is queued behind a task goes back (lock held)."""
        if not self._is_actor:
            self._give_back()

    def _refuse_self_call(self, ref: ObjectRef) -> None:
        """Lock held."""
        name = self.actors.is_to_run(self.executor.actor_id, ref) if self._is_actor else None
        if name is not None:
            raise Deadlock(
                f"actor {self.actor_name} waits in one of its calls for the result of {name}, which it can only run "
                "when this call is done: call the method directly (self.method()), return the ref, or create the actor "
                "with max_concurrency=2 or async methods"
            )


def main(session: str, client_id: str, gpu_ids: tuple[int, ...], runtime_env: dict[str, Any], folder: str) -> None:
    """The life of a worker process (already forked, with its log as stdout and stderr)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(session, client_id, gpu_ids)
    ending.forget_handlers_of_zygote()
    worker.use_runtime_env(runtime_env, os.path.join(folder, SNAPSHOTS))
    refs.set_backend(worker)
    set_worker()
    ending.run_handlers_at_sigterm()
    stacks.arm()
    worker.interrupts.install()
    worker.start()
    worker.run()
    worker.leave()
