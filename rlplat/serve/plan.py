"""What the controller decides, pure: events in, actions out. No clock, sockets, actors or threads.

    plan = Plan()
    for action in plan.handle(Deployed("model", version=1, num_replicas=2), now=0.0):
        perform(action)                                    # StartReplica("model", 1, "model-0"), ...
    plan.handle(ReplicaReady("model-0"), now=0.4)          # [RoutesChanged("model")]

Rules:
1. A replica takes requests from ReplicaReady until it is drained or dies.
2. By its own decision the plan drains a ready replica only while more than `num_replicas` are ready: an update starts
   one new replica at a time beside the old ones.
3. A replica that dies is replaced at once; the next one of a row of failures after a pause that doubles, to
   MAX_PAUSE_S.
4. An update none of whose replicas got ready in MAX_START_FAILURES starts is given up: the version before it stays,
   with the number of replicas that it had.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

MAX_START_FAILURES = 3
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0
STABLE_S = 30.0
"""A replica that was ready for so long ends a row of failures."""


@dataclass(frozen=True)
class Deployed:
    """A deployment is new, or has another version (code, arguments), or another size."""

    deployment: str
    version: int
    num_replicas: int


@dataclass(frozen=True)
class Scaled:
    deployment: str
    num_replicas: int


@dataclass(frozen=True)
class ReplicaReady:
    replica: str


@dataclass(frozen=True)
class ReplicaDied:
    """Its process ended, or it could not start."""

    replica: str
    reason: str = ""


@dataclass(frozen=True)
class ReplicaDrained:
    """It has finished what it was told to finish."""

    replica: str


@dataclass(frozen=True)
class Removed:
    deployment: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Deployed | Scaled | ReplicaReady | ReplicaDied | ReplicaDrained | Removed | Tick


@dataclass(frozen=True)
class StartReplica:
    deployment: str
    version: int
    replica: str


@dataclass(frozen=True)
class DrainReplica:
    replica: str


@dataclass(frozen=True)
class StopReplica:
    """It takes no requests: end its process."""

    replica: str


@dataclass(frozen=True)
class RoutesChanged:
    """Other replicas than before take the deployment's requests: `Plan.ready`."""

    deployment: str


@dataclass(frozen=True)
class UpdateFailed:
    deployment: str
    version: int
    reason: str
    kept: int
    """The version that stays; 0: there was none."""


Action = StartReplica | DrainReplica | StopReplica | RoutesChanged | UpdateFailed


@dataclass
class _Replica:
    name: str
    version: int
    state: Literal["starting", "ready", "draining"] = "starting"
    ready_at: float = 0.0


@dataclass
class _Deployment:
    version: int
    num_replicas: int
    proven: int = 0
    """The newest version of which a replica got ready."""
    proven_replicas: int = 0
    """How many of that were wanted before the update that runs."""
    failures: int = 0
    """Deaths in a row."""
    start_after: float = 0.0
    reason: str = ""
    """Of the last death."""
    started: int = 0
    replicas: dict[str, _Replica] = field(default_factory=dict)

    def of(self, state: str, version: int | None = None) -> list[_Replica]:
        return [r for r in self.replicas.values() if r.state == state and version in (None, r.version)]


