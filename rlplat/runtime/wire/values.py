"""What messages carry: values, errors as data, what a call needs, what describes actors, nodes and groups."""

from __future__ import annotations

import msgspec

from rlplat.runtime.wire.signatures import Signature


def encodable(text: str) -> str:
    """With "\\udcff" spelled out where a lone surrogate is (in the name of a file that is not UTF-8, for example)."""
    return text.encode("utf-8", "backslashreplace").decode()


class ErrorInfo(msgspec.Struct, array_like=True):
    """An exception on the wire: text first, the pickled exception as an optional extra."""

    kind: str
    """Name of a class in `rlplat.errors`; `TaskError` for whatever user code raised."""
    message: str
    exception: bytes = b""
    classes: list[str] = []
    """Of what user code raised: `class_names` of it (`retry_exceptions` looks there)."""

    def __post_init__(self) -> None:
        self.message = encodable(self.message)


def class_names(kind: type) -> list[str]:
    """Module and name of a class and its bases. (A class made in a function loses its qualified name on its way.)"""
    return [encodable(f"{base.__module__}.{base.__name__}") for base in kind.__mro__[:-1]]


Key = tuple[str, int]
"""An object: (its owner's client id, its id there)."""


class Segment(msgspec.Struct, array_like=True, frozen=True):
    """Bytes in shared memory: the pickle stream, then its out-of-band buffers, each at a 64-byte boundary."""

    creator: str
    name: str
    sizes: list[int]
    is_writable: bool = False
    """It holds tensors: each reader maps it for itself, copy on write."""


class Value(msgspec.Struct, array_like=True, gc=False):
    """A value, inline or in shared memory, or the error in its place."""

    data: bytes = b""
    segment: Segment | None = None
    refs: list[Key] = []
    """Refs inside the value; sending it hands one borrow of each to the receiver."""
    error: ErrorInfo | None = None
    holder: Key | None = None
    """As an argument: the object whose entry keeps the segment; the receiver borrows it while views of it live."""

    def keys(self) -> list[Key]:
        """What sending this as an argument lends to the receiver."""
        return self.refs if self.holder is None else [*self.refs, self.holder]


STREAMING, DYNAMIC = -1, -2
"""`num_returns` of generators: refs as they come, or one ref of all refs."""


class CallOptions(msgspec.Struct, array_like=True, frozen=True):
    """How a method of an actor is called: `@rlplat.method(...)` and `.options(...)`."""

    num_returns: int = 1
    concurrency_group: str = ""
    max_task_retries: int | None = None
    """None: what the actor was created with."""
    timeout_s: float | None = None
    generator_backpressure: int = 64
    retry_exceptions: bool | tuple[str, ...] = False
    """Also run again when the method raises: any exception, or one of these classes, by `codec.class_names`."""
    name: str = ""
    """What messages call it; "": `Class.method`."""


PLAIN_CALL = CallOptions()


class ActorInfo(msgspec.Struct, array_like=True, frozen=True):
    """What a handle of an actor knows of it."""

    class_name: str
    methods: dict[str, CallOptions]
    max_task_retries: int = 0
    exactly_once: bool = False
    groups: tuple[str, ...] = ()
    """Its concurrency groups."""
    signatures: dict[str, Signature] = {}
    """What its methods take."""
    max_pending_calls: int = -1


class Shape(msgspec.Struct, array_like=True, frozen=True):
    """What a lease or an actor needs: tasks of one shape share their leases."""

    demand: tuple[tuple[str, float], ...] = ()
    """Resources by name, sorted."""
    memory: int = 0
    env: str = ""
    """Key of a runtime environment that the node was told of; "" for none."""
    group: str = ""
    """Placement group whose reserved resources are used."""
    bundle: int = -1
    """Of the group; -1: any that has room."""
    strategy: str = ""
    """"": near the client, then node after node; "SPREAD": in turn; "node:ID": there only; "node?:ID": there first."""
    can_retry: bool = True
    """Its tasks run again when their worker dies: it may be the one that has to go when memory is short."""


class Capture(msgspec.Struct, array_like=True, frozen=True):
    """The placement group in which what a task or an actor submits is to run; the fields of a `PlacementGroup`."""

    id: str
    bundles: tuple[tuple[tuple[str, float], ...], ...]
    strategy: str = "PACK"
    name: str = ""


class GroupState(msgspec.Struct, array_like=True, frozen=True):
    group: str
    name: str
    strategy: str
    state: str
    """PENDING | CREATED | RESCHEDULING | REMOVED"""
    bundles: list[dict[str, float]]
    nodes: list[str]
    """Of each bundle; "" while it has none."""


class NodeState(msgspec.Struct, array_like=True, frozen=True):
    node: str
    is_alive: bool
    total: dict[str, float]
    available: dict[str, float]
    address: str = "127.0.0.1"
    hostname: str = ""
    """"": that of this machine."""


class Place(msgspec.Struct, array_like=True, frozen=True):
    """Where a client runs, and with what."""

    node: str
    shape: Shape = Shape()
    actor: str = ""
    bundle: int = -1
    """The bundle it draws from."""
    actor_name: str = ""
    incarnation: int = 1
    info: ActorInfo | None = None
    """Of an actor: what it takes to make a handle of it."""
    is_detached: bool = False
