"""What a replica's process holds at most while clients send it too much."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")

from rlplat import serve
from tests.serve import apps
from tests.serve.calling import request

pytestmark = pytest.mark.process
MIB = 1 << 20


def most_bytes(pid: int) -> int:
    """Resident memory of the process, the most that it ever had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.usefixtures("cluster")
def test_clients_that_send_too_much_do_not_fill_the_memory() -> None:
    """60 MiB of header lines; 20 bodies of 20 MiB; 20 halves of messages of 4 MiB."""
    app = apps.Sizes.options(max_body_bytes=32 * MIB, max_held_bytes=32 * MIB).bind()
    with serve.run(app, port=0) as running, ThreadPoolExecutor(20) as clients:
        address = (urlsplit(running.url).hostname, urlsplit(running.url).port)
        pid = running.handle.pid.remote().result(10)
        before = most_bytes(pid)

        def send(text: bytes) -> bytes:
            with socket.create_connection(address) as connection:
                try:
                    connection.sendall(text)
                    return connection.recv(12)
                except ConnectionError:  # it was closed while this was sent
                    return b""

        assert send(b"GET / HTTP/1.1\r\n" + 10_000_000 * b"x: 1\r\n" + b"\r\n") in (b"HTTP/1.1 431", b"")
        bodies = clients.map(lambda _: request(running.url, "POST", "/", bytes(20 * MIB))[0], range(20))
        assert set(bodies) == {200, 503}

        def half_a_message(_: Any) -> None:
            upgrade = "host: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
            send(
                f"GET / HTTP/1.1\r\n{upgrade}sec-websocket-key: {22 * 'A'}==\r\n\r\n".encode()
                + b"\x82\xff\0\0\0\0\0\x40\0\0\0\0\0\0"
                + bytes(4 * MIB - 1)
            )

        list(clients.map(half_a_message, range(20)))
        assert most_bytes(pid) - before < 200 * MIB
