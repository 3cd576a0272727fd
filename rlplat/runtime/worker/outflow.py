"""What generators send: each value leaves when it is yielded, and none too far ahead of its consumer (`streams`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlplat.given.say import say_traceback
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.link.link import Link
from rlplat.runtime.process.crash_points import crash_point
from rlplat.runtime.process.forked import end_if_forked
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.values import Value
from rlplat.runtime.worker.queue import Key
from rlplat.runtime.worker.replies import Replies

_FLUSH_S = 0.001
_UNDER_WAY = 3
"""For `IoLoop.send_soon`: let values gather, more are coming."""
_KEPT_STOPS = 10_000


class Outflow:
    """The values of one generator on their way to its owner."""

    def __init__(
        self, link: Link, objects: Objects, replies: Replies, owner: str, message: messages.Run, what: str
    ) -> None:
        self._link, self._objects, self._replies = link, objects, replies
        self._owner, self._task, self._what = owner, message.task, what
        more = message.more or messages.More()
        self._window, self._have = more.window, more.have
        self._num_made = 0
        self._sent_at = 0.0
        self.num_taken = more.have
        self.is_closed = self.is_cancelled = False
        """Nobody reads it any more; it was cancelled."""
        self.wake: Callable[[Any], None] = lambda _: None

    def may_go_on(self) -> bool:
        return not self._window or self._num_made - self.num_taken < self._window or self.is_closed

    def send(self, value: Any) -> None:
        """The generator yielded this; what the owner has from an earlier attempt is not sent again."""
        index = self._num_made
        if index >= self._have:
            packed = codec.pack(value, f"value {index} of {self._what}")
            made = self._objects.make_value(packed, self._owner)
            crash_point("after_value_is_stored_before_it_leaves")
            self._post(made)
        self._num_made += 1

    def fail(self, error: BaseException) -> None:
        """The generator raised: its last value."""
        self._num_made = max(self._num_made, self._have)
        self._post(Value(error=self._replies.describe(self._what, error)))

    def _post(self, value: Value) -> None:
        link = self._link
        with link.lock:
            self._objects.hand_over(value.refs, self._owner)
            link.transport.post(self._owner, messages.Item(self._task, self._num_made, value))
            now = link.clock()
            if now - self._sent_at > _FLUSH_S:
                self._sent_at = now
                link.loop.send_now()
            else:
                link.loop.send_soon(_UNDER_WAY)


class Outflows:
    """Those of this process."""

    def __init__(self, link: Link, objects: Objects, replies: Replies) -> None:
        self._link, self._objects, self._replies = link, objects, replies
        self._flows: dict[Key, Outflow] = {}
        self._stopped_early: dict[Key, bool] = {}
        """Calls whose generator nobody reads (or, True, was cancelled), and which have not come to it."""
        link.on(messages.ItemsTaken, self._on_items_taken)

    def open(self, owner: str, message: messages.Run, what: str) -> Outflow:
        key = (owner, message.task)
        flow = Outflow(self._link, self._objects, self._replies, owner, message, what)
        with self._link.lock:
            # Nobody reads it: its owner said so, or died, while the call waited here.
            flow.is_closed = key in self._stopped_early or owner in self._objects.dead
            flow.is_cancelled = self._stopped_early.pop(key, False)
            self._flows[key] = flow
        return flow

    def close(self, owner: str, task: int) -> None:
        with self._link.lock:
            del self._flows[(owner, task)]

    def stop(self, key: Key, is_cancelled: bool = False) -> bool:
        """Nobody reads it any more, or it is cancelled: it ends at its next value (lock held). False: there is none."""
        flow = self._flows.get(key)
        if flow is None:
            return False
        flow.is_closed, flow.is_cancelled = True, is_cancelled
        flow.wake(None)
        return True

    def stop_early(self, key: Key, is_cancelled: bool = False) -> None:
        """The same for a call that waits for its thread, opens its arguments or makes its generator (lock held). It
        may have ended just now as well: then it stays here until there are too many."""
        self._stopped_early[key] = is_cancelled
        if len(self._stopped_early) > _KEPT_STOPS:
            del self._stopped_early[next(iter(self._stopped_early))]

    def owner_died(self, owner: str) -> None:
        """It says nothing any more: neither what it takes nor that it has enough (lock held)."""
        for key in [key for key in self._flows if key[0] == owner]:
            self.stop(key)

    def _on_items_taken(self, sender: str, message: messages.ItemsTaken) -> None:
        flow = self._flows.get((sender, message.task))
        if flow is not None:
            flow.num_taken = max(flow.num_taken, message.count)
            flow.wake(None)

    def stream(self, owner: str, message: messages.Run, what: str, values: Any) -> None:
        """Send what a generator yields, then that it has ended."""
        iterator, flow = iterator_of(values, what), self.open(owner, message, what)
        try:
            while not flow.is_closed:
                try:
                    value = next(iterator)
                    end_if_forked()
                    flow.send(value)
                except StopIteration:
                    end_if_forked()
                    break
                except Exception as error:
                    end_if_forked(error)
                    flow.fail(error)
                    break
                if not flow.may_go_on():
                    with self._link.lock:
                        self._link.wait_until(flow.may_go_on, None, "")
        finally:
            self.close(owner, message.task)
            close_quietly(iterator)
        crash_point("after_last_value_before_end_of_stream")
        if flow.is_cancelled:
            with self._link.lock:
                self._replies.cancelled(owner, message, what)
        else:
            self._replies.result(owner, message, what, None)


def iterator_of(values: Any, what: str) -> Any:
    if not hasattr(values, "__next__"):
        raise ValueError(
            f"{what} was called with num_returns='streaming' or 'dynamic' and must return a generator, not "
            f"{type(values).__name__}"
        )
    return values


def close_quietly(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        try:
            close()
        except BaseException:  # its `finally` failed, and nobody waits for it any more
            say_traceback()
