"""`RolloutWorkers`: the rollout workers of one run as a group; one that dies is replaced, its fragment sampled anew."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

import rlplat
from rlplat.errors import ActorDied, EnvError, InfeasibleResources, RlplatError, UsageError, WorkerCrashed
from rlplat.rl.envs.guard import Ask
from rlplat.rl.envs.statistics import Statistics, merged
from rlplat.rl.spread import is_one_machine

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef


Used = TypeVar("Used")

RESTART_WINDOW_S = 60.0
CLOSE_S = 1.0
"""How long the workers of a run that ends may take to close their environments."""


class RestartLimit:
    """At most `max_restarts` within `window_s`: what dies that often dies for a reason that a restart does not cure.

    The time of what was lost does not count: an environment that hangs in every episode takes a minute each time, and
    would never be caught."""

    def __init__(self, max_restarts: int, window_s: float = RESTART_WINDOW_S) -> None:
        self.max_restarts, self.window_s = max_restarts, window_s
        self._times: deque[float] = deque()

    def allows(self, now: float, lost_s: float = 0.0) -> bool:
        """Whether one more restart is within the limit at time `now` (seconds); counts it if so.

        lost_s: the time before now in which the worker brought nothing."""
        self._times = deque(time + lost_s for time in self._times)
        while self._times and now - self._times[0] >= self.window_s:
            self._times.popleft()
        if len(self._times) >= self.max_restarts:
            return False
        self._times.append(now)
        return True


class RolloutWorkers:
    """Slots 0..n-1, each with a rollout worker in some incarnation.

    workers = RolloutWorkers(make_worker, num_workers=2)
    batches = workers.sample(parameter_server.latest.remote())  # refs, one per slot
    report = workers.deliver(batches, lambda batches: get(learner.update.remote(*batches)))
    """

    def __init__(
        self,
        make_worker: Callable[[int, int], ActorHandle],
        num_workers: int,
        *,
        max_restarts: int = 3,
        restart_on_env_error: bool = False,
        num_batches: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """make_worker(worker_index, incarnation) starts an actor with `sample()`; num_batches: how many that returns
        (one per trained policy). Where there are several, a fragment is a list of their refs."""
        self._make_worker = make_worker
        self._incarnations = [0] * num_workers
        self._limits = [RestartLimit(max_restarts) for _ in range(num_workers)]
        self._restart_on_env_error = restart_on_env_error
        self._num_batches = num_batches
        self._clock = clock
        self._asked_s: list[float | None] = [None] * num_workers
        self._arguments: list[tuple[Any, ...]] = [()] * num_workers  # of the newest `sample` of each
        self._ahead: list[Any] = []
        self._is_starting = True
        self._told: dict[tuple[Ask, str], tuple[tuple[Any, ...], dict[str, Any]]] = {}
        """What the environments were told last, which those of a new worker are told as well."""
        self._statistics: Statistics | None = None
        """Of the environments, as they were last; None: not asked for yet, empty: they keep none."""
        self.restarts = 0
        self._sample_s = self._deliver_s = 0.0
        check_num_workers(num_workers)
        self.handles = [make_worker(index, 0) for index in range(num_workers)]

    def sample(self, *arguments: Any, ahead: bool = False) -> list[Any]:
        """One fragment from every worker; returns when all are there (or lost).

        arguments: of the workers' `sample`; ahead: they begin the next fragments as well, which the next call returns.
        """
        started = time.perf_counter()
        fragments = self._ahead or self._start_all(arguments)
        self._ahead = self._start_all(arguments) if ahead else []
        self.wait_for(fragments)
        self._sample_s = time.perf_counter() - started
        return fragments

    def deliver(self, fragments: Sequence[Any], use: Callable[[Sequence[Any]], Used]) -> Used:
        """use(fragments); where it raises because some of them were lost, again, with what the next incarnations of
        their workers sample in their place."""
        started = time.perf_counter()
        while True:
            try:
                used = use(fragments)
            except RlplatError as error:
                fragments = self.replace_lost(fragments, error)
            else:
                self._deliver_s = time.perf_counter() - started
                return used

    def metrics(self) -> dict[str, float]:
        """Of the round that was sampled and delivered last."""
        return {
            "rollout/worker_restarts": self.restarts,
            "time/sample_s": self._sample_s,
            "time/update_s": self._deliver_s,
        }

    def _start_all(self, arguments: tuple[Any, ...]) -> list[Any]:
        return [self.start_fragment(slot, *arguments) for slot in range(len(self.handles))]

    def start_fragment(self, slot: int, *arguments: Any) -> Any:
        """One fragment from one worker: a ref, or a list of them; returns at once."""
        self.asked(slot)
        self._arguments[slot] = arguments
        return self.handles[slot].sample.options(num_returns=self._num_batches).remote(*arguments)

    def replace_lost(self, refs: Sequence[Any], error: RlplatError) -> list[Any]:
        """Called when the use of `refs` raised: replace the workers whose fragments were lost, and sample these again,
        with the same arguments.

        Nothing of a lost fragment is used. Raises `error` when none was lost, and when a worker dies too often.
        """
        completed = list(refs)
        arrived = rlplat.remote(_nothing).options(num_cpus=0).remote  # looks where they are: only errors come home
        lost = []
        for slot, ref in enumerate(refs):
            try:
                rlplat.get(arrived(*(ref if isinstance(ref, list) else [ref])))
            except (ActorDied, WorkerCrashed, EnvError) as loss:
                lost.append(slot)
                self.replace(slot, loss)
        if not lost:
            raise error
        for slot in lost:
            completed[slot] = self.start_fragment(slot, *self._arguments[slot])
            if self._ahead:
                self._ahead[slot] = self.start_fragment(slot, *self._arguments[slot])
        self.wait_for(completed)
        return completed

    def asked(self, slot: int) -> None:
        """Told before every call that samples: should it be lost, its time does not count for the limit of restarts."""
        self._asked_s[slot] = self._clock()

    def wait_for(self, fragments: Sequence[Any]) -> None:
        """Returns when all are there (or lost); the first time, says how many workers have started so far."""
        lists: list[list[ObjectRef]] = [
            fragment if isinstance(fragment, list) else [fragment] for fragment in fragments
        ]
        if self._is_starting:
            self._is_starting = False
            wait_for_first(lists)
        refs = [ref for fragment in lists for ref in fragment]
        rlplat.wait(refs, num_returns=len(refs))

    def ask_envs(self, what: Ask, name: str, *arguments: Any, **keywords: Any) -> list[Any]:
        """`VectorEnv.ask` of every worker, one answer for each environment, in order; a worker that is lost is left
        out, and the next one is told what is to be set or called: the last of each name."""
        if any(getattr(handle, "ask_envs", None) is None for handle in self.handles):
            raise UsageError("the workers of this algorithm have no ask_envs(what, name, *arguments)")
        if what != "get":
            self._told[what, name] = arguments, keywords
        asked = [handle.ask_envs.remote(what, name, *arguments, **keywords) for handle in self.handles]
        return [answer for ref in asked for answer in _unless_dead(ref) or ()]

    def env_statistics(self) -> Statistics:
        """Those that the environments keep between episodes, merged over all copies; empty where they keep none."""
        if self._statistics == {} or any(getattr(h, "env_statistics", None) is None for h in self.handles):
            return {}
        asked = [handle.env_statistics.remote() for handle in self.handles]
        self._statistics = merged([each for ref in asked if (each := _unless_dead(ref)) is not None])
        return self._statistics

    def _catch_up(self, slot: int) -> None:
        """What the other workers' environments have been told, for a new worker's."""
        for (what, name), (arguments, keywords) in self._told.items():
            self.handles[slot].ask_envs.remote(what, name, *arguments, **keywords)
        if self._statistics:
            self.handles[slot].take_env_statistics.remote(self._statistics, len(self.handles))

    def get_state(self) -> dict[str, Any]:
        """The state of a worker that has died is None: a new one begins in its place."""
        asked = [handle.get_state.remote() for handle in self.handles]
        state = {"incarnations": list(self._incarnations), "workers": [_unless_dead(ref) for ref in asked]}
        statistics = self.env_statistics()
        return state | {"env_statistics": statistics} if statistics else state

    def set_state(self, state: dict[str, Any]) -> None:
        """Into a new group: a worker goes on as the saved one where its environments' states were saved, and starts as
        the next incarnation, with random numbers of its own, where they were not.

        Of another number of workers nothing is carried over: all of them start as an incarnation that never was."""
        self._ahead = []
        incarnations, workers = state["incarnations"], state["workers"]
        if len(incarnations) != len(self.handles):
            incarnations = [max(incarnations)] * len(self.handles)
            workers = [None] * len(self.handles)
        self.close()
        for slot, (incarnation, worker) in enumerate(zip(incarnations, workers, strict=True)):
            self._incarnations[slot] = int(incarnation) + (worker is None or worker["env"] is None)
            self.handles[slot] = self._make_worker(slot, self._incarnations[slot])
        states = zip(self.handles, workers, strict=True)
        rlplat.get([handle.set_state.remote(own) for handle, own in states if own is not None])
        self._statistics = state.get("env_statistics")
        for slot in range(len(self.handles)):
            self._catch_up(slot)

    def not_saved(self) -> tuple[str, ...]:
        """What the workers' states leave out."""
        said = [_unless_dead(ref) for ref in [handle.not_saved.remote() for handle in self.handles]]
        lost = "the state of a rollout worker that was lost"
        return tuple(sorted({lost if text is None else text for text in said} - {""}))

    def close_worker(self, slot: int) -> None:
        """At once; one that lives in this process closes its environments before."""
        self._ask_to_close(slot)
        rlplat.kill(self.handles[slot])

    def close(self) -> None:
        asked = [ref for slot in range(len(self.handles)) for ref in self._ask_to_close(slot)]
        rlplat.wait(asked, num_returns=len(asked), timeout=CLOSE_S)
        for handle in self.handles:
            rlplat.kill(handle)

    def _ask_to_close(self, slot: int) -> list[ObjectRef]:
        """A worker of a user's own algorithm need not have a close()."""
        close = getattr(self.handles[slot], "close", None)
        return [] if close is None else [close.remote()]

    def replace(self, slot: int, loss: RlplatError) -> None:
        """The next incarnation takes the slot; raises `loss` where an environment's error ends the run, and when that
        happened too often, or would again."""
        if isinstance(loss, EnvError) and not self._restart_on_env_error:
            raise loss
        cause = loss.__cause__
        if isinstance(cause, UsageError):
            raise cause
        if isinstance(loss, ActorDied) and isinstance(cause, Exception) and not isinstance(cause, RlplatError):
            # No process died: the constructor raised, and a new worker's would raise alike.
            raise ActorDied(
                f"rollout worker {slot} could not be made: {type(cause).__name__}: {cause} (--debug shows where)"
            ) from loss
        now, asked_s = self._clock(), self._asked_s[slot]
        self._asked_s[slot] = None
        if not self._limits[slot].allows(now, 0.0 if asked_s is None else now - asked_s):
            limit = self._limits[slot]
            kind = EnvError if isinstance(loss, EnvError) else ActorDied
            raise kind(
                f"rollout worker {slot} was lost more than {limit.max_restarts} times within {limit.window_s:.0f} s "
                f"(the time of lost rollouts not counted); the last time: {loss} (a limit of its own: "
                "--set max_worker_restarts=N)"
            ) from loss
        if isinstance(loss, EnvError):
            self.close_worker(slot)
        self.restarts += 1
        self._incarnations[slot] += 1
        self.handles[slot] = self._make_worker(slot, self._incarnations[slot])
        self._catch_up(slot)


