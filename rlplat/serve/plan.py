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
4. An update of an application is taken when every deployment of it has had a ready replica, and given up when one has
   none in MAX_START_FAILURES starts: all of them go back to the version before, with the number of replicas that it
   had. Deployments that the new version lacks are removed when all of it is settled.
5. What is removed is drained when no replica that calls it is left: callers end before what they call.
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
    """A deployment is new, or has another version (code, arguments), or another size: an update of it alone."""

    deployment: str
    version: int
    num_replicas: int
    calls: tuple[str, ...] = ()
    """The deployments that this version calls."""


@dataclass(frozen=True)
class Updated:
    """An application is new, or has another version."""

    parts: tuple[Deployed, ...]
    """The ingress last."""
    drops: tuple[str, ...] = ()
    """Its deployments that the new version lacks."""


@dataclass(frozen=True)
class Scaled:
    deployment: str
    num_replicas: int
    version: int = 0
    """The only one that it is for; 0: the version before an update too, should that be given up."""


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


Event = Deployed | Updated | Scaled | ReplicaReady | ReplicaDied | ReplicaDrained | Removed | Tick


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


@dataclass(frozen=True)
class UpdateTaken:
    """It is not given up any more."""

    deployments: tuple[str, ...]


Action = StartReplica | DrainReplica | StopReplica | RoutesChanged | UpdateFailed | UpdateTaken


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
    is_proven: bool = False
    """Whether a replica of the version got ready."""
    kept: int = 0
    """The version of the last update that was taken: where it goes back to; 0: there was none."""
    kept_replicas: int = 0
    """How many of that were wanted before the update that runs."""
    failures: int = 0
    """Deaths in a row."""
    start_after: float = 0.0
    reason: str = ""
    """Of the last death."""
    started: int = 0
    is_leaving: bool = False
    """Removed, and perhaps not drained yet."""
    calls: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """What each version calls."""
    replicas: dict[str, _Replica] = field(default_factory=dict)

    def of(self, state: str, version: int | None = None) -> list[_Replica]:
        return [r for r in self.replicas.values() if r.state == state and version in (None, r.version)]


@dataclass
class _Update:
    parts: tuple[str, ...]
    drops: tuple[str, ...]
    is_taken: bool = False

    def has(self, name: str) -> bool:
        return name in self.parts or name in self.drops


