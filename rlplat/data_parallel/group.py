"""`RankGroup`: actors that are the ranks of one group, placed together, and told to do the same thing at once.

    with RankGroup(program, settings, options) as group:
        group.call("begin", train_loop, config)
        turns = group.call("advance")                # of all ranks; raises what `failures.verdict` says

The group ends with the first failure: a collective call that waits for a dead rank cannot be interrupted, so that the
processes of all ranks are replaced, by another group.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import rlplat
from rlplat.data_parallel.failures import (
    Answered,
    CollectiveFailed,
    Cut,
    Died,
    Outcome,
    Raised,
    RanksLost,
    Silent,
    verdict,
)
from rlplat.data_parallel.rank import Rank, RankSettings, Turn
from rlplat.data_parallel.settings import TrainerSettings
from rlplat.errors import ConfigError, InfeasibleResources, RlplatError, RuntimeFault, TaskError, UsageError

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef, PlacementGroup

SETTLE_S = 2.0
"""After a broken connection: how long the rank that broke it may take to be known as dead."""
END_S = 5.0
"""How long ranks that are idle may take to end in order, before they are killed."""
PROBE_S = 1.0
"""How long the room that seems to be free for more ranks may take to be reserved."""


class RankGroup:
    def __init__(
        self,
        program: str,
        settings: TrainerSettings,
        options: dict[str, Any],
        num_now: int | None = None,
    ) -> None:
        """program: what each rank runs, "module:class"; options: of its framework; num_now: ranks to wait for, None:
        the most."""
        self._least, self._most = settings.num_ranks
        self._demand = demand = settings.demand
        self._hang_timeout_s = settings.hang_timeout_s
        self._own_group: PlacementGroup | None = None
        self._ranks: list[ActorHandle] = []
        self._is_idle = False
        """All that was asked of the ranks is answered, and none has failed."""
        if rlplat.get_runtime_context().is_one_process and self._most > 1:
            raise ConfigError(
                f"num_workers={self._most} needs a process for each rank, but with backend='inproc' everything is in "
                "one: num_workers=1, or another backend"
            )
        try:
            places = self._reserve(demand, num_now or self._most, settings.place_timeout_s)
            of_all = RankSettings(
                rank=0,
                world_size=len(places),
                full_size=self._most,
                num_cpus=demand.get("CPU", 0.0),
                use_gpu=bool(demand.get("GPU")),
                seed=settings.seed,
                hang_timeout_s=settings.hang_timeout_s,
                options=options,
            )
            remote = rlplat.remote(Rank).options(
                num_cpus=demand.get("CPU", 0.0),
                num_gpus=demand.get("GPU", 0),
                resources={name: amount for name, amount in demand.items() if name not in ("CPU", "GPU")},
            )
            for rank, place in enumerate(places):
                self._ranks.append(remote.options(**place).remote(program, replace(of_all, rank=rank)))
            if len(places) > 1:
                self._meet()
        except BaseException:
            self.close()
            raise

    @property
    def world_size(self) -> int:
        return len(self._ranks)

    def num_growing(self) -> int | None:
        """How many ranks another group could have now, where those are more; None: no more than this one."""
        missing = self._most - self.world_size
        if missing == 0 or self._own_group is None:  # the room of a trial of tune is fixed
            return None
        more = min(missing, fitting_ranks(rlplat.available_resources(), self._demand))
        if more < 1:
            return None
        probe = rlplat.placement_group([self._demand] * more, strategy="PACK")
        is_room = probe.wait(PROBE_S)  # what is free in sum may lie in pieces on several nodes
        rlplat.remove_placement_group(probe)
        return self.world_size + more if is_room else None

    def _reserve(self, demand: dict[str, float], most: int, patience_s: float) -> list[dict[str, Any]]:
        """Options of each rank that place it: in a group of its own, or in that of the trial in which this runs."""
        outer = rlplat.get_current_placement_group()
        if outer is not None:
            return [{"placement_group": outer} for _ in range(self._fitting(demand, outer.bundle_specs))]
        total = rlplat.cluster_resources()
        for name, amount in demand.items():
            if amount * self._least > total.get(name, 0.0):
                less = "use_gpu=False" if name == "GPU" else "resources={...} with less of it"
                raise InfeasibleResources(
                    f"num_workers={self._least} ranks take {amount * self._least:g} {name}, and the cluster has "
                    f"{total.get(name, 0.0):g}: fewer num_workers, or {less}"
                )
        most = min(most, fitting_ranks(total, demand))
        deadline = time.monotonic() + patience_s
        while True:
            group = rlplat.placement_group([demand] * most, strategy="PACK")
            if group.wait(max(0.0, deadline - time.monotonic())):
                self._own_group = group
                return [{"placement_group": group, "placement_group_bundle_index": index} for index in range(most)]
            rlplat.remove_placement_group(group)
            if most == self._least:
                raise InfeasibleResources(
                    f"no room for {most} ranks with {demand} each within {patience_s:g} s: free now: "
                    f"{rlplat.available_resources()}"
                )
            fitting = fitting_ranks(rlplat.available_resources(), demand)
            most = max(self._least, min(most - 1, fitting))
            deadline = time.monotonic() + patience_s

    def _fitting(self, demand: dict[str, float], bundles: list[dict[str, float]]) -> int:
        """How many ranks find room in what the trial of an experiment holds."""
        if "GPU" in demand and rlplat.get_runtime_context().gpu_ids:
            raise ConfigError(
                "ranks in this trial of tune cannot have GPUs, because its own process holds those of its resources: "
                "give tune.run what as_trainable returns, whose trials leave them to their ranks"
            )
        fitting = min(
            sum(int(bundle.get(name, 0.0) / amount + 1e-9) for bundle in bundles) for name, amount in demand.items()
        )
        if fitting < self._least:
            needed = ", ".join(f"{amount * self._least:g} {name}" for name, amount in demand.items())
            own = {"CPU": "cpu", "GPU": "gpu"}
            wanted = ", ".join(f"'{own.get(name, name)}': {amount * self._least:g}" for name, amount in demand.items())
            raise InfeasibleResources(
                f"{self._least} ranks take {needed}, and the trial holds {bundles[0]}: "
                f"tune.run(..., resources={{{wanted}}})"
            )
        return min(fitting, self._most)

    def _meet(self) -> None:
        doors = self.call("open_door", meeting_hosts(self.call("home")))
        self.call("join", doors)

    def call_first(self, method: str, *arguments: Any) -> Any:
        """What rank 0 alone returned."""
        self._is_idle = False
        return self.finish([self._ranks[0].call.remote(method, *arguments)])[0]

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """What the method of every rank's program returned, in their order."""
        return self.finish(self.start(method, *arguments))

    def start(self, method: str, *arguments: Any) -> list[ObjectRef]:
        """The same without waiting: what `finish` takes."""
        self._is_idle = False
        shared = [rlplat.put(argument) if _is_large(argument) else argument for argument in arguments]
        return [rank.call.remote(method, *shared) for rank in self._ranks]

    def finish(self, refs: Sequence[ObjectRef]) -> list[Any]:
        outcomes: dict[ObjectRef, Outcome] = {}
        values: dict[ObjectRef, Any] = {}
        waiting, deadline = list(refs), None
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            done, waiting = rlplat.wait(waiting, timeout=left)
            if not done:
                break
            for ref in done:
                outcomes[ref] = outcome = _outcome(ref, values)
                if isinstance(outcome, (Raised, Died)):
                    waiting = []  # the cause is known
                elif isinstance(outcome, Cut) and deadline is None:
                    deadline = time.monotonic() + SETTLE_S
        in_order = [outcomes.get(ref, Silent()) for ref in refs]
        failure = verdict(in_order, self._hang_timeout_s) if len(values) < len(refs) else None
        if failure is not None:
            raise failure
        self._is_idle = True
        return [values[ref] for ref in refs]

    def close(self) -> None:
        """Idle ranks end in order, so that `atexit` handlers run (TensorFlow's remove files); others are killed."""
        if self._is_idle:
            with contextlib.suppress(RlplatError):
                ends = [rank.__ray_terminate__.remote() for rank in self._ranks]
                rlplat.wait(ends, num_returns=len(ends), timeout=END_S)
        for rank in self._ranks:
            with contextlib.suppress(RlplatError):
                rlplat.kill(rank)
        self._ranks = []
        if self._own_group is not None:
            with contextlib.suppress(RlplatError):
                rlplat.remove_placement_group(self._own_group)
            self._own_group = None

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def fitting_ranks(resources: dict[str, float], demand: dict[str, float]) -> int:
    """How many ranks with `demand` each the resources are enough for."""
    return min(int(resources.get(name, 0.0) / amount + 1e-9) for name, amount in demand.items())


