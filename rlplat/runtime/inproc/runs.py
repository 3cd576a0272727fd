"""How calls run in one process: in the caller's thread, or on the loop when they, or what they need, are late."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any

from rlplat.errors import NotInitialized
from rlplat.runtime.inproc.calls import (
    Call,
    LocalActor,
    LocalStreams,
    LoopThread,
    current_call,
    environment,
    is_stream,
)
from rlplat.runtime.inproc.objects import LocalObjects, Outcome
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.remote import ActorExit
from rlplat.runtime.wire.errors import describe_error
from rlplat.runtime.wire.values import ErrorInfo


class Runs:
    def __init__(
        self,
        objects: LocalObjects,
        streams: LocalStreams,
        loop: LoopThread,
        end_actor: Callable[[LocalActor, ErrorInfo], None],
    ) -> None:
        """`end_actor`: its constructor has failed, or it has asked for it."""
        self._objects, self._streams, self._loop, self._end_actor = objects, streams, loop, end_actor
        self._running: dict[int, asyncio.Task[None]] = {}
        """Calls on the loop, by the id of their first ref."""
        self._is_closed = False

    def submit(self, call: Call) -> Any:
        """Run it now, or on the loop when something that it needs is late; what its caller gets."""
        if self._is_closed:
            raise NotInitialized("the runtime was shut down")
        self._streams.collect()
        self._objects.collect()
        late = [ref for ref in call.deps if self._objects.outcome(ref) is None]
        actor = call.actor
        if actor is not None and not actor.is_async and actor.tail is not None:
            if self._objects.outcome(actor.tail) is None:
                late.append(actor.tail)
            else:
                actor.tail = None
        if is_stream(call.num_returns):
            given = self._streams.open(call)
        else:
            is_unread, call.num_returns = not call.num_returns, call.num_returns or 1
            call.out = [self._objects.add(None, call.what) for _ in range(call.num_returns)]
            given = None if is_unread else call.out[0] if call.num_returns == 1 else list(call.out)
        if actor is not None and actor.is_async and call is not actor.make:
            self._spawn(call, self._run_async(call, late))
        elif late:
            if actor is not None:
                actor.tail = call.out[0]
            self._spawn(call, self._run_late(call, late))
        else:
            self.run(call)
        return given

    # -- in the caller's thread

    def run(self, call: Call) -> None:
        """Run it to its end, here."""
        actor = call.actor
        if actor is not None:
            actor.enter(call.what)
        token = current_call.set(call)
        try:
            reason = self._reason_not_to_run(call)
            if reason is not None:
                self._fill(call, [reason] * len(call.out))
                return
            while True:
                try:
                    with environment(call.runtime_env):
                        args, kwargs = call.arguments(self._objects)
                        value = call.target(*args, **kwargs)
                        if call.stream is not None:
                            self._streams.begin(call.stream, value)
                            return
                        self._finish(call, value)
                    return
                except ActorExit:
                    assert actor is not None
                    self._end_actor(
                        actor, _exited(actor, " in its constructor" if call is actor.make else "")
                    )
                    self._fill(call, [actor.death] * len(call.out))  # type: ignore[list-item]
                    return
                except Exception as error:
                    if not call.may_retry(error):
                        self._fail(call, error)
                        return
        finally:
            current_call.reset(token)
            if actor is not None and (call.stream is None or not call.stream.is_begun):
                actor.leave()

    def _reason_not_to_run(self, call: Call) -> ErrorInfo | None:
        if call.actor is not None and call.actor.death is not None:
            return call.actor.death
        for ref in call.deps:
            outcome = self._objects.outcome(ref)
            if isinstance(outcome, ErrorInfo):
                actor = call.actor
                if actor is not None and call is actor.make:
                    return _not_made(actor.class_name, outcome)
                return outcome
        return None

    def _finish(self, call: Call, value: Any) -> None:
        actor = call.actor
        if actor is not None and call is actor.make:
            actor.instance, value = value, None
        late = call.deadline_error()
        self._fill(call, call.outcomes(value) if late is None else [late] * len(call.out))

    def _fail(self, call: Call, error: BaseException) -> None:
        info = describe_error(error, call.what)
        actor = call.actor
        if actor is not None and call is actor.make:
            info = _not_made(actor.class_name, info)
            self._end_actor(actor, info)
        self._fill(call, [info] * len(call.out))

    def _fill(self, call: Call, outcomes: Sequence[Outcome]) -> None:
        if call.stream is not None:
            error = outcomes[0]
            assert isinstance(error, ErrorInfo)
            self._streams.end(call.stream, error)
        actor = call.actor
        if (
            actor is not None
            and call is actor.make
            and isinstance(outcomes[0], ErrorInfo)
            and actor.death is None
        ):
            self._end_actor(actor, outcomes[0])
        for ref, outcome in zip(call.out, outcomes, strict=True):
            self._objects.fill(ref.id, outcome)

    # -- on the loop

    def _spawn(self, call: Call, coroutine: Any) -> None:
        id = call.out[0].id

        def began(task: asyncio.Task[None]) -> None:
            self._running[id] = task
            task.add_done_callback(ended)

        def ended(task: asyncio.Task[None]) -> None:
            del self._running[id]
            if task.cancelled():
                error = ErrorInfo("TaskCancelled", f"{call.what} was cancelled by rlplat.cancel")
                self._fill(call, [error] * len(call.out))

        self._loop.spawn(coroutine, began)
        self._objects.loop_thread = self._loop.thread

    async def _run_late(self, call: Call, late: Sequence[ObjectRef]) -> None:
        await self.arrived(late)
        try:
            self.run(call)
        except Exception as error:  # refused: there is nobody left to raise it to
            self._fail(call, error)

    async def _run_async(self, call: Call, late: Sequence[ObjectRef]) -> None:
        actor = call.actor
        assert actor is not None
        current_call.set(call)
        await self.arrived(late)
        try:
            async with actor.semaphore(call.group):
                reason = self._reason_not_to_run(call)
                if reason is not None:
                    self._fill(call, [reason] * len(call.out))
                    return
                while True:
                    try:
                        await self._attempt(call)
                        return
                    except Exception as error:
                        if call.deadline_error() is not None or not call.may_retry(error):
                            raise
        except ActorExit:
            self._end_actor(actor, _exited(actor))
            self._fill(call, [actor.death] * len(call.out))  # type: ignore[list-item]
        except Exception as error:
            late_error = call.deadline_error() if isinstance(error, TimeoutError) else None
            if late_error is not None:
                self._fill(call, [late_error] * len(call.out))
            else:
                self._fail(call, error)

    async def _attempt(self, call: Call) -> None:
        args, kwargs = call.arguments(self._objects)
        value = call.target(*args, **kwargs)
        if call.stream is not None and hasattr(value, "__aiter__"):
            await self._streams.pump(call.stream, value)
        elif call.stream is not None:
            self._streams.begin(call.stream, value)
        else:
            if hasattr(value, "__await__"):
                value = await asyncio.wait_for(value, call.left_s())
            self._finish(call, value)

    async def arrived(self, refs: Sequence[ObjectRef]) -> None:
        loop = asyncio.get_running_loop()
        for ref in refs:
            arrived = asyncio.Event()
            tell = functools.partial(_call_in, loop, arrived.set)
            if self._objects.when_ready(ref, tell):
                await arrived.wait()

    def cancel(self, id: int) -> None:
        """The call whose first ref has this id, if it is on the loop."""
        self._loop.call_soon(self._cancel_running, id)

    def _cancel_running(self, id: int) -> None:
        task = self._running.get(id)
        if task is not None:
            task.cancel()

    def is_cancelled(self, call: Call) -> bool:
        """Only a coroutine can be cancelled while it runs."""
        task = self._running.get(call.out[0].id)
        return task is not None and task.cancelling() > 0

    def close(self) -> None:
        self._is_closed = True
        self._loop.close()


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """From any thread; a loop that has ended needs no news."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)


def _not_made(class_name: str, error: ErrorInfo) -> ErrorInfo:
    return ErrorInfo(
        "ActorDied", f"actor {class_name} could not be created: {error.message}", error.exception
    )


def _exited(actor: LocalActor, where: str = "") -> ErrorInfo:
    return ErrorInfo("ActorDied", f"actor {actor.class_name} is gone: it called rlplat.exit_actor(){where}")
