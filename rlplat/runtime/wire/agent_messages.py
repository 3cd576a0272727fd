"""What a machine's agent and the head say to each other over their trunk (decision 0023). Data only.

Frames of clients pass over the same connection, unread.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import msgspec

from rlplat.runtime.wire.values import ErrorInfo


class TrunkMessage(msgspec.Struct, array_like=True):
    """Base of all: encoded as [tag, field, ...]."""


# ---------------------------------------------------------------- a machine that waits <-> head


class AskProgram(TrunkMessage, tag=1):
    """Is there a program to work for?"""

    versions: str
    """Of Python and rlplat, in words: these must be the same everywhere."""
    ended: str = ""
    """Its last session, of which all processes are dead."""


class Program(TrunkMessage, tag=2):
    """There is: join it under this id, which nobody else has had, with these settings of its driver."""

    node: str
    settings: dict[str, Any]


class Refused(TrunkMessage, tag=3):
    reason: str


# ---------------------------------------------------------------- agent -> head


class Join(TrunkMessage, tag=10):
    node: str
    total: dict[str, float]
    num_spares: int
    hostname: str
    address: str
    session: str
    """The name of its session's folder, which no other has anywhere."""


class AskLease(TrunkMessage, tag=11):
    number: int


class WorkerEnded(TrunkMessage, tag=12):
    worker: str
    reason: str
    kind: str


class EnvSettled(TrunkMessage, tag=13):
    key: str
    error: ErrorInfo | None


class Printed(TrunkMessage, tag=14):
    """By one of its workers."""

    worker: str
    name: str
    """Who that is, and its pid: Learner pid=12."""
    lines: list[str]


class Said(TrunkMessage, tag=16):
    """By itself, for the driver's stderr."""

    text: str


class AllDead(TrunkMessage, tag=15):
    """Its workers are dead, and it ends."""

    reason: str


# ---------------------------------------------------------------- head -> agent


class Lease(TrunkMessage, tag=20):
    """The answer to the `AskLease` of this number; the first one says that the machine has joined."""

    number: int


class StartWorker(TrunkMessage, tag=21):
    worker: str
    gpu_ids: tuple[int, ...]
    env: str


class StopWorker(TrunkMessage, tag=22):
    worker: str
    at_once: bool
    is_surplus: bool
    reason: str


class KillWorker(TrunkMessage, tag=23):
    worker: str
    reason: str


class DefineEnv(TrunkMessage, tag=24):
    key: str
    spec: str


class RemoveFiles(TrunkMessage, tag=25):
    """The deaths of these workers are settled."""

    workers: list[str]


class Keep(TrunkMessage, tag=27):
    """As owners say it."""

    owner: str
    creator: str
    names: list[str]
    are_freed: bool


class CreatorsLost(TrunkMessage, tag=28):
    """What these have made is gone, with a machine."""

    creators: list[str]


class End(TrunkMessage, tag=29):
    """Of the program."""


class Using(TrunkMessage, tag=26):
    """Which of its workers are leased or actors: (worker, name, is an actor, can run again, memory limit)."""

    workers: list[tuple[str, str, bool, bool, int]]


# ---------------------------------------------------------------- machine <-> machine, by way of the head


class AskChunk(TrunkMessage, tag=30):
    """From the bytes of a segment that `creator` has made, for this machine."""

    node: str
    creator: str
    name: str
    offset: int


class Chunk(TrunkMessage, tag=31):
    """Ahead of the bytes."""

    node: str
    """Who has asked."""
    name: str
    offset: int
    size: int
    """Of the whole; -1: it is not there."""


class DropCopies(TrunkMessage, tag=32):
    """The originals are gone."""

    node: str
    names: list[str]


KINDS = tuple(TrunkMessage.__subclasses__())

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(reduce(or_, KINDS)).decode


def decode(frame: bytes) -> Any:
    """msgspec.MsgspecError when it is not one of ours."""
    try:
        return _decode(frame)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
