"""How calls run in a worker: in the main thread, in threads, in an event loop.

    tasks, plain actors          the main thread runs them one after the other: `Worker.run`
    max_concurrency or groups    `ThreadRunner`: a pool of threads for each concurrency group
    classes with `async def`     `event_loop`: coroutines in one event loop; sync methods run in it, one at a time

Calls of one caller begin in the order in which they were made, within a concurrency group. A generator runs where its
call runs (`outflow`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from rlplat.runtime.link.waiters import Waiters
from rlplat.runtime.remote import TERMINATE, is_async_class, methods_of
from rlplat.runtime.wire import messages
from rlplat.runtime.worker.actor import END_GRACE_S, TERMINATED, Actor, End, Runner
from rlplat.runtime.worker.queue import EndOfActor, Key, Running

MAX_COROUTINES = 1000


def make_runner(
    actor: Actor,
    actor_class: type,
    creation: messages.Creation,
    running: Running,
    waiters: Waiters,
    ask_to_end: Callable[[End], None],
) -> Runner | None:
    """How the calls of this actor run; None: one after the other in the main thread."""
    methods = methods_of(actor_class)
    groups = dict(creation.concurrency_groups)
    group_by_method = {
        name: options.concurrency_group for name, options in methods.items() if options.concurrency_group
    }

    def group_of(call: Any) -> str:
        own = "" if call.more is None else call.more.group
        return own or group_by_method.get(call.method, "")

    if is_async_class(actor_class):
        from rlplat.runtime.worker.event_loop import (
            LoopRunner,  # asyncio is slow to import, and few actors need it
        )

        sizes = groups | {"": creation.max_concurrency or MAX_COROUTINES}
        return LoopRunner(actor, running, waiters, ask_to_end, sizes, group_of)
    if groups or creation.max_concurrency > 1:  # 0 and 1: one call after the other
        sizes = groups | {"": max(1, creation.max_concurrency)}
        return ThreadRunner(actor, running, ask_to_end, sizes, group_of)
    return None


class ThreadRunner(Runner):
    def __init__(
        self,
        actor: Actor,
        running: Running,
        ask_to_end: Callable[[End], None],
        sizes: dict[str, int],
        group_of: Callable[[Any], str],
    ) -> None:
        self._actor, self._running, self._ask_to_end, self._group_of = actor, running, ask_to_end, group_of
        self._pools = {
            group: ThreadPoolExecutor(size, thread_name_prefix=group or "calls") for group, size in sizes.items()
        }
        self._futures: dict[Key, tuple[Future[None], Any]] = {}
        """With the messages of their calls."""

    def submit(self, owner: str, message: Any) -> End | None:
        if type(message) is EndOfActor or message.method == TERMINATE:
            if type(message) is EndOfActor:
                self.refuse_waiting(message.reason)
                wait([future for future, _ in self._futures.copy().values()], END_GRACE_S)
                return message.reason
            for pool in self._pools.values():
                pool.shutdown(wait=True)
            return TERMINATED
        key = (owner, message.task)
        future = self._pools[self._group_of(message)].submit(self._run, owner, message)
        self._futures[key] = (future, message)
        future.add_done_callback(lambda _: self._futures.pop(key, None))
        return None

    def _run(self, owner: str, message: Any) -> None:
        self._running.begin_beside(owner, message)
        try:
            reason = self._actor.call(owner, message, self._actor.link.clock())
        except BaseException as error:  # not the user's: what his code raises is a reply
            reason = None
            self._actor.replies.not_executed(owner, message, error)
        self._running.end_beside((owner, message.task))
        if reason is not None:
            self._ask_to_end(reason)
        with self._actor.link.lock:
            self._actor.link.loop.send_now()

    def refuse_waiting(self, reason: End) -> None:
        for (owner, _), (future, call) in list(self._futures.items()):
            if future.cancel():
                with self._actor.link.lock:
                    self._actor.replies.refuse(owner, call, self._actor.name, reason)

    def cancel(self, task: Key, recursive: bool) -> None:
        future, message = self._futures.get(task, (None, None))
        if future is not None and future.cancel():
            self._actor.replies.withdrawn(task[0], message)

    def owners_waiting(self) -> list[str]:
        return [owner for (owner, _), (future, _) in self._futures.copy().items() if not future.running()]
