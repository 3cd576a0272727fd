"""What the node says of itself to a command that looks on (`look.observer`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlplat.runtime.link.answers import reply, stacks
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.wire.messages import Inspect, Report


def answer_as_node(
    transport: Transport, sender: str, message: Inspect, view: Callable[[], dict[str, Any]]
) -> None:
    def report() -> Report:
        return stacks(__file__) if message.what == "stacks" else Report(0, totals=view())

    reply(transport, sender, message, report)
