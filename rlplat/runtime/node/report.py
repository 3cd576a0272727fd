"""What the node says of itself to a command that looks on (`look.observer`)."""

from __future__ import annotations

from typing import Any

from rlplat.runtime.link.answers import reply, stacks
from rlplat.runtime.wire.messages import Inspect, Report


def answer_as_node(node: Any, sender: str, message: Inspect) -> None:
    def report() -> Report:
        return stacks(__file__) if message.what == "stacks" else _all(node)

    reply(node._transport, sender, message, report)


def _all(node: Any) -> Report:
    totals = {
        "clients": sorted(node._clients),
        "pids": node._processes.pids(),
        "uptime_s": node.clock() - node.started_at,
        "session": node._session,
        "log_folder": node.log_folder,
    }
    return Report(0, totals=totals | node._scheduler.view())
