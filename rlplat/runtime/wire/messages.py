"""Everything that processes say to each other: typed, data only, decoded before anything is unpickled.

A frame is a msgpack list of messages. User values are opaque bytes in them, or name a shared-memory segment.
Peers are named by client id: "driver", "node", "w1", "w2", ... The messages are in two files, by who says them; they
are spoken of as `messages.Run`, `messages.Granted`.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

import msgspec

from rlplat.runtime.wire.client_messages import *  # noqa: F403
from rlplat.runtime.wire.client_messages import Message
from rlplat.runtime.wire.node_messages import *  # noqa: F403

NODE, DRIVER = "node", "driver"
"""Client ids; workers are "w1", "w2", ..."""
ASKER = "cli-"
"""What the ids of those begin with who only look on (`look.observer`)."""
KINDS = tuple(Message.__subclasses__())

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[reduce(or_, KINDS)]).decode  # type: ignore[misc]


def decode(frame: bytes) -> list[Message]:
    """The messages of a frame; msgspec.MsgspecError when it is not one of ours."""
    try:
        return _decode(frame)
    except (ValueError, RecursionError) as error:  # text that is not UTF-8; absurd nesting
        raise msgspec.DecodeError(str(error)) from None
