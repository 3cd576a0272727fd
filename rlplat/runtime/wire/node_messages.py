"""What clients and the node say to each other: leases, actors, deaths; and what a command asks that looks on."""

from __future__ import annotations

from typing import Any

from rlplat.runtime.wire.client_messages import Code, Message, Run
from rlplat.runtime.wire.values import ActorInfo, ErrorInfo, GroupState, Key, NodeState, Place, Shape

# ---------------------------------------------------------------- client <-> node


class Hello(Message, tag=30):
    client: str


class Welcome(Message, tag=31):
    total: dict[str, float]
    namespace: str = ""
    alive: list[str] = []
    """Workers. Those below `next_worker` that are not among them died before the client came: refs to what they owned
    may still reach it."""
    next_worker: int = 1
    """The number of the worker that will be started next."""
    reasons: dict[str, str] = {}
    """Why the last of the dead workers died."""
    can_grow: bool = False
    """Machines may join: what there is not may come."""


class Grown(Message, tag=58):
    """A machine has joined or is lost: what the cluster has now."""

    total: dict[str, float]


class RequestLeases(Message, tag=32):
    shape: Shape
    count: int


class Granted(Message, tag=33):
    shape: Shape
    worker: str


class ReturnLease(Message, tag=34):
    worker: str
    is_worn: bool = False
    """Nobody else is to have it."""


class PlaceActor(Message, tag=35):
    actor: str
    info: ActorInfo
    shape: Shape
    name: str = ""
    """"" for none."""
    namespace: str = ""
    max_restarts: int = 0
    is_detached: bool = False
    get_if_exists: bool = False


class Placed(Message, tag=36):
    """It runs (or will, once its creator has sent `Run` of its class) in this worker."""

    actor: str
    worker: str
    incarnation: int = 1


class ActorRestarting(Message, tag=47):
    """Its worker died and it will have another: calls in flight there are lost, later ones wait for `Placed`."""

    actor: str
    reason: str


class ActorGone(Message, tag=37):
    actor: str
    error: ErrorInfo


class EndActor(Message, tag=38):
    """Kill it (`reason` says who wanted that), or let it close itself when nobody holds a handle any more."""

    actor: str
    reason: str
    at_once: bool
    no_restart: bool = True
    """False: stop its process, and let it have another as after a crash."""


class FindActor(Message, tag=39):
    actor: str


class AskByName(Message, tag=40):
    request: int
    name: str
    namespace: str = ""


class AskResources(Message, tag=41):
    request: int
    available: bool


class Answer(Message, tag=42):
    """To `AskByName` (actor, info; or an error) and `AskResources` (amounts)."""

    request: int
    actor: str = ""
    info: ActorInfo | None = None
    amounts: dict[str, float] = {}
    error: ErrorInfo | None = None
    is_detached: bool = False
    """The actor does not depend on its creator, which may be gone."""
    names: list[tuple[str, str]] = []
    """To `AskNames`: (namespace, name)."""


class Blocked(Message, tag=43):
    """The sender's task waits for other tasks: its CPUs may be lent."""

    on: list[Key] = []
    """What it waits for: all of them. (Empty: one of many will do, or nobody knows.)"""


class Unblocked(Message, tag=44):
    pass


class WorkerDied(Message, tag=45):
    worker: str
    reason: str
    kind: str = "WorkerCrashed"
    """The class of the error that a lost task fails with: also "OutOfMemory", whose retries are counted apart."""
    with_machine: bool = False
    """What it has made is lost as well."""


class DeathHeard(Message, tag=56):
    """To `WorkerDied`: the owners know what the sender has from the dead process; it takes nothing more from it."""

    worker: str


class Settled(Message, tag=57):
    """All have sent `DeathHeard` for these: nobody can have anything from them that its owner has not been told of."""

    workers: list[str]


class Exit(Message, tag=46):
    """Close yourself: let the actor go, flush, end."""


