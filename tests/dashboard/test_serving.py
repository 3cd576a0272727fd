"""The data of the page of servers: rates and latencies of two scrapes, which servers there are, what they refuse."""

from __future__ import annotations

import http.server
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlplat.dashboard.serving import Servers, parse, quantile, summary
from rlplat.serve.listening import ListeningSocket, _lock, running_servers
from rlplat.serve.metrics import Metrics, exposition


def scrape(seconds: list[float], *, replica: str = "model-0", failed: int = 0, sessions: int = 0) -> str:
    """Of a replica that has answered requests which took so long."""
    metrics = Metrics(replica)
    for each in seconds:
        metrics.count("rlplat_serve_requests_total", (("status", "200"),))
        metrics.observe("rlplat_serve_request_seconds", (), each)
    if failed:
        metrics.count("rlplat_serve_requests_total", (("status", "422"),), by=failed)
    metrics.set("rlplat_serve_sessions", sessions)
    return exposition([metrics.lines()])


def test_rates_and_latencies_are_those_between_two_scrapes() -> None:
    before = parse(scrape([9.0] * 50))
    now = parse(scrape([9.0] * 50 + [0.002] * 90 + [0.2] * 10, failed=3, sessions=4))
    found = summary(now, before, 10.0)
    assert found["requests_per_s"] == 10.3 and found["requests"] == 153 and found["sessions"] == 4
    assert found["statuses"] == {"200": 150, "422": 3}
    assert 1.0 < found["latency_ms"]["p50"] < 2.5 and 100 < found["latency_ms"]["p95"] < 250
    assert [row["replica"] for row in found["replicas"]] == ["model-0"]


def test_one_scrape_has_no_rates_and_a_replica_that_began_again_counts_from_zero() -> None:
    text = scrape([0.002] * 5)
    once = summary(parse(text), parse(text), 0.0)
    assert once["requests"] == 5 and once["requests_per_s"] is None and once["latency_ms"]["p50"] is None
    again = summary(parse(text), parse(scrape([0.002] * 80)), 1.0)
    assert again["requests_per_s"] == 5
    both = parse(text + scrape([0.2] * 5, replica="model-1"))
    assert summary(both, {}, 1.0)["requests_per_s"] == 10
    assert [row["requests_per_s"] for row in summary(both, {}, 1.0)["replicas"]] == [5, 5]


@pytest.mark.parametrize(
    ("counts", "q", "expected"),
    [
        ([], 0.5, None),
        ([0, 0], 0.5, None),
        ([10, 10], 0.5, 0.5),
        ([0, 10], 0.5, 1.0),  # all beyond the last bound: the bound
        ([5, 10], 0.25, 0.5),
        ([10, 10], 1.0, 1.0),
    ],
)
def test_a_quantile_is_linear_within_its_bucket(counts: list[int], q: float, expected: float | None) -> None:
    assert quantile(dict(zip((1.0, float("inf")), counts, strict=False)), q) == expected


def test_labels_with_quotes_and_lines_of_others_do_not_disturb() -> None:
    metrics = Metrics('a"},b\\-0')
    metrics.count("rlplat_serve_requests_total", (("status", "200"),))
    text = "# HELP x y\nother{} 1\nrlplat_serve_requests_total{ 3\n" + exposition([metrics.lines()])
    assert parse(text) == {("requests_total", 'a\\"},b\\\\-0', "200"): 1.0}


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory in which no other server writes where it listens."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_servers_are_found_while_they_run_and_those_of_the_dead_are_not(alone: Path) -> None:
    assert running_servers() == {} and Servers().look() == {"servers": []}
    listening = ListeningSocket("127.0.0.1", 0)
    try:
        assert running_servers() == {listening.url: os.getpid()}
    finally:
        listening.close()
    killed, unreadable, beginning = (alone / f"rlplat-serve-{name}" for name in "abc")
    for folder in (killed, unreadable, beginning):
        folder.mkdir(mode=0o700)
    os.close(_lock(killed))
    (killed / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid()}))
    life = _lock(unreadable)
    (unreadable / "server.json").write_text('{"url"')
    assert running_servers() == {}
    os.close(life)


