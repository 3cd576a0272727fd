"""The actor of this process: its instance, and what happens in a call of it, in whatever thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from rlplat.given.say import say, write
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.link.link import Link
from rlplat.runtime.process.forked import end_if_forked
from rlplat.runtime.process.spans import Spans
from rlplat.runtime.remote import TERMINATE, ActorExit
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.values import ErrorInfo, Value
from rlplat.runtime.worker.exactly_once import ExactlyOnce, Kept
from rlplat.runtime.worker.outflow import Outflows
from rlplat.runtime.worker.queue import Key
from rlplat.runtime.worker.replies import Arguments, Replies

EXITED = "it called rlplat.exit_actor()"
EXITED_AT_ONCE = "it called rlplat.exit_actor() in its constructor"
END_GRACE_S = 2.0
"""How long an actor that ends waits for its other calls that run."""
End = str | int
"""Why an actor ends by itself; a number: its process ends with this exit code, as one that crashed."""
TERMINATED = "it was asked to end (__ray_terminate__), after the calls that were made before that"


def exit_code_of(error: SystemExit) -> int:
    """What `sys.exit` in a task means, as for Ray: the process ends with this code, and the task has crashed."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    write(f"{error.code}\n")  # as Python does
    return 1


def end_by(error: SystemExit) -> End:
    """The same in an actor: without a code, or with 0, it is the end that `exit_actor` is; with another one the actor
    crashed, and is restarted where it may be."""
    return exit_code_of(error) or "it called sys.exit()"


@dataclass(slots=True)
class Actor:
    link: Link
    objects: Objects
    arguments: Arguments
    replies: Replies
    flows: Outflows
    spans: Spans
    """Of its calls, by their names."""
    name: str
    """Of its class."""
    instance: Any
    once: ExactlyOnce | None

    def call(self, owner: str, message: messages.Run, began: float) -> End | None:
        """Run a call, and reply. Returns why the actor ends now, if it does."""
        method, more = message.method, message.more
        what, num_returns = f"{self.name}.{method}", 1
        if more is not None:
            if self.once is not None and more.seq:
                return self._call_once(self.once, owner, message, more)
            if method == TERMINATE:
                return TERMINATED
            what, num_returns = more.label or what, more.num_returns
        try:
            args, kwargs = self.arguments.open(owner, message)
            result = getattr(self.instance, method)(*args, **kwargs)
            end_if_forked()
            del args, kwargs
            if num_returns < 0:
                self.flows.stream(owner, message, what, result)
            else:
                self.replies.result(owner, message, what, result)
        except (ActorExit, SystemExit) as error:
            end_if_forked(error)
            return end_by(error) if isinstance(error, SystemExit) else EXITED
        except BaseException as error:
            end_if_forked(error)
            self.replies.error(owner, message, what, error)
        self.spans.append((what, began, self.link.clock()))
        return None

    def _call_once(self, once: ExactlyOnce, owner: str, message: messages.Run, more: messages.More) -> End | None:
        """A numbered call: it runs unless it has run, and its reply waits for the checkpoint."""
        link, what, began = self.link, more.label or f"{self.name}.{message.method}", self.link.clock()
        packed: Any = None
        values: list[Value] = []
        with link.lock:
            kept = once.window.asked(owner, more.seq, more.answered)
            if kept is not None:
                self.arguments.drop(owner, message)
        if kept is not None:
            values = self._kept_values(owner, kept, more.num_returns)
        else:
            try:
                args, kwargs = self.arguments.open(owner, message)
                result = getattr(self.instance, message.method)(*args, **kwargs)
                end_if_forked()
                del args, kwargs
                parts = codec.split_returns(result, more.num_returns, what)
                if type(parts[-1]) is codec.Raised:  # such a reply is one thing, to be repeated as it was
                    raise parts[-1].error
                packed = [codec.pack(part, f"the result of {what}") for part in parts]
                values = self.objects.make_values(packed, owner)
                if any(each.refs for each in packed):
                    text = f"{what} ran, but its result held object refs, which ended with the actor's process"
                    kept = Kept([], ErrorInfo("ObjectLost", text))
                else:
                    # In one piece: a later incarnation may have to say it again.
                    kept = Kept([codec.pack_inline(part)[0] for part in parts])
                state = once.snapshot()
            except (ActorExit, SystemExit) as error:
                end_if_forked(error)
                return end_by(error) if isinstance(error, SystemExit) else EXITED
            except BaseException as error:
                end_if_forked(error)
                self.objects.unmake(values)
                kept = Kept([], self.replies.describe(what, error))
                values = self._kept_values(owner, kept, more.num_returns)
                try:
                    state = once.snapshot()
                except BaseException as bad_state:
                    say(f"{what} changed a state that cannot be kept: {bad_state}")
                    state = None
            self.spans.append((what, began, link.clock()))
            with link.lock:
                once.finished(owner, more.seq, kept, state)
        with link.lock:
            # (`packed` holds the refs inside the values until then.)
            once.hold(
                lambda packed=packed: self.replies.values(owner, message.task, values),  # type: ignore[misc]
                link.clock(),
            )
            if once.is_due(link.clock()):
                once.commit()
                link.loop.send_now()
            else:
                link.loop.tick_soon()
        return None

    def _kept_values(self, owner: str, kept: Kept, num_returns: int) -> list[Value]:
        if kept.error is not None:
            return [Value(error=kept.error)] * num_returns
        return self.objects.make_values([codec.pack(codec.unpack(data)) for data in kept.values], owner)


class Runner:
    """Where the calls of an actor run, when not in the main thread."""

    loop_thread: threading.Thread | None = None
    """Of the event loop, if it has one."""

    def submit(self, owner: str, message: Any) -> End | None:
        """A call (main thread). Returns why the actor ends now, if it does."""
        raise NotImplementedError

    def cancel(self, task: Key, recursive: bool) -> None:
        """A call that is in this runner, or is not known (any thread, lock held)."""

    def refuse_waiting(self, reason: End) -> None:
        """The actor ends: calls that were not begun fail (in the thread of the call that ends it, or the main one)."""

    def awaits_for_cancelled(self) -> bool:
        """Whether the coroutine that runs now belongs to a call that was cancelled with all that it submitted."""
        return False

    def warn_of_blocking(self) -> None:
        """A coroutine is about to block the event loop."""

    def owners_waiting(self) -> list[str]:
        """Of each call that has not begun (any thread)."""
        return []

    def coroutines(self) -> list[Any]:
        """Of the calls that run (any thread)."""
        return []