class Plan:
    def __init__(self) -> None:
        self._deployments: dict[str, _Deployment] = {}
        self._home: dict[str, str] = {}
        """The deployment of each replica."""

    def ready(self, deployment: str) -> list[str]:
        """The replicas that take its requests."""
        there = self._deployments.get(deployment)
        return [replica.name for replica in there.of("ready")] if there else []

    def draining(self, deployment: str) -> list[str]:
        there = self._deployments.get(deployment)
        return [replica.name for replica in there.of("draining")] if there else []

    def unused(self, deployment: str, versions: Iterable[int]) -> list[int]:
        """Those of the versions that no replica has or may get again."""
        there = self._deployments.get(deployment)
        used = (
            {there.proven, there.version, *(r.version for r in there.replicas.values())} if there else set()
        )
        return [version for version in versions if version not in used]

    def is_settled(self, deployment: str) -> bool:
        """Whether all is as it was asked for."""
        there = self._deployments.get(deployment)
        if there is None:
            return True
        return len(there.of("ready", there.version)) == there.num_replicas == len(there.replicas)

    def describe(self) -> dict[str, dict[str, object]]:
        """JSON values: what is there, for status."""
        return {
            name: {
                "version": each.version,
                "num_replicas": each.num_replicas,
                "replicas": {r.name: r.state for r in each.replicas.values()},
                "deaths_in_a_row": each.failures,
                "last_death": each.reason,
            }
            for name, each in self._deployments.items()
        }

    def next_tick(self) -> float | None:
        """When a `Tick` is of use, if nothing else happens before."""
        waits = [
            each.start_after
            for each in self._deployments.values()
            if self._missing(each) > 0 and each.failures
        ]
        return min(waits, default=None)

    def handle(self, event: Event, now: float) -> list[Action]:
        match event:
            case Deployed(name, version, num_replicas):
                there = self._deployments.get(name)
                if there is None:
                    self._deployments[name] = _Deployment(version, num_replicas)
                else:
                    if version != there.version:
                        there.failures, there.start_after = 0, 0.0
                        if there.version == there.proven:
                            there.proven_replicas = there.num_replicas
                    there.version, there.num_replicas = version, num_replicas
                return self._converge(name, now)
            case Scaled(name, num_replicas):
                if name not in self._deployments:
                    return []
                scaled = self._deployments[name]
                scaled.num_replicas = scaled.proven_replicas = num_replicas
                return self._converge(name, now)
            case Removed(name):
                gone = self._deployments.get(name)
                if gone is None:
                    return []
                gone.num_replicas = 0
                return self._converge(name, now)
            case Tick():
                return [action for name in list(self._deployments) for action in self._converge(name, now)]
            case ReplicaReady(replica) | ReplicaDied(replica) | ReplicaDrained(replica):
                if replica not in self._home:
                    return []  # of one that was stopped meanwhile
                name = self._home[replica]
                changes = self._of_replica(event, self._deployments[name], now)
                return changes + self._converge(name, now)

    def _of_replica(
        self, event: ReplicaReady | ReplicaDied | ReplicaDrained, there: _Deployment, now: float
    ) -> list[Action]:
        one = there.replicas[event.replica]
        name = self._home[event.replica]
        if isinstance(event, ReplicaReady):
            if one.state != "starting":
                return []
            one.state, one.ready_at = "ready", now
            there.proven = max(there.proven, one.version)
            return [RoutesChanged(name)]
        del there.replicas[event.replica], self._home[event.replica]
        if isinstance(event, ReplicaDrained) or one.state == "draining":
            return [StopReplica(event.replica)]
        was_stable = one.state == "ready" and now - one.ready_at >= STABLE_S
        there.failures = 1 if was_stable else there.failures + 1
        there.reason = event.reason
        if there.failures > 1:
            there.start_after = now + min(FIRST_PAUSE_S * 2.0 ** (there.failures - 2), MAX_PAUSE_S)
        actions: list[Action] = [StopReplica(event.replica)]
        if one.state == "ready":
            actions.append(RoutesChanged(name))
        elif there.version > there.proven and there.failures >= MAX_START_FAILURES:
            actions.append(UpdateFailed(name, there.version, event.reason, there.proven))
            if there.proven:
                there.version, there.failures, there.start_after = there.proven, 0, 0.0
                there.num_replicas = there.proven_replicas
            else:
                there.num_replicas = 0
        return actions

    def _missing(self, there: _Deployment) -> int:
        """Replicas to start now."""
        current = len(there.of("ready", there.version)) + len(there.of("starting", there.version))
        missing = there.num_replicas - current
        old = len(there.of("ready")) - len(there.of("ready", there.version))
        if old and missing > 0:  # an update: one beside the old ones
            missing = min(missing, max(0, there.num_replicas + 1 - old - current))
        return missing

    def _converge(self, name: str, now: float) -> list[Action]:
        there = self._deployments[name]
        actions: list[Action] = []
        for one in there.of("starting"):
            if one.version != there.version:
                actions.append(self._forget(there, one))
        excess = len(there.of("starting", there.version)) + len(there.of("ready", there.version))
        for one in reversed(there.of("starting", there.version)):
            if excess > there.num_replicas:
                actions.append(self._forget(there, one))
                excess -= 1
        is_changed = False
        ready = there.of("ready")
        # Old versions first, then the youngest.
        leaving = sorted(ready, key=lambda one: (one.version == there.version, -one.ready_at))
        for one in leaving[: max(0, len(ready) - there.num_replicas)]:
            one.state, is_changed = "draining", True
            actions.append(DrainReplica(one.name))
        if is_changed:
            actions.append(RoutesChanged(name))
        if now >= there.start_after or not there.failures:
            for _ in range(self._missing(there)):
                replica = f"{name}-{there.started}"
                there.started += 1
                there.replicas[replica] = _Replica(replica, there.version)
                self._home[replica] = name
                actions.append(StartReplica(name, there.version, replica))
        if there.num_replicas == 0 and not there.replicas:
            del self._deployments[name]
        return actions

    def _forget(self, there: _Deployment, one: _Replica) -> StopReplica:
        del there.replicas[one.name], self._home[one.name]
        return StopReplica(one.name)