def _nothing(*batches: Any) -> None:
    pass


def _unless_dead(answer: ObjectRef) -> Any:
    """The answer of an actor; None where it is dead."""
    try:
        return rlplat.get(answer)
    except (ActorDied, WorkerCrashed):
        return None


WORKER_BYTES = 16 * 2**20
"""What a rollout worker has for itself at the least (CartPole, an MLP in numpy: 17.6 MiB measured)."""
WORKERS_PER_CPU = 4
TELL_PERIOD_S = 5.0

log = logging.getLogger("rlplat.start")


def check_num_workers(num_workers: int) -> None:
    """A warning for many more rollout workers than CPU cores; InfeasibleResources where memory cannot hold them."""
    if num_workers <= WORKERS_PER_CPU:
        return
    if is_one_machine():
        refuse_beyond(num_workers, psutil.virtual_memory().available)
    num_cpus = rlplat.cluster_resources()["CPU"]
    if num_workers > WORKERS_PER_CPU * num_cpus:
        log.warning(
            "warning: %s rollout workers share %g CPU cores: more than about %d a core slow each other down, and each "
            "is a process to start; --num-envs-per-worker adds environments without processes",
            f"{num_workers:,}",
            num_cpus,
            WORKERS_PER_CPU,
        )


def refuse_beyond(num_workers: int, free_bytes: int) -> None:
    if num_workers * WORKER_BYTES > free_bytes:
        raise InfeasibleResources(
            f"{num_workers:,} rollout workers need {num_workers * WORKER_BYTES / 2**30:.1f} GiB at the least "
            f"({WORKER_BYTES >> 20} MiB each, before environments and networks), and {free_bytes / 2**30:.1f} GiB are "
            f"free: set --num-rollout-workers to less than {max(1, free_bytes // WORKER_BYTES):,}"
        )


def wait_for_first(fragments: Sequence[list[ObjectRef]]) -> None:
    """Returns when all are there (or lost), and says every few seconds how many of the workers have got so far."""
    num_started = 0
    while num_started < len(fragments):
        refs = [ref for fragment in fragments for ref in fragment]
        rlplat.wait(refs, num_returns=len(refs), timeout=TELL_PERIOD_S)
        ready = set(rlplat.wait(refs, num_returns=len(refs), timeout=0)[0])
        num_started = sum(ready.issuperset(fragment) for fragment in fragments)
        if num_started < len(fragments):
            log.info("started %d of %d rollout workers", num_started, len(fragments))
