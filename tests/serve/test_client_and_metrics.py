"""What a client sends without a server, and the digits of metrics."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.serve.client import Client
from rlplat.serve.metrics import Metrics
from rlplat.serve.policies.sessions import Session
from rlplat.serve.refusals import Refused


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


class Server:
    """The sessions of a server, whose answers are lost (after the step) or whose requests are (before it)."""

    def __init__(self) -> None:
        self.session, self.taken, self.loses = (
            Session("a", np.zeros(0, np.float32)),
            list[tuple[Any, bool]](),
            "",
        )

    def once(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> Any:
        body = json.loads(data or b"{}")
        if path == "/v1/sessions":
            return b'{"session": "a"}', {}
        if self.loses == "request":
            raise TimeoutError
        digest = f"{body['obs']}{body['reset']}".encode()
        answer = self.session.repeated(body["seq"], digest)
        if answer is None:
            answer = body["obs"]
            self.session.keep(self.session.state, body["seq"], digest, answer)
            self.taken.append((body["obs"], body["reset"]))
        if self.loses == "answer":
            raise TimeoutError
        if self.loses == "time":
            raise Refused(504, "deadline", "too late")
        return json.dumps({"action": answer}).encode(), {}


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["", "", "request", "answer", "time"]), st.booleans()), max_size=8))
def test_each_observation_gets_its_own_answer_whatever_is_lost(steps: list[tuple[str, bool]]) -> None:
    server = Server()
    client = Client("host", retry_s=0.0)
    client._once = server.once  # type: ignore[method-assign]
    session = client.session()
    done: list[tuple[Any, bool]] = []
    waits, is_reset = False, False
    for number, (lost, begins) in enumerate([*steps, ("", False)]):
        if begins:
            session.reset()
        is_reset |= begins
        server.loses = lost
        if lost:
            with pytest.raises(Refused if lost == "time" else TimeoutError):
                session.act(number)
        else:
            assert session.act(number) == number
        if not (lost and waits):  # else the step before was tried, and this one was not
            done.append((number, is_reset))
            is_reset = False
        waits = bool(lost)
    assert server.taken == done


def test_counters_keep_all_their_digits() -> None:
    metrics = Metrics("model-0", 3)
    metrics.count("rlplat_serve_rows_total", by=123_456_789)
    metrics.count("rlplat_serve_rows_total")
    metrics.set("rlplat_serve_running", 2)
    metrics.set("rlplat_serve_waiting", 0.25)
    assert [line.split()[-1] for line in metrics.lines()] == ["123456790", "2", "0.25"]