class Plan:
    def __init__(self) -> None:
        self._deployments: dict[str, _Deployment] = {}
        self._updates: list[_Update] = []
        """Those that run: of the application, and of its canary."""
        self._home: dict[str, str] = {}
        """The deployment of each replica."""

    def has(self, deployment: str) -> bool:
        """Until it was removed and its last replica has ended."""
        return deployment in self._deployments

    def starting(self, deployment: str) -> list[str]:
        there = self._deployments.get(deployment)
        return [replica.name for replica in there.of("starting")] if there else []

    def ready(self, deployment: str) -> list[str]:
        """The replicas that take its requests."""
        there = self._deployments.get(deployment)
        return [replica.name for replica in there.of("ready")] if there else []

    def draining(self, deployment: str) -> list[str]:
        there = self._deployments.get(deployment)
        return [replica.name for replica in there.of("draining")] if there else []

    def version_of(self, replica: str) -> int:
        return self._deployments[self._home[replica]].replicas[replica].version

    def unused(self, deployment: str, versions: Iterable[int]) -> list[int]:
        """Those of the versions that no replica has or may get again."""
        there = self._deployments.get(deployment)
        used = {there.kept, there.version, *(r.version for r in there.replicas.values())} if there else set()
        return [version for version in versions if version not in used]

    def is_settled(self, deployment: str) -> bool:
        """Whether all is as it was asked for."""
        there = self._deployments.get(deployment)
        if there is None:
            return True
        if there.is_leaving:
            return False
        return len(there.of("ready", there.version)) == there.num_replicas == len(there.replicas)

    def versions(self) -> dict[str, int]:
        """Of each deployment that is to stay."""
        return {name: each.version for name, each in self._deployments.items() if not each.is_leaving}

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
        waits = [each.start_after for each in self._deployments.values() if self._missing(each) > 0 and each.failures]
        return min(waits, default=None)

    def handle(self, event: Event, now: float) -> list[Action]:
        actions = self._on(event, now)
        for update in list(self._updates):
            actions += self._advance(update)
        while more := self._remove(now):
            actions += more
        return actions

    def _advance(self, update: _Update) -> list[Action]:
        parts = [self._deployments[name] for name in update.parts]
        actions: list[Action] = []
        if not update.is_taken and all(part.is_proven for part in parts):
            update.is_taken = True
            for part in parts:
                part.kept = part.version
            actions.append(UpdateTaken(update.parts))
        if update.is_taken and all(map(self.is_settled, update.parts)):
            self._updates.remove(update)
            self._leave(update.drops)
        return actions

    def _leave(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._deployments:
                self._deployments[name].is_leaving = True

    def _remove(self, now: float) -> list[Action]:
        """Drain what is to leave as far as its callers have ended."""
        leaving = [name for name, each in self._deployments.items() if each.is_leaving]
        return [action for name in leaving for action in self._converge(name, now)]

    def _on(self, event: Event, now: float) -> list[Action]:
        match event:
            case Deployed():
                return self._update(Updated((event,)), now)
            case Updated():
                return self._update(event, now)
            case Scaled(name, num_replicas, version):
                scaled = self._deployments.get(name)
                if scaled is None or scaled.is_leaving:
                    return []
                scaled.num_replicas = num_replicas
                if not version:
                    scaled.kept_replicas = num_replicas
                return self._converge(name, now)
            case Removed(name):
                self._updates = [update for update in self._updates if not update.has(name)]
                self._leave([name])
                return []
            case Tick():
                return [action for name in list(self._deployments) for action in self._converge(name, now)]
            case ReplicaReady(replica) | ReplicaDied(replica) | ReplicaDrained(replica):
                if replica not in self._home:
                    return []  # of one that was stopped meanwhile
                name = self._home[replica]
                changes = self._of_replica(event, self._deployments[name], now)
                return changes + self._converge(name, now)

    def _update(self, event: Updated, now: float) -> list[Action]:
        update = _Update(tuple(part.deployment for part in event.parts), event.drops)
        actions: list[Action] = []
        for before in [each for each in self._updates if any(map(update.has, each.parts + each.drops))]:
            self._updates.remove(before)  # this one takes its place
            if before.is_taken:
                self._leave(before.drops)
            else:
                actions += self._go_back([name for name in before.parts if name not in update.parts], now)
        self._updates.append(update)
        for part in event.parts:
            self._deploy(part)
        return actions + [action for name in update.parts for action in self._converge(name, now)]

    def _go_back(self, names: Iterable[str], now: float) -> list[Action]:
        actions: list[Action] = []
        for name in names:
            there = self._deployments[name]
            if not there.kept:
                there.is_leaving = True
            elif there.version != there.kept:
                there.version, there.num_replicas, there.is_proven = there.kept, there.kept_replicas, True
                there.failures, there.start_after = 0, 0.0
                actions += self._converge(name, now)
        return actions

    def _deploy(self, event: Deployed) -> None:
        there = self._deployments.get(event.deployment)
        if there is None:
            there = self._deployments[event.deployment] = _Deployment(event.version, event.num_replicas)
        elif event.version != there.version:
            there.failures, there.start_after, there.is_proven = 0, 0.0, False
            if there.is_leaving:
                there.kept = 0
            elif there.version == there.kept:
                there.kept_replicas = there.num_replicas
        there.version, there.num_replicas, there.is_leaving = event.version, event.num_replicas, False
        for old in self.unused(event.deployment, list(there.calls)):
            del there.calls[old]
        there.calls[event.version] = event.calls

    def _of_replica(
        self, event: ReplicaReady | ReplicaDied | ReplicaDrained, there: _Deployment, now: float
    ) -> list[Action]:
        one = there.replicas[event.replica]
        name = self._home[event.replica]
        if isinstance(event, ReplicaReady):
            if one.state != "starting":
                return []
            one.state, one.ready_at, there.is_proven = "ready", now, True
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
        elif not there.is_proven and there.failures >= MAX_START_FAILURES:
            actions.append(UpdateFailed(name, there.version, event.reason, there.kept))
            for update in [each for each in self._updates if name in each.parts]:
                self._updates.remove(update)
                actions += self._go_back(update.parts, now)
        return actions

    def _missing(self, there: _Deployment) -> int:
        """Replicas to start now."""
        current = len(there.of("ready", there.version)) + len(there.of("starting", there.version))
        missing = there.num_replicas - current
        old = len(there.of("ready")) - len(there.of("ready", there.version))
        if old and missing > 0:  # an update: one beside the old ones
            missing = min(missing, max(0, there.num_replicas + 1 - old - current))
        return missing

    def _is_called(self, name: str) -> bool:
        """Whether there is a replica that may call it."""
        return any(
            name in each.calls.get(replica.version, ())
            for each in self._deployments.values()
            for replica in each.replicas.values()
        )

    def _converge(self, name: str, now: float) -> list[Action]:
        there = self._deployments[name]
        if there.is_leaving and not ((there.is_proven or there.kept) and self._is_called(name)):
            there.num_replicas = 0
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
