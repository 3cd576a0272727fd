"""A function that reports, as a Program: it runs in a thread of its own, and only while somebody waits in `step`.

    step() ──▶ the function runs ──▶ report(...) ──▶ step() returns the metrics
                 (step waits)          (the function waits until the next step, or until the trial is to end)

So exactly one of the two runs at any time, and whatever is decided on a report takes effect right there.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from rlplat.given.say import write
from rlplat.tune.trials import Metrics, StillRunning, TrialContext, plain_metrics


class TrialStopped(BaseException):
    """Raised by `report` when the trial is to end there. Let it through: `finally` and `with` do their work.

    Not an Exception, so that `except Exception` in a trial does not take it for a failure.
    """


class Report:
    """The second argument of a trial function.

    report(loss=0.5)                       the metrics by name, or
    report({"loss": 0.5})                  a dict, maybe nested; returns when the trial is to go on
    report(loss=0.5, checkpoint=state)     state: nested dicts and lists of arrays, tensors, numbers, texts; a path to a
                                           file or a directory; or a function without arguments that makes one, called
                                           only when a checkpoint is wanted (the cheap way)

    Raises TrialStopped when the trial is to end there.
    """

    def __init__(self, context: TrialContext, hand_over: Callable[[Metrics, Any], None]) -> None:
        self._hand_over = hand_over
        self._context = context
        self.step = 0
        """Reports so far; where the trial began from a checkpoint, those before it included."""
        self.checkpoint: Any = None
        """The state to go on from; None at the very beginning."""

    @property
    def number(self) -> int:
        return self._context.number

    @property
    def seed(self) -> int:
        return self._context.seed

    @property
    def directory(self) -> Path:
        """For files of the trial; it is there."""
        self._context.directory.mkdir(parents=True, exist_ok=True)
        return self._context.directory

    @property
    def attempt(self) -> int:
        """How often the trial was begun before."""
        return self._context.attempt

    def __call__(self, metrics: Any = None, /, checkpoint: Any = None, **named: Any) -> None:
        if metrics is None:
            metrics = named
        elif named:
            metrics = {
                **(metrics if isinstance(metrics, Mapping) else {self._context.metric: metrics}),
                **named,
            }
        self.value(metrics, checkpoint)

    def value(self, metrics: Any, checkpoint: Any) -> None:
        """What a generator yields."""
        self._hand_over(plain_metrics(metrics, self._context.metric), checkpoint)

    def __reduce__(self) -> NoReturn:
        raise TypeError("`report` belongs to its trial's process: report what tasks and actors return")


class TrialThread:
    """Runs `function(report)` in turns with whoever calls `next`, `save_state` and `close`."""

    def __init__(self, function: Callable[[Report], Any], context: TrialContext) -> None:
        self.report = Report(context, self._hand_over)
        self._function = function
        self._name = f"trial-{context.number}"
        self._thread: threading.Thread | None = None
        self._to_trial, self._to_host = threading.Lock(), threading.Lock()
        self._to_trial.acquire()
        self._to_host.acquire()
        self._errand: Callable[[], Any] | None = None
        """What the waiting function's thread is to do for the host."""
        self._answer: tuple[str, Any] = ("", None)
        self._offered: Any = None
        self._must_stop = self._has_ended = False

    # ---------------------------------------------------------------- the host's side

    def next(self) -> tuple[str, Any]:
        """("report", metrics), or ("return", value) once; raises what the function raised."""
        if self._thread is None:
            # With the context variables of the caller, so that the runtime's verbs know where they are.
            run = contextvars.copy_context().run
            self._thread = threading.Thread(target=run, args=(self._run,), name=self._name, daemon=True)
            self._thread.start()
        else:
            self._to_trial.release()
        self._to_host.acquire()
        kind, value = self._answer
        if kind == "raise":
            self._thread.join()
            # Without the frames of this module at the top of the trial's own.
            raise value.with_traceback(value.__traceback__.tb_next if value.__traceback__ else None)
        if kind == "return":
            self._thread.join()
        return self._answer

    @property
    def offers_checkpoint(self) -> bool:
        return self._offered is not None and not self._has_ended

    def checkpoint(self) -> Any:
        """The state that came with the last report, between two steps; made in the function's own thread."""
        if not callable(self._offered):
            return self._offered
        self._errand = self._offered
        self._to_trial.release()
        self._to_host.acquire()
        kind, value = self._answer
        if kind == "failed":
            raise value
        return value

    def close(self, grace_s: float) -> None:
        thread, self._must_stop = self._thread, True
        if thread is None or self._has_ended:
            if thread is not None:
                thread.join()
            return
        if self._to_trial.locked():  # else it was told before
            self._to_trial.release()
        thread.join(grace_s)
        if thread.is_alive():
            raise StillRunning(
                f"{self._name} was told to end and its function still runs {grace_s:g} s later; let TrialStopped "
                f"through, and keep `finally` blocks short. It is at:\n{_stack_of(thread)}"
            )

    # ---------------------------------------------------------------- the function's side

    def _run(self) -> None:
        try:
            answer = ("return", self._function(self.report))
        except TrialStopped:
            answer = ("return", None)
        except Exception as error:
            answer = ("raise", error)
        except BaseException as error:  # SystemExit and its like are about this thread's function, not the process
            answer = ("raise", wrapped(error))
        if self._must_stop and answer[0] == "raise":  # nobody waits for it any more
            write("".join(traceback.format_exception(answer[1])))
        self._has_ended = True
        self._answer = answer
        self._to_host.release()

    def _hand_over(self, metrics: Metrics, checkpoint: Any) -> None:
        if threading.current_thread() is not self._thread:
            raise RuntimeError("report() is to be called in the thread in which the trial's function runs")
        if self._must_stop:  # it was told already
            raise TrialStopped
        self.report.step += 1
        self._offered = checkpoint
        self._answer = ("report", metrics)
        self._wait()
        while (errand := self._errand) is not None:
            self._errand = None
            try:
                self._answer = ("made", errand())
            except Exception as error:
                self._answer = ("failed", error)
            except BaseException as error:
                self._answer = ("failed", wrapped(error))
            self._wait()
        self._offered = None
        if self._must_stop:
            raise TrialStopped

    def _wait(self) -> None:
        self._to_host.release()
        self._to_trial.acquire()


def wrapped(error: BaseException) -> RuntimeError:
    """SystemExit and its like, raised by a trial, are about that trial and not about the process."""
    made = RuntimeError(f"the trial raised {type(error).__name__}({error}); return to end it")
    made.__cause__, made.__traceback__ = error, error.__traceback__
    return made


def _stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)[-3:]) if frame is not None else "  (it has ended meanwhile)"
