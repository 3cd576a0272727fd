"""`Rank`: the actor that is one rank. What it does is its program's: see `torch.program` and `tf.program`."""

from __future__ import annotations

import pkgutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import rlplat
from rlplat.data_parallel.failures import CollectiveFailed


@dataclass(frozen=True)
class RankSettings:
    """What a rank has to know of its group; the same for all."""

    rank: int
    world_size: int
    full_size: int
    """Ranks that the group was to have: with fewer of them, each takes more of a step's samples."""
    num_cpus: float
    use_gpu: bool
    seed: int
    hang_timeout_s: float
    options: dict[str, Any] = field(default_factory=dict)
    """Of the framework: precision and the like."""


@dataclass(frozen=True)
class Turn:
    """What a rank came to: its next report, or its end."""

    num_steps: int
    metrics: dict[str, Any] | None
    """None: the function returned."""
    state: dict[str, Any] | None = None
    """For a checkpoint: rank 0 has all but the random states of the other ranks, which have nothing else."""


Reporting = Callable[[dict[str, Any], dict[str, Any] | None], None]
"""f(metrics, state for a checkpoint)."""


class Rank:
    """rank = Rank.remote("rlplat.data_parallel.torch.program:TorchProgram", settings)
    get(rank.call.remote("join", host, port))
    """

    def __init__(self, program: str, settings: RankSettings) -> None:
        self._program: RankProgram = pkgutil.resolve_name(program)(settings)

    def call(self, method: str, *arguments: Any) -> Any:
        """What the method of the program returns; its error names the rank, or is `CollectiveFailed`."""
        program = self._program
        try:
            return getattr(program, method)(*arguments)
        except BaseException as error:
            reason = program.broken_exchange(error)
            if reason is None:
                rank, ranks = program.settings.rank, program.settings.world_size
                error.add_note(f"(in rank {rank} of {ranks}, step {program.num_steps + 1})")
                raise
        raise CollectiveFailed(reason, program.num_steps, program.equal_data)


class RankProgram(ABC):
    """What the driver may tell a rank, method by method; here, what the frameworks have in common."""

    _thread: LoopThread
    """Of a training function, from `begin` on."""
    equal_data: ClassVar[str]
    """What a user can do so that all ranks have as many batches: a sentence."""

    def __init__(self, settings: RankSettings) -> None:
        self.settings = settings

    def home(self) -> tuple[str, str]:
        """(node, its address for other machines)."""
        context = rlplat.get_runtime_context()
        return context.get_node_id(), context.node_address

    @abstractmethod
    def context_of(self, report: Reporting, checkpoint: dict[str, Any] | None) -> Any:
        """What a training function is given. report(metrics, state): waits for the driver."""

    def begin(self, function: Callable[..., Any], config: dict[str, Any], checkpoint: dict[str, Any] | None) -> None:
        """function(context, config) runs from one `advance` to the next."""

        def report(metrics: dict[str, Any], state: dict[str, Any] | None) -> None:
            self._thread.report(Turn(self.num_steps, metrics, state))

        context = self.context_of(report, checkpoint)
        self._thread = LoopThread(lambda: function(context, config))

    def advance(self) -> Turn:
        turn: Turn = self._thread.advance()
        return Turn(self.num_steps, None) if turn is END else turn

    def ready(self) -> bool:
        """True: asked after `set_up`, which returns nothing."""
        return True

    def apply(self, function: Callable[[], Any]) -> Any:
        return function()

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """So far, in this process."""

    @abstractmethod
    def broken_exchange(self, error: BaseException) -> str | None:
        """What `error` says, where the exchange between the ranks failed: another rank's trouble. None: it is this
        rank's own."""


class LoopThread:
    """Runs a function that reports as it goes, from one report to the next; it waits in between.

    thread = LoopThread(lambda: loop(report=thread.report))
    while (value := thread.advance()) is not END: ...           # raises what the function raised
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._go, self._there = threading.Semaphore(0), threading.Semaphore(0)
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="train_loop", daemon=True)

    def advance(self) -> Any:
        """The next report's value; `END` at the function's end."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        self._there.acquire()
        if self._error is not None:
            raise self._error
        return self._value

    def report(self, value: Any) -> None:
        self._value = value
        self._there.release()
        self._go.acquire()

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error
        self._value = END
        self._there.release()


END = object()
