"""What clients (the driver and the workers) say to each other: calls, results, refs that travel, streams."""

from __future__ import annotations

import msgspec

from rlplat.runtime.wire.values import Capture, Key, Value


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


class Creation(msgspec.Struct, array_like=True):
    """The actor that a call of a class makes."""

    actor: str
    max_concurrency: int = 0
    """0: as the class wants it."""
    concurrency_groups: dict[str, int] = {}
    exactly_once: bool = False


class More(msgspec.Struct, array_like=True):
    """What few calls have."""

    num_returns: int = 1
    deps: list[tuple[int | str, Value]] = []
    """Values of the refs among the arguments, by position or keyword."""
    label: str = ""
    """The name that its caller gave it."""
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
    """Tasks and constructors: where their children run."""
    creation: Creation | None = None


class Run(Message, tag=2, gc=False):
    """A task, the constructor of an actor, or a call of the actor in that process."""

    task: int
    code: str
    """Key of the function or class; "": a call of the actor."""
    method: str
    args: bytes | Value
    """Of small plain arguments, which is the common case, the pickle."""
    more: More | None = None

    @property
    def num_returns(self) -> int:
        return 1 if self.more is None else self.more.num_returns

    @property
    def deps(self) -> list[tuple[int | str, Value]]:
        return [] if self.more is None else self.more.deps

    @property
    def creation(self) -> Creation | None:
        return None if self.more is None else self.more.creation

    def values(self) -> list[Value]:
        """Those that travel with it."""
        args = [self.args] if isinstance(self.args, Value) else []
        return [*args, *(value for _, value in self.deps)]


class GiveBack(Message, tag=6):
    """Return the tasks that have not started: somebody else is idle."""


# ---------------------------------------------------------------- worker -> owner


class Done(Message, tag=10, gc=False):
    """Results of as many tasks or calls as have gathered: of each its values, or the pickle of a small one."""

    tasks: list[int]
    results: list[bytes | list[Value]]


class Pace(Message, tag=12):
    """How long a task of this code takes here: tells the owner how many to queue ahead."""

    code: str
    seconds: float


class GaveBack(Message, tag=13):
    tasks: list[int]
    is_worn: bool = False
    """The worker has done its `max_calls`, and takes no more."""
    forgotten: str = ""
    """The key of their code, which is not there any more: it is to be sent again."""


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