class DefineEnv(Message, tag=85):
    """Ahead of the first `Shape` with this `env`: what the key stands for (JSON, as `runtime_env.prepare` made it)."""

    key: str
    spec: str


class EnvFailed(Message, tag=86):
    """It cannot be set up: what waits for a worker of this environment fails with the error."""

    key: str
    error: ErrorInfo


class Ping(Message, tag=87):
    """Node to a worker in use; its I/O thread answers, whatever its main thread does."""


class Pong(Message, tag=88):
    pass


class KillWorker(Message, tag=48):
    """SIGKILL for a worker; its `WorkerDied` will give this reason."""

    worker: str
    reason: str


# ---------------------------------------------------------------- the scheduler's further business


class LeasesRefused(Message, tag=65):
    """None of the leases of this shape that were asked for will come."""

    shape: Shape
    error: ErrorInfo


class CreateGroup(Message, tag=66):
    """Reserve bundles of resources, all or none."""

    group: str
    bundles: list[tuple[tuple[str, float], ...]]
    strategy: str
    name: str = ""
    is_detached: bool = False


class RemoveGroup(Message, tag=67):
    group: str


class FindGroup(Message, tag=68):
    """Answered with `GroupNews`, now or when there is some."""

    group: str


class GroupNews(Message, tag=69):
    """It is there; or (`error`) never will be."""

    group: str
    error: ErrorInfo | None = None


class AskCluster(Message, tag=70):
    request: int


class Cluster(Message, tag=71):
    """To `AskCluster`: all nodes and placement groups, and where the asking client runs."""

    request: int
    nodes: list[NodeState]
    groups: list[GroupState]
    here: Place
    num_joining: int = 0
    """Machines that have heard of this program, and start."""


class KeepCreation(Message, tag=72):
    """How to create a detached actor: the node sends it to every incarnation."""

    actor: str
    code: Code
    creation: Run


class NameTaken(Message, tag=73):
    """To `PlaceActor` with `get_if_exists`: instead of `actor` there is `existing`."""

    actor: str
    existing: str
    info: ActorInfo
    is_detached: bool = False


# ---------------------------------------------------------------- actors by name; who waits for whom


class AskNames(Message, tag=60):
    """Answered with the named actors of a namespace; None: of all."""

    request: int
    namespace: str | None = None


class WhoMakes(Message, tag=61):
    """Node to owner: which processes will make these objects of yours?"""

    ids: list[int]


class Makes(Message, tag=62):
    """Owner to node: `worker` makes it ("": nobody yet), or it waits for these objects first."""

    id: int
    worker: str
    name: str
    waits: list[Key] = []


# ---------------------------------------------------------------- bytes on other machines


class Pull(Message, tag=63):
    """To the node of one's own machine: these bytes are not here. Answered with `Pulled`."""

    request: int
    creator: str
    name: str


class Pulled(Message, tag=64):
    request: int
    is_there: bool
    error: str = ""
    """There is no room for them."""


class Keep(Message, tag=74):
    """Owner to node: segments of mine that a dead process has made stay on its machine, after its death is settled; or
    (`are_freed`) nobody needs them any more."""

    creator: str
    names: list[str]
    are_freed: bool = False


# ---------------------------------------------------------------- a command that looks on -> anybody


class Inspect(Message, tag=95):
    """What do you know of this? The sender is no client of the cluster: it is answered once and forgotten."""

    request: int
    what: str
    """node | tasks | objects | spans | stacks"""
    limit: int
    """Most rows that are wanted; what is beyond them is only counted."""


class Report(Message, tag=96):
    request: int
    rows: list[dict[str, Any]] = []
    totals: dict[str, Any] = {}
    error: str = ""
    """Why there is no report."""


FROM_NODE = frozenset((
    Welcome, Grown, Granted, LeasesRefused, Placed, ActorRestarting, ActorGone, NameTaken, Answer, Cluster, GroupNews,
    EnvFailed, WorkerDied, Pulled, Settled, Exit, Ping, WhoMakes,
))  # fmt: skip
"""What the node alone says."""