def meeting_hosts(homes: Sequence[tuple[str, str]]) -> list[str]:
    """The address at which each rank opens its port; homes: (node, its address for other machines) of each.

    Where all are on one node it is that of this machine alone, so that nothing is opened to the network.
    """
    if len({node for node, _ in homes}) == 1:
        return ["127.0.0.1"] * len(homes)
    return [address for _, address in homes]


def _outcome(ref: ObjectRef, values: dict[ObjectRef, Any]) -> Outcome:
    try:
        value = values[ref] = rlplat.get(ref)
    except RlplatError as error:
        cause = error.cause if isinstance(error, TaskError) else error
        if isinstance(cause, CollectiveFailed):
            return Cut(*cause.args)
        if isinstance(cause, RanksLost):  # by a rank that cannot go on where another process could
            return Died(str(cause))
        if isinstance(cause, RuntimeFault) and not isinstance(error, TaskError):
            return Died(str(error))
        return Raised(cause if isinstance(cause, UsageError) else error)
    if not isinstance(value, Turn):
        return Answered()
    what = "returned from its function" if value.metrics is None else "reported"
    return Answered(value.num_steps, what)


def _is_large(argument: Any) -> bool:
    """Whether it is worth one copy in the store for all ranks."""
    return isinstance(argument, dict) and bool(argument)
