"""What a client sends without a server, and the digits of metrics."""

from __future__ import annotations

from typing import Any

import pytest

from rlplat.serve.client import Client
from rlplat.serve.metrics import Metrics


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", "/v1/policy"),
        ("http://127.0.0.1:8000/", "/v1/policy"),
        ("http://host/robots/arm/", "/robots/arm/v1/policy"),
        ("host/arm", "/arm/v1/policy"),
    ],
)
def test_a_path_in_the_address_comes_first(url: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sent(Exception):
        pass

    def send(method: str, path: str, *_: Any) -> None:
        raise Sent(path)

    client = Client(url, retry_s=0.0)
    monkeypatch.setattr(client._connection, "request", send)
    with pytest.raises(Sent, match=f"^{expected}$"):
        client.policy()


def test_counters_keep_all_their_digits() -> None:
    metrics = Metrics("model-0", 3)
    metrics.count("rlplat_serve_rows_total", by=123_456_789)
    metrics.count("rlplat_serve_rows_total")
    metrics.set("rlplat_serve_running", 2)
    metrics.set("rlplat_serve_waiting", 0.25)
    assert [line.split()[-1] for line in metrics.lines()] == ["123456790", "2", "0.25"]