@pytest.fixture
def answering(alone: Path) -> Iterator[list[tuple[int, str]]]:
    """A server that answers /metrics with what the test puts into the list, and is announced."""
    answers: list[tuple[int, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answers.pop(0)
            if self.headers["Authorization"] == "Bearer s3cret":
                status = 200
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        folder = alone / "rlplat-serve-x"
        folder.mkdir(mode=0o700)
        life = _lock(folder)
        said = {"url": f"http://127.0.0.1:{server.server_address[1]}", "pid": os.getpid()}
        (folder / "server.json").write_text(json.dumps(said))
        yield answers
        os.close(life)
        server.shutdown()
        thread.join()


def test_what_another_user_could_have_planted_is_not_believed(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder open to others or of another user, links, what is not a file: no token is sent there."""
    said = json.dumps({"url": "http://127.0.0.1:1", "pid": 1})

    def plant(name: str, mode: int = 0o700) -> tuple[Path, int]:
        folder = alone / f"rlplat-serve-{name}"
        folder.mkdir()
        life = _lock(folder)
        (folder / "server.json").write_text(said)
        folder.chmod(mode)
        return folder, life

    lives = [plant("open", 0o755)[1]]
    linked, life = plant("linked")
    (linked / "server.json").rename(alone / "elsewhere.json")
    (linked / "server.json").symlink_to(alone / "elsewhere.json")
    piped, other = plant("piped")
    (piped / "server.json").unlink()
    os.mkfifo(piped / "server.json")
    lives += [life, other]
    target, life = plant("target")
    lives.append(life)
    (alone / "rlplat-serve-through").symlink_to(target)
    assert running_servers() == {"http://127.0.0.1:1": 1}  # that of `target` itself
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert running_servers() == {}
    for descriptor in lives:
        os.close(descriptor)


@pytest.mark.parametrize(("url", "is_shown"), [("http://127.0.0.1:1", True), ("http://evil.example:1", False)])
def test_a_token_goes_to_loopback_only(url: str, is_shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def open_url(request: Any, timeout: float) -> Any:
        asked.append(request)
        raise OSError("no")

    monkeypatch.setattr("rlplat.dashboard.serving.running_servers", lambda: {url: 1})
    monkeypatch.setattr("rlplat.dashboard.serving._direct.open", open_url)
    Servers("s3cret").look()
    assert (asked[0].get_header("Authorization") == "Bearer s3cret") == is_shown


def test_a_server_is_asked_once_a_second_whoever_looks(
    answering: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("rlplat.dashboard.serving.time.monotonic", lambda: now[0])
    answering += [(200, scrape([0.002] * 5)), (200, scrape([0.002] * 25)), (200, scrape([0.002] * 25))]
    servers = Servers()
    (first,) = servers.look()["servers"]
    assert first["requests"] == 5 and first["requests_per_s"] is None
    now[0] += 0.5
    assert servers.look()["servers"] == [first] and len(answering) == 2
    now[0] += 1.5
    (second,) = servers.look()["servers"]
    assert second["requests_per_s"] == 10 and second["latency_ms"]["p50"] > 1
    now[0] += 3600.0  # a page that slept: what was an hour ago is no rate of now
    (third,) = servers.look()["servers"]
    assert third["requests_per_s"] is None and third["requests"] == 25


def test_what_cannot_be_read_of_a_server_is_said(answering: list[tuple[int, str]]) -> None:
    answering += [(401, ""), (401, scrape([0.1])), (404, "")]
    assert "$RLPLAT_SERVE_TOKEN" in Servers().look()["servers"][0]["error"]
    assert Servers("s3cret").look()["servers"][0]["requests"] == 1
    assert Servers().look()["servers"][0]["error"] == "has no metrics: it answers 404"


def test_a_server_that_does_not_answer_is_named(alone: Path) -> None:
    listening = ListeningSocket("127.0.0.1", 0)
    url = listening.url
    listening._socket.close()  # as while it ends
    try:
        (server,) = Servers().look()["servers"]
    finally:
        listening.close()
    assert server["url"] == url and server["error"].startswith("does not answer")
