"""HTTP for a deployment that is called with each request: what it returns becomes the answer.

    async def __call__(self, request):                       # a starlette Request
        return {"sum": sum(await request.json())}

| returned | answered |
|---|---|
| a starlette Response | as it is |
| a generator, async or not, of str or bytes | a stream, part by part |
| str / bytes | text/plain / application/octet-stream |
| None | 204 |
| anything else (numpy arrays included) | JSON |
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from concurrent.futures import Executor
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from rlplat.given.say import say_traceback
from rlplat.serve.multiplexing import in_context, in_thread
from rlplat.serve.refusals import Refused, no_exit


def application(served: Any, executor: Executor) -> Any:
    """An ASGI application that calls `served(request)`; a `def` runs in `executor`, one at a time."""
    call = served if inspect.isfunction(served) else served.__call__
    is_coroutine = inspect.iscoroutinefunction(call)
    takes_request = bool(inspect.signature(call).parameters)

    async def invoke(request: Request) -> Any:
        arguments = (request,) if takes_request else ()
        if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
            return call(*arguments)
        with no_exit():
            if is_coroutine:
                return await call(*arguments)
            answer = await asyncio.get_running_loop().run_in_executor(executor, in_context(call, *arguments))
            return await answer if inspect.isawaitable(answer) else answer

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "this deployment takes HTTP requests"})
            return
        if scope["path"] == "/health/live":
            await Response("ok")(scope, receive, send)
            return
        listener = _Listener(receive)
        task = asyncio.ensure_future(answered(scope, listener, send))
        listening = asyncio.ensure_future(listener.listen(task))
        try:
            await task
        except asyncio.CancelledError:
            if not listener.is_alone:
                raise
        finally:
            listening.cancel()

    async def answered(scope: Any, listener: _Listener, send: Any) -> None:
        """The whole of it, a stream to its end: a generator may read its request while it makes the answer."""
        try:
            answer = await invoke(Request(scope, listener.receive))
            response = response_of(answer, executor)
        except HTTPException as error:
            answer = response = Response(error.detail, error.status_code, headers=dict(error.headers or {}))
        except Refused:
            raise
        except Exception as error:
            if isinstance(cause := getattr(error, "cause", None), Refused):
                raise cause from None
            say_traceback()
            raise Refused(500, "failed", f"{type(error).__name__} in the deployment; its log says more") from None
        try:
            with no_exit():
                await response(scope, listener.leaving, send)
        finally:
            await _end(answer, executor)

    return app


class _Listener:
    """Reads for the call that runs, ahead of it, and so notices a client that leaves: the call is cancelled."""

    AHEAD_BYTES = 1 << 20
    """Of a body that is not read (a client that leaves then is noticed when some of it is)."""

    def __init__(self, receive: Any) -> None:
        self._receive = receive
        self._messages: deque[Any] = deque()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self.is_alone = False
        """The client has left."""

    async def receive(self) -> Any:
        while not self._messages:
            self._changed.clear()
            await self._changed.wait()
        self._taken.set()
        return self._messages.popleft()

    async def leaving(self) -> Any:
        """For a response, which looks for nothing else: `listen` cancels it."""
        await asyncio.Event().wait()

    async def listen(self, task: asyncio.Future[Any]) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.is_alone = True
                task.cancel()
                return
            self._messages.append(message)
            self._changed.set()
            while sum(len(each.get("body", b"")) for each in self._messages) > self.AHEAD_BYTES:
                self._taken.clear()
                await self._taken.wait()


def response_of(answer: Any, executor: Executor) -> Response:
    if isinstance(answer, Response):
        return answer
    if hasattr(answer, "__aiter__"):
        return StreamingResponse(answer, media_type="text/plain")
    if inspect.isgenerator(answer):
        return StreamingResponse(in_thread(answer, executor), media_type="text/plain")
    if answer is None:
        return Response(status_code=204)
    if isinstance(answer, str):
        return Response(answer, media_type="text/plain")
    if isinstance(answer, bytes):
        return Response(answer, media_type="application/octet-stream")
    return Response(msgspec.json.encode(answer, enc_hook=plain), media_type="application/json")


def plain(value: Any) -> Any:
    """What JSON has no type for: numpy's arrays and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON; return a starlette Response")


async def _end(answer: Any, executor: Executor) -> None:
    """A stream whose client has left is closed at once: its `finally` does not wait for the garbage collector."""
    if inspect.isgenerator(answer):  # in its thread, behind the step of it that may still run
        with contextlib.suppress(RuntimeError):  # the replica has ended
            executor.submit(in_context(answer.close))
    elif hasattr(answer, "aclose"):
        await answer.aclose()
