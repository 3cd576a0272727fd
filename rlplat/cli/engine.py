"""`--backend` and `--address`: on what the actors of a command run."""

from __future__ import annotations

import argparse
import os

from rlplat.errors import UsageError


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=("zmq", "ray"),
        help="on what the actors run: processes of this machine, or Ray (default: $RLPLAT_BACKEND, or zmq)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="with --backend ray: of the cluster, or auto (default: $RLPLAT_ADDRESS, or a new one on this machine)",
    )


def choose_engine(options: argparse.Namespace) -> None:
    """For this process; `rlplat.init` reads it there. UsageError where an address leads nowhere."""
    backend = options.backend or os.environ.get("RLPLAT_BACKEND") or "zmq"
    if options.address is not None and backend != "ray":
        raise UsageError(f"--address {options.address} is that of a Ray cluster: add --backend ray")
    for name in ("backend", "address"):
        if getattr(options, name) is not None:
            os.environ[f"RLPLAT_{name.upper()}"] = getattr(options, name)
