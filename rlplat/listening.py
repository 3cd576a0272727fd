"""Addresses at which rlplat listens for its users: a bound socket, or one line that says why there is none.

What can be reached from other machines needs a token; it comes from a file, so that it is on no command line. What
needs none is guarded from web pages: any page that a browser on this machine shows could send it requests, open a
WebSocket, or have its own name lead here (DNS rebinding). `foreign_request` is the doorkeeper of the dashboard, of
servers and of external environments.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from pathlib import Path

from rlplat.errors import UsageError
from rlplat.paths import expanded


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def foreign_request(host: str, origin: str) -> tuple[int, str] | None:
    """Why a request to a server on loopback without a token is refused: (HTTP status, words), or None.

    host, origin: its headers, "" where there are none (programs send no Origin, browsers always do); several of one
    name are joined by commas.
    """
    if host and ("," in host or not is_loopback(_name_of(host))):
        return 421, f"this server is not called {host!r:.100}: it is for this machine, or needs a token"
    if origin and origin.partition("://")[2] != host:
        page = f"requests of the page {origin!r:.100} are refused"
        return 403, f"{page}: without a token this server is for programs of this machine"
    return None


def _name_of(host: str) -> str:
    """Without the port: `[::1]:8000` -> `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def in_url(host: str, port: int) -> str:
    """`[::1]:8000` for ::1."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: int, backlog: int = 128) -> socket.socket:
    """A socket that listens at an address, port 0 for any that is free; UsageError where it cannot be had."""
    if not 0 <= port <= 65535:
        raise UsageError(f"a port is a number from 0 to 65535, not {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen on {in_url(host, port)}: {getattr(error, 'strerror', error)}") from None
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(backlog)
    except (OSError, OverflowError) as error:
        listening.close()
        if getattr(error, "errno", 0) == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} of {host} is in use; take another one with --port (0: any that is free)"
            ) from None
        raise UsageError(f"cannot listen on {in_url(host, port)}: {getattr(error, 'strerror', error)}") from None
    return listening


def read_token(file: Path) -> str:
    """The secret in a file, without the blanks around it; UsageError where there is none."""
    try:
        token = expanded(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the token in {file}: {getattr(error, 'strerror', error)}") from None
    if not token:
        raise UsageError(f"the token file {file} is empty")
    return token
