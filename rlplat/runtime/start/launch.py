"""The first lines of a cluster's node process: fork the zygote, then let both import what they need at the same time.

The configuration is the first line of stdin (`start` writes it); when stdin ends, the driver is gone.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys

from rlplat.given.say import open_streams


def main() -> None:
    open_streams()
    gc.disable()  # a tenth of the imports would be collections, which find nothing
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever ends the driver ends us, by its pipe
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from rlplat.machine_limits import raise_file_limit
    from rlplat.runtime.link import link  # noqa: F401  (and ZeroMQ: what both need is imported once, and shared)
    from rlplat.runtime.machine.session import adopt_orphans

    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            return  # the driver gave up
        line += part
    config = json.loads(line)
    sys.path[:] = config["sys_path"]
    adopt_orphans()
    raise_file_limit()  # the node has two files for each worker; these inherit it, the user's own process does not
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    zygote = os.fork()
    if zygote:
        theirs.close()
        from rlplat.runtime.machine.session import SPILL_LINK, hold

        session = config["session"]
        hold(session, os.path.join(session, SPILL_LINK), config["folder"])
        if "node" in config:
            from rlplat.runtime.node import far

            gc.enable()
            far.serve(config, ours, zygote)
        from rlplat.runtime.node import node

        gc.enable()
        node.serve(config, ours, zygote)
    ours.close()
    # stdin and stdout are the driver's pipes: only the node may hold them open.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    if os.getppid() != parent:
        os._exit(1)
    from rlplat.runtime.start.zygote import run

    run(theirs, config["session"], config["folder"], config["preload"])
