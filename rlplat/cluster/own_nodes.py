"""A node of a cluster of the own runtime, as the launcher starts it.

    python -m rlplat.cluster.own_nodes head HOST TOKEN_FILE JOIN_FILE OFFERS
    python -m rlplat.cluster.own_nodes worker HOST:PORT TOKEN_FILE JOIN_FILE OFFERS

The head is the program itself, when there is one. What runs before picks its port, writes the join file for programs
and JOIN_FILE.address, and waits. A worker writes its own join file, whose keys are made of the same token.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rlplat import machines

HEAD_READY, WORKER_READY = "programs may start", "waits for programs"


def main(arguments: list[str]) -> None:
    role, place, token_file, join_file, text = arguments
    token, offers = Path(token_file).read_text(), json.loads(text)
    Path(join_file).unlink(missing_ok=True)
    if role == "worker":
        machines.make_join_file(join_file, place, token)
        machines.work(join_file, offers.get("CPU"), offers.get("GPU"), None)
        return
    signal.signal(signal.SIGTERM, _end)
    address = Path(f"{join_file}.address")
    try:
        address.write_text(machines.start_head(join_file, place, 0, token, offers))
        print(HEAD_READY, flush=True)
        signal.pause()
    finally:
        for file in (address, Path(join_file)):
            file.unlink(missing_ok=True)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
