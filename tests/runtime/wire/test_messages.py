"""The wire: every message survives it, and no input crashes the decoder or is unpickled."""

from __future__ import annotations

import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlplat.runtime.wire import messages
from rlplat.runtime.wire.values import (
    ActorInfo,
    CallOptions,
    Capture,
    ErrorInfo,
    GroupState,
    NodeState,
    Place,
    Segment,
    Shape,
    Value,
)

KINDS = messages.KINDS
DROPPED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What the transport expects of a bad frame (and drops it)."""
_SAMPLES: dict[Any, Any] = {
    int: 2**40,
    float: 0.5,
    str: "w1",
    bytes: b"\0\xff",
    bool: True,
    Value: Value(b"x", Segment("w1", "s-w1-1", [1, 2]), [("driver", 3)], ErrorInfo("TaskError", "why"), ("w2", 4)),
    ErrorInfo: ErrorInfo("ActorDied", "why", b"e", ["builtins.ValueError"]),
    dict[str, float]: {"CPU": 1.0},
    dict[str, str]: {"w1": "it was killed"},
    dict[str, int]: {"f": 2},
    Shape: Shape((("CPU", 1.0),), 2**30, "e", "g", 1),
    Capture | None: Capture("g", ((("CPU", 1.0),),), "PACK", "name"),
    ActorInfo: ActorInfo("Class", {"f": CallOptions(2, "io", 1, 0.5, 8)}, 3, True),
    ActorInfo | None: ActorInfo("Class", {}),
    messages.Code: messages.Code("key", "f", b"code"),
    messages.Creation | None: messages.Creation("driver:1", 2, {"io": 1}, True),
    bytes | Value: Value(b"z", Segment("w1", "s", [1])),
    messages.More | None: messages.More(
        2, [(0, Value(b"z")), ("key", Value())], creation=messages.Creation("driver:1")
    ),
    list[str]: ["a"],
    list[tuple[str, int]]: [("driver", 3)],
    list[tuple[int, int]]: [(3, 1)],
    dict[str, int]: {"w1": 2},
    list[tuple[str, str]]: [("space", "name")],
    str | None: "space",
    list[int]: [1, 2],
    list[bytes | list[Value]]: [b"a", [Value(b"y")]],
    list[tuple[str, int]]: [("driver", 3)],
    list[tuple[int, int]]: [(3, 1)],
    dict[str, int]: {"w1": 2},
    list[Value]: [Value(b"y")],
    list[tuple[int | str, Value]]: [(0, Value(b"z")), ("key", Value())],
    ErrorInfo | None: ErrorInfo("ConfigError", "taken"),
    list[tuple[tuple[str, float], ...]]: [(("CPU", 1.0), ("GPU", 0.5)), ()],
    list[NodeState]: [NodeState("node", True, {"CPU": 2.0}, {"CPU": 0.5})],
    list[GroupState]: [GroupState("g", "", "PACK", "CREATED", [{"CPU": 1.0}], ["node"])],
    Place: Place("node", Shape((("CPU", 1.0),)), "driver:1", 0),
    messages.Code: messages.Code("k", "f", b"x"),
    messages.Run: messages.Run(1, "k", "__init__", b"a", messages.More(creation=messages.Creation("driver:1"))),
    list[dict[str, Any]]: [{"task": "driver:1", "waits": 2, "resources": {"CPU": 1.0}, "lent": None}],
    dict[str, Any]: {"pid": 7, "sent": {"w1": [["f", "task", 3]]}},
}


def sample(kind: Any) -> Any:
    return kind(*(_SAMPLES[field.type] for field in msgspec.structs.fields(kind)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_survives_the_wire(kind: Any) -> None:
    (back,) = messages.decode(messages.encode([sample(kind)]))
    assert back == sample(kind)
    assert type(back) is kind


def test_no_two_messages_share_a_tag() -> None:
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(tags) == len(set(tags)) > 25


def test_random_bytes_never_crash_the_decoder_and_are_never_unpickled(tmp_path: Path) -> None:
    """20,000 inputs: noise, mutated frames, truncated frames, and frames with pickles that would make a file."""
    canary = tmp_path / "canary"

    class Canary:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(canary),)

    bomb = pickle.dumps(Canary())
    rng = random.Random(20261121)
    frames = [messages.encode([sample(kind)]) for kind in KINDS]
    frames.append(messages.encode([messages.Run(1, "c", "", bomb), messages.Done([1], [[Value(bomb)]])]))
    frames.append(messages.encode([messages.ActorGone("a", ErrorInfo("TaskError", "x", bomb))]))
    num_decoded = 0
    for n in range(20_000):
        frame = bytearray(rng.choice(frames))
        match n % 5:
            case 0:
                frame = bytearray(rng.randbytes(rng.randrange(200)))
            case 1:
                for _ in range(rng.randrange(1, 4)):
                    frame[rng.randrange(len(frame))] = rng.randrange(256)
            case 2:
                del frame[rng.randrange(len(frame)) :]
            case 3:
                where = rng.randrange(len(frame))
                frame[where:where] = bomb if n % 2 else rng.randbytes(9)
            case _:
                pass  # as it was
        try:
            decoded = messages.decode(frame)
        except DROPPED:
            continue
        assert all(type(message) in KINDS for message in decoded)
        num_decoded += 1
    assert num_decoded >= 4_000
    assert not canary.exists()


@pytest.mark.parametrize(
    "frame",
    [
        b"\x91" * 100_000,  # a list in a list in a list
        b"\x81" * 100_000,
        b"\xdd" + struct.pack(">I", 2**32 - 1),  # a list of 4 billion, with nothing in it
        b"\xdf" + struct.pack(">I", 2**32 - 1),
        b"\xc6" + struct.pack(">I", 2**32 - 1) + b"x",
        b"",
        b"\xc1",
        msgspec.msgpack.encode([[999, 1]]),
        msgspec.msgpack.encode([[2, "not a number", "c", b""]]),
        msgspec.msgpack.encode({"not": "a list"}),
    ],
    ids=["lists", "maps", "huge list", "huge map", "huge bytes", "nothing", "reserved", "tag", "type", "map"],
)
def test_malformed_frames_are_refused(frame: bytes) -> None:
    with pytest.raises(DROPPED):
        messages.decode(frame)
