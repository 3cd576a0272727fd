"""The calls of an actor with `async def` methods: coroutines in an event loop that has a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import selectors
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from rlplat.given.say import say, say_traceback
from rlplat.runtime.link.waiters import LeadingSelector, LoopInbox, Waiters
from rlplat.runtime.process.forked import end_if_forked
from rlplat.runtime.remote import TERMINATE, ActorExit
from rlplat.runtime.wire import messages
from rlplat.runtime.worker.actor import END_GRACE_S, EXITED, TERMINATED, Actor, End, Runner, end_by
from rlplat.runtime.worker.outflow import close_quietly, iterator_of
from rlplat.runtime.worker.queue import EndOfActor, Key, Running


class LoopRunner(Runner):
    """Coroutines in an event loop that has a thread of its own, which reads the socket while they all wait. What
    follows `submit` and `cancel` runs in that."""

    def __init__(
        self,
        actor: Actor,
        running: Running,
        waiters: Waiters,
        ask_to_end: Callable[[End], None],
        sizes: dict[str, int],
        group_of: Callable[[Any], str],
    ) -> None:
        self._actor, self._running, self._waiters = actor, running, waiters
        self._ask_to_end, self._group_of = ask_to_end, group_of
        self._free = dict(sizes)
        self._waiting: dict[str, deque[tuple[str, Any]]] = {group: deque() for group in sizes}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._begun: set[Key] = set()
        self._cancelled: dict[Key, bool] = {}
        """Calls that are to end, and whether what they await is to end too."""
        self._ending: End | None = None
        """Why the actor ends, once it does."""
        selector = LeadingSelector(actor.link.loop, selectors.DefaultSelector())
        self._loop = asyncio.SelectorEventLoop(selector)  # type: ignore[arg-type]  # it does as one
        self._inbox = LoopInbox(self._loop)
        selector.wake = self._inbox.wake
        self.has_warned = False
        self.loop_thread = threading.Thread(target=self._serve, name="rlplat-asyncio", daemon=True)
        self.loop_thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._inbox.thread = threading.get_ident()
        while True:
            try:
                self._loop.run_forever()
            except BaseException:  # a SystemExit in a task that the user's code started ends that task, not the loop
                say_traceback()

    def submit(self, owner: str, message: Any) -> End | None:
        if type(message) is EndOfActor:
            try:
                asyncio.run_coroutine_threadsafe(self._leave(message.reason), self._loop).result(2 * END_GRACE_S)
            except TimeoutError:  # something blocks the loop
                pass
            return message.reason
        if message.method == TERMINATE:
            asyncio.run_coroutine_threadsafe(self._drain(), self._loop).result()
            return TERMINATED
        group = self._group_of(message)
        if group not in self._waiting:
            raise ValueError(f"there is no concurrency group {group!r:.50}")
        self._inbox.post(self._start, owner, message)
        return None

    def cancel(self, task: Key, recursive: bool) -> None:
        self._inbox.post(self._cancel, task, recursive)

    # ---------------------------------------------------------------- in the loop's thread

    def _start(self, owner: str, message: Any) -> None:
        group = self._group_of(message)
        if self._ending is not None:
            with self._actor.link.lock:
                self._actor.replies.refuse(owner, message, self._actor.name, self._ending)
        elif self._free[group]:
            self._free[group] -= 1
            self._begin(owner, message, group)
        else:
            self._waiting[group].append((owner, message))

    def _begin(self, owner: str, message: Any, group: str) -> None:
        key = (owner, message.task)
        task = self._tasks[key] = self._loop.create_task(self._run(owner, message))
        task.add_done_callback(lambda _: self._ended(key, group))

    def _ended(self, key: Key, group: str) -> None:
        self._tasks.pop(key, None)  # (two calls of one number: no caller of ours does that)
        self._begun.discard(key)
        self._running.end_beside(key)
        self._cancelled.pop(key, None)
        if self._waiting[group] and self._ending is None:
            self._begin(*self._waiting[group].popleft(), group)
        else:
            self._free[group] += 1

    def _cancel(self, key: Key, recursive: bool) -> None:
        for waiting in self._waiting.values():
            for call in waiting:
                if (call[0], call[1].task) == key:
                    waiting.remove(call)
                    with self._actor.link.lock:
                        self._actor.replies.withdrawn(*call)
                    return
        task = self._tasks.get(key)
        if task is not None:
            self._cancelled[key] = recursive
            if key in self._begun:  # else it sees for itself when it begins
                task.cancel()

    def awaits_for_cancelled(self) -> bool:
        """Whether the coroutine that runs now belongs to a call that was cancelled with all that it submitted."""
        call = self._running.here()
        return call is not None and self._cancelled.get((call[0], call[1].task), False)

    async def _run(self, owner: str, message: messages.Run) -> None:
        actor, key = self._actor, (owner, message.task)
        self._begun.add(key)
        self._running.begin_beside(owner, message)
        method, more = message.method, message.more
        what = (more is not None and more.label) or f"{actor.name}.{method}"
        began = actor.link.clock()
        try:
            if key in self._cancelled:
                with actor.link.lock:
                    actor.arguments.drop(owner, message)
                raise asyncio.CancelledError
            args, kwargs = actor.arguments.open(owner, message)
            result = getattr(actor.instance, method)(*args, **kwargs)
            del args, kwargs
            if inspect.iscoroutine(result):
                result = await result
            end_if_forked()
            if message.num_returns < 0:
                await self._stream(owner, message, what, result)
            else:
                actor.replies.result(owner, message, what, result)
        except (ActorExit, SystemExit) as error:
            end_if_forked(error)
            self._ask_to_end(end_by(error) if isinstance(error, SystemExit) else EXITED)
        except BaseException as error:
            end_if_forked(error)
            try:
                if isinstance(error, asyncio.CancelledError) and self._ending is not None:
                    with actor.link.lock:
                        actor.replies.refuse(owner, message, actor.name, self._ending, has_begun=True)
                elif isinstance(error, asyncio.CancelledError) and key in self._cancelled:
                    with actor.link.lock:
                        actor.replies.cancelled(owner, message, what)
                else:
                    actor.replies.error(owner, message, what, error)
            except BaseException as failure:
                actor.replies.not_executed(owner, message, failure)
        actor.spans.append((what, began, actor.link.clock()))
        with actor.link.lock:  # (what is posted leaves when the loop's round is over)
            actor.spans.pack()

    async def _drain(self) -> None:
        """Wait for all calls."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
            await asyncio.sleep(0)

    async def _leave(self, reason: End) -> None:
        """The actor exits: calls that run have a little time, and are cut off then."""
        self.refuse_waiting(reason)
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks.values()), timeout=END_GRACE_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=END_GRACE_S / 2)

    def refuse_waiting(self, reason: End) -> None:
        self._ending = reason
        for waiting in self._waiting.values():
            while waiting:
                owner, message = waiting.popleft()
                with self._actor.link.lock:
                    self._actor.replies.refuse(owner, message, self._actor.name, reason)

    def warn_of_blocking(self) -> None:
        if not self.has_warned:
            self.has_warned = True
            say(
                "a blocking rlplat.get or wait in an async actor holds up all of its coroutines; write "
                "`await ref` instead"
            )

    async def _stream(self, owner: str, message: messages.Run, what: str, values: Any) -> None:
        """As `Outflows.stream`, for generators, async or not, in an event loop."""
        link, flows = self._actor.link, self._actor.flows
        is_async = hasattr(values, "__anext__")
        iterator = values if is_async else iterator_of(values, what)
        flow = flows.open(owner, message, what)
        try:
            while not flow.is_closed:
                try:
                    flow.send(await anext(iterator) if is_async else next(iterator))
                except (StopIteration, StopAsyncIteration):
                    break
                except Exception as error:
                    flow.fail(error)
                    break
                while not flow.may_go_on():
                    with link.lock:
                        waiter, flow.wake = self._waiters.waiter()
                        link.loop.send_now()
                        if flow.may_go_on():
                            flow.wake(None)
                    await waiter
                if not is_async:
                    await asyncio.sleep(0)  # others have their turn between two values
        finally:
            flows.close(owner, message.task)
            if is_async:
                await iterator.aclose()
            else:
                close_quietly(iterator)
        self._actor.replies.result(owner, message, what, None)

    # ---------------------------------------------------------------- for those who look (any thread)

    def owners_waiting(self) -> list[str]:
        return [owner for waiting in self._waiting.values() for owner, _ in waiting.copy()]

    def coroutines(self) -> list[Any]:
        return [task.get_coro() for task in list(self._tasks.values())]
