"""What comes with a call, and what its caller is told: arguments, opened or given back; results, errors, what was not
run, the pace of tasks.

What says "lock held" is called with the lock; everything else takes it.
"""

from __future__ import annotations

from typing import Any

from rlplat.errors import RuntimeFault, SerializationError
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.client.reading import Reader
from rlplat.runtime.core.owner.lanes import MOST_CODES
from rlplat.runtime.link.link import Link
from rlplat.runtime.process.crash_points import crash_point
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.errors import describe_error
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.wire.values import ErrorInfo, Value
from rlplat.runtime.worker.interrupts import Interrupts


class Arguments:
    def __init__(self, link: Link, objects: Objects, reader: Reader) -> None:
        self._lock, self._objects, self._reader = link.lock, objects, reader

    def open(self, owner: str, message: messages.Run) -> tuple[Any, dict]:
        """The values, those of refs among them."""
        packed = message.args
        if type(packed) is bytes and (message.more is None or not message.more.deps):
            opened: tuple[tuple, dict] = ((), {}) if packed == codec.NO_ARGS else codec.unpack(packed)
            return opened
        read, num_tried = self._reader.open_argument, 0
        try:
            if isinstance(packed, Value):
                num_tried += 1
                args, kwargs = read(packed, owner)
            else:
                args, kwargs = codec.unpack(packed)
            args = list(args)
            for place, value in message.deps:
                num_tried += 1
                if isinstance(place, int):
                    args[place] = read(value, owner)
                else:
                    kwargs[place] = read(value, owner)
        except BaseException:
            with self._lock:  # one did not open: those behind it are given back all the same
                self._drop_values(owner, message.values()[num_tried:])
            raise
        return args, kwargs

    def drop(self, owner: str, message: Any) -> None:
        """A call that will not be executed: give back what came with it (lock held)."""
        self._drop_values(owner, message.values())

    def _drop_values(self, owner: str, values: list[Value]) -> None:
        if owner not in self._objects.dead:
            for value in values:
                self._objects.receive(value.keys(), owner)


