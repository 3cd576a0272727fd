"""Requests that are answered in the turn of the event loop in which they come, or in the next: no task, no ASGI.

    POST /v1/act ─▶ head known, body whole ─▶ served.quick(body, answered) ─▶ answered(JSON): one write
                         └─ anything else, and whatever is no plain 200 ─▶ the ordinary path, from the first byte on

A caller sends the same head with each request, so what it says is read once (`QuickPath.length_of`). The deadline, the
limits of bodies and slots hold here as there: a request that could meet one of them takes the ordinary path.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from time import perf_counter
from typing import Any

from rlplat.serve.metrics import Metrics
from rlplat.serve.refusals import Gate

LINE = b"POST /v1/act HTTP/1.1\r\n"
MAX_BYTES = 1 << 16
"""Of a body, which is not counted while the rest of it is on its way."""
BODY_S = 0.01
"""How long the body may come behind its head (Python's http.client sends both by themselves)."""
_MAX_HEAD_BYTES, _MAX_HEADS = 2048, 512
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]*)")
_ORDINARY = {
    *(b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"trailer", b"te"),
    *(b"x-model-id", b"x-request-timeout"),
}
"""Headers that ask for more than an answer."""


class QuickPath:
    def __init__(
        self,
        served: Any,
        gate: Gate,
        metrics: Metrics,
        max_body_bytes: int,
        refusal_of: Callable[[dict[bytes, bytes]], Any],
    ) -> None:
        """served: has `quick(body, answered)`, as `PolicyServer`; refusal_of: headers -> why a request with them is
        refused, or None."""
        self.ask = served.quick
        self.gate = gate
        self.is_open = True
        """Not while the server drains."""
        self._metrics, self._refusal_of = metrics, refusal_of
        self._max_bytes = min(MAX_BYTES, max_body_bytes)
        self._lengths: dict[bytes, int] = {}

    def length_of(self, head: bytes) -> int:
        """Of the body behind a head that begins with LINE; -1 where it is for the ordinary path."""
        length = self._lengths.get(head)
        if length is None:
            if len(head) > _MAX_HEAD_BYTES:
                return -1
            if len(self._lengths) >= _MAX_HEADS:
                self._lengths.clear()
            length = self._lengths[head] = self._read(head)
        return length

    def _read(self, head: bytes) -> int:
        headers: dict[bytes, bytes] = {}
        for line in head[len(LINE) :].split(b"\r\n"):
            found = _HEADER.fullmatch(line)
            if found is None or (name := found[1].lower()) in headers or name in _ORDINARY:
                return -1
            headers[name] = found[2].strip()
        length, kept = headers.get(b"content-length", b""), headers.get(b"connection", b"keep-alive")
        is_plain = re.fullmatch(rb"[0-9]{1,6}", length) and kept.lower() == b"keep-alive"
        if not is_plain or headers.get(b"content-type", b"").lower().startswith(b"application/octet-stream"):
            return -1
        return int(length) if int(length) <= self._max_bytes and self._refusal_of(headers) is None else -1

    def note(self, begin: float) -> None:
        self._metrics.count("rlplat_serve_requests_total", (("status", "200"),))
        self._metrics.observe("rlplat_serve_request_seconds", (), perf_counter() - begin)
