"""Everything that processes say to each other: typed, data only, decoded before anything is unpickled.

A frame is a msgpack list of messages. User values are opaque bytes in them, or name a shared-memory segment.
Peers are named by client id: "driver", "node", "w1", "w2", ...
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import msgspec

from rlplat.runtime.wire.values import (
    ActorInfo,
    Capture,
    ErrorInfo,
    GroupState,
    Key,
    NodeState,
    Place,
    Shape,
    Value,
)

NODE, DRIVER = "node", "driver"
"""Client ids; workers are "w1", "w2", ..."""


class Message(msgspec.Struct, array_like=True):
    """Base of all: encoded as [tag, field, ...]."""


# ---------------------------------------------------------------- owner -> worker


class Code(Message, tag=1):
    """A function or class, sent once to each worker ahead of its first use."""

    key: str
    name: str
    blob: bytes
    refs: list[Key] = []
    """Refs that it closes over; sending it hands one borrow of each to the receiver."""
    max_calls: int = 0
    """The worker ends after so many; 0: never."""


class Run(Message, tag=2, gc=False):
    """A task with small plain arguments and one return: the common case, kept short."""

    task: int
    code: str
    args: bytes


class Call(Message, tag=3, gc=False):
    """An actor call of the same kind."""

    task: int
    method: str
    args: bytes


class RunFull(Message, tag=4):
    """Any task (`code` set; `name` if it was given one) or actor call (`code` empty, `name` is the method)."""

    task: int
    code: str
    name: str
    num_returns: int
    args: Value
    deps: list[tuple[int | str, Value]]
    """Values of the refs among the arguments, by position or keyword."""
    group: str = ""
    """Concurrency group."""
    window: int = 0
    """Streaming: values ahead of the consumer (0: any number)."""
    have: int = 0
    """Streaming: values that the owner has from an earlier attempt; they are not sent again."""
    seq: int = 0
    """Exactly-once calls: the caller's number of this call, from 1."""
    answered: int = 0
    """Exactly-once calls: the caller has the results of all calls up to this number."""
    capture: Capture | None = None
    """Tasks: where their children run."""


class CreateActor(Message, tag=5):
    task: int
    code: str
    actor: str
    max_concurrency: int
    """0: as the class wants it."""
    args: Value
    deps: list[tuple[int | str, Value]]
    concurrency_groups: dict[str, int] = {}
    exactly_once: bool = False
    incarnation: int = 1
    capture: Capture | None = None


class GiveBack(Message, tag=6):
    """Return the tasks that have not started: somebody else is idle."""


# ---------------------------------------------------------------- worker -> owner


class Done(Message, tag=10, gc=False):
    """Small results, of as many tasks or calls as have gathered."""

    tasks: list[int]
    data: list[bytes]


class DoneFull(Message, tag=11):
    task: int
    values: list[Value]


class Pace(Message, tag=12):
    """How long a task of this code takes here: tells the owner how many to queue ahead."""

    code: str
    seconds: float


class GaveBack(Message, tag=13):
    tasks: list[int]
    is_worn: bool = False
    """The worker has done its `max_calls`, and takes no more."""


# ---------------------------------------------------------------- between owners and borrowers


class Fetch(Message, tag=20):
    id: int


class Fetched(Message, tag=21):
    id: int
    value: Value


class Lent(Message, tag=22):
    """`borrower` got `count` more copies of the ref from the sender."""

    id: int
    borrower: str
    count: int


class Returned(Message, tag=23):
    """The sender has no copy left; it had been handed `count` in all."""

    id: int
    count: int


class ReturnedTo(Message, tag=25):
    """`Returned`, of copies that others than the owner had handed to the sender: by the lender's name."""

    id: int
    counts: dict[str, int]


class Held(Message, tag=26):
    """`lender` is dead. (id, count): what it had handed to the sender, who has that of "lender!" from now on."""

    lender: str
    held: list[tuple[int, int]]


class HeldHeard(Message, tag=27):
    """The answer to `Held`: it is in the book, and so is all that the sender of `Held` had said before."""

    lender: str


class FreeSegments(Message, tag=24):
    """The owner is done with these: their creator may reuse them."""

    names: list[str]
    are_lost: bool = False
    """The bytes are gone: their creator must not reuse them."""


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
    """It runs (or will, once its creator has sent `CreateActor`) in this worker."""

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


class KeepCreation(Message, tag=72):
    """How to create a detached actor: the node sends it to every incarnation."""

    actor: str
    code: Code
    creation: CreateActor


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


# ---------------------------------------------------------------- streams and cancelling


class Item(Message, tag=50):
    """Worker -> owner: value number `index` (from 0) of a generator."""

    task: int
    index: int
    value: Value


class ItemsTaken(Message, tag=51):
    """Owner -> worker: the consumer has taken `count` values of the generator in all."""

    task: int
    count: int


class CancelTask(Message, tag=52):
    """Owner -> worker: drop it, interrupt it, or cancel its coroutine."""

    task: int
    recursive: bool
    is_close: bool = False
    """Only stop a generator at its next value: nobody reads it any more."""


class Farewell(Message, tag=54):
    """Worker -> owner: an actor that ends by itself has sent all its results."""


class FarewellHeard(Message, tag=55):
    """The answer: they are here."""


class CancelObject(Message, tag=53):
    """Borrower -> owner: cancel the task that is to make this object."""

    id: int
    force: bool
    recursive: bool


# ---------------------------------------------------------------- objects in trouble


class MakeRoom(Message, tag=75):
    """The store is full: give up spares and mappings that nobody needs, and spill so many bytes; then `RoomMade`."""

    to_spill: int


class RoomMade(Message, tag=76):
    pass


class BytesLost(Message, tag=77):
    """To an object's owner: the segment is gone. It makes the value again, or says why not, by `Fetched`."""

    id: int
    segment: str


KINDS = tuple(Message.__subclasses__())
FROM_NODE = frozenset((
    Welcome, Granted, LeasesRefused, Placed, ActorRestarting, ActorGone, NameTaken, Answer, Cluster, GroupNews,
    EnvFailed, WorkerDied, Settled, Exit, Ping, WhoMakes,
))  # fmt: skip
"""What the node alone says."""

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[reduce(or_, KINDS)]).decode  # type: ignore[misc]


def decode(frame: bytes) -> list[Message]:
    """The messages of a frame; msgspec.MsgspecError when it is not one of ours."""
    try:
        return _decode(frame)
    except (ValueError, RecursionError) as error:  # text that is not UTF-8; absurd nesting
        raise msgspec.DecodeError(str(error)) from None