class Replies:
    def __init__(self, link: Link, objects: Objects, arguments: Arguments, interrupts: Interrupts) -> None:
        """`interrupts` knows of a KeyboardInterrupt whether it was a cancel."""
        self._link, self._lock, self._transport = link, link.lock, link.transport
        self._objects, self._arguments, self._interrupts = objects, arguments, interrupts
        self._pace_owner = ""
        self._told_pace: dict[str, float] = {}

    # ---------------------------------------------------------------- calls that were run

    def result(self, owner: str, message: Any, what: str, result: Any) -> None:
        task, num_returns = message.task, 1 if message.more is None else max(1, message.more.num_returns)
        data = codec.pack_scalar(result) if num_returns == 1 else None
        if data is not None:
            self._lock.take()
            try:
                self._transport.post_result(owner, task, data)
            finally:
                self._lock.release()
            return
        parts = codec.split_returns(result, num_returns, what)
        made = [part for part in parts if type(part) is not codec.Raised]
        packed = [codec.pack(part, f"the result of {what}") for part in made]
        failed: list[Value] = []
        if len(made) < len(parts):
            failed = [Value(error=self.describe(what, parts[-1].error))] * (len(parts) - len(made))
        # Last: nothing raises between here and the reply.
        values = self._objects.make_values(packed, owner) + failed
        crash_point("after_store_before_report")
        with self._lock:
            if num_returns == 1 and values[0].segment is None and not values[0].refs:
                self._transport.post_result(owner, task, values[0].data)
            else:
                self.values(owner, task, values)

    def values(self, owner: str, task: int, values: list[Value]) -> None:
        """Values that are made already (lock held; whoever calls holds the refs inside them)."""
        for value in values:
            self._objects.hand_over(value.refs, owner)
        self._transport.post_result(owner, task, values)

    def error(self, owner: str, message: Any, what: str, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt) and self._interrupts.has_struck((owner, message.task)):
            with self._lock:
                self.cancelled(owner, message, what)
            return
        info = self.describe(what, error)
        with self._lock:
            self.failed(owner, message, info)

    def not_executed(self, owner: str, message: Any, error: BaseException) -> None:
        """A call that cannot be executed, or its end not be told: its caller must not wait for ever."""
        why = f"{type(error).__name__}: {error}"
        with self._lock:
            self._transport.dropped.add(f"{type(message).__name__} from", owner, why, error)
            text = f"worker {self._link.client_id} cannot execute this call: {why}"
            self.failed(owner, message, ErrorInfo("RuntimeFault", text))

    def describe(self, what: str, error: BaseException) -> ErrorInfo:
        """An exception that came out of the user's code."""
        node = self._transport.node
        on = f" on {node}" if node not in ("", NODE) else ""
        where = f"{what} (worker {self._link.client_id}{on}, pid {self._link.system.pid()})"
        if isinstance(error, ModuleNotFoundError):
            what_to_do = (
                f"{node} is another machine than the program's, and has no such module: "
                "rlplat.init(runtime_env={'working_dir': FOLDER}) sends a folder to every machine"
                if on
                else "workers look where the program did when it called rlplat.init(): what comes to sys.path later, "
                "they get by runtime_env={'env_vars': {'PYTHONPATH': FOLDER}}"
            )
            error.add_note(f"({what_to_do})")
        if isinstance(error, SerializationError):
            return ErrorInfo("SerializationError", str(error))
        if isinstance(error, (SystemExit, KeyboardInterrupt)):  # (a constructor's exit; Ctrl-C)
            error = RuntimeFault(f"{where} raised {type(error).__name__}({error})").with_traceback(error.__traceback__)
        return describe_error(error, where)

    def pace(self, owner: str, code: str, seconds: float) -> None:
        """Tell an owner how long its tasks take, when that is news."""
        if owner != self._pace_owner:
            self._pace_owner = owner
            self._told_pace.clear()
        told = self._told_pace.get(code)
        if told is None or seconds > 4 * told:
            told = seconds
        elif seconds < told / 4:
            told /= 2  # come down in steps: one lucky task is not a pace
        else:
            return
        if len(self._told_pace) > MOST_CODES:
            self._told_pace.clear()
        self._told_pace[code] = told
        with self._lock:
            self._transport.post(owner, messages.Pace(code, told))

    def forgotten(self, owner: str, message: Any) -> None:
        """A task whose code is not here any more: its owner sends both again."""
        with self._lock:
            self._transport.post(owner, messages.GaveBack([message.task], forgotten=message.code))

    # ---------------------------------------------------------------- calls that were not (lock held)

    def failed(self, owner: str, message: Any, info: ErrorInfo) -> None:
        self._transport.post_result(owner, message.task, [Value(error=info)] * max(1, message.num_returns))

    def cancelled(self, owner: str, message: Any, what: str = "the call") -> None:
        info = ErrorInfo("TaskCancelled", f"{what} was cancelled (worker {self._link.client_id})")
        self.failed(owner, message, info)

    def withdrawn(self, owner: str, message: Any) -> None:
        """A call that was cancelled before it began."""
        self._arguments.drop(owner, message)
        self.cancelled(owner, message)

    def refuse(self, owner: str, message: Any, actor: str, reason: str | int, *, has_begun: bool = False) -> None:
        """A call that the end of the actor overtakes: it did not run, or not to its end, and its caller is told so."""
        if not has_begun:
            self._arguments.drop(owner, message)
        what = "did not come to its end" if has_begun else "did not run"
        why = reason if isinstance(reason, str) else f"its process ended with exit code {reason}"
        text = f"{actor}.{message.method} {what}: actor {actor} is gone: {why}"
        self.failed(owner, message, ErrorInfo("ActorDied", text))
