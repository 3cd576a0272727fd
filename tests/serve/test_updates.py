"""Updates, scaling and deaths of replicas under traffic."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")

from rlplat import serve
from rlplat.errors import ConfigError, RlplatError
from tests.serve import apps
from tests.serve.calling import request

pytestmark = pytest.mark.process


class Traffic:
    """Keep-alive clients that ask all the time and count; a connection that was closed by an answer is opened again."""

    def __init__(self, url: str, num_clients: int = 8) -> None:
        self.failed: list[str] = []
        self.answers: dict[int, int] = {}
        self._parts = urlsplit(url)
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(num_clients)]

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self._parts.hostname or "", self._parts.port, timeout=60)
        try:
            while not self._is_over.is_set():
                connection.request("GET", "/")
                answer = connection.getresponse()
                body = answer.read()
                if answer.status != 200:
                    self.failed.append(f"{answer.status} {body!r}")
                else:
                    self.answers[int(body)] = self.answers.get(int(body), 0) + 1
        except Exception as error:
            self.failed.append(repr(error))
        finally:
            connection.close()

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.usefixtures("cluster")
def test_updates_and_scaling_fail_no_request_and_a_bad_version_is_given_up() -> None:
    with serve.run(apps.Version.bind(1), port=0) as running:
        with Traffic(running.url) as traffic:
            running.update(apps.Version.bind(2))
            with pytest.raises(RlplatError, match="ValueError: no such version"):
                running.update(apps.Version.bind(-1))
            assert "no such version" in running.status()["deployments"]["Version"]["update_failed"]
            running.scale("Version", 1)
            running.scale("Version", 2)
            running.update(apps.Version.bind(3))
        assert traffic.failed == [] and set(traffic.answers) == {1, 2, 3}
        running.reconfigure("Version", 5)
        with pytest.raises(RlplatError, match="no such version"):
            running.update(apps.Version.options(user_config=6, num_replicas=1).bind(-1))
        running.scale("Version", 3)
        assert {request(running.url, "GET", "/")[1] for _ in range(12)} == {5}, "what starts later has it too"
        running.reconfigure("Version", 3)
        assert request(running.url, "GET", "/")[:2] == (200, 3)


@pytest.mark.usefixtures("cluster")
def test_a_replica_that_drains_is_known_to_the_others_as_long_as_it_has_sessions(tmp_path: Path) -> None:
    handed_over = tmp_path / "handed-over"
    with serve.run(apps.Leaving.bind(handed_over), port=0) as running:
        scaling = threading.Thread(target=running.scale, args=("Leaving", 1))
        scaling.start()
        try:
            while "draining" not in str(running.status()):
                time.sleep(0.01)
            for _ in range(10):
                assert request(running.url, "GET", "/")[1] == ["Leaving-0", "Leaving-1"]
                time.sleep(0.02)
        finally:
            handed_over.touch()
            scaling.join()


@pytest.mark.usefixtures("cluster")
def test_a_canary_has_its_share_of_the_connections_until_it_is_ended_or_promoted() -> None:
    def versions(count: int) -> list[int]:  # a connection for each
        return [request(running.url, "GET", "/")[1] for _ in range(count)]

    with serve.run(apps.Version.bind(1), port=0) as running:
        with Traffic(running.url, 12) as traffic:
            running.update(apps.Version.bind(2), canary=0.25)
            assert 9 <= versions(40).count(2) <= 11  # of each of two replicas within half a connection
            counts = {
                line.partition(" ")[0]
                for line in request(running.url, "GET", "/metrics")[1].decode().split("\n")
            }
            named = 'rlplat_serve_requests_total{status="200",replica="Version%s-0",version="%d"}'
            assert {named % ("", 1), named % (".canary", 2)} <= counts
            connection = http.client.HTTPConnection(*running.url.removeprefix("http://").split(":"))
            kept = set()
            for _ in range(8):
                connection.request("GET", "/")
                kept.add(connection.getresponse().read())
            connection.close()
            assert len(kept) == 1, "a connection stays on its side"
            running.end_canary()
            assert versions(8) == [1] * 8 and list(running.status()["deployments"]) == ["Version"]
            with pytest.raises(RlplatError, match="no such version"):
                running.update(apps.Version.bind(-1), canary=0.5)
            assert versions(8) == [1] * 8
            running.update(apps.Version.bind(3), canary=0.5)
            running.update(apps.Version.bind(3))
            assert versions(8) == [3] * 8 and list(running.status()["deployments"]) == ["Version"]
        assert traffic.failed == []
        for share in (1.0, -0.1, float("nan")):
            with pytest.raises(ConfigError, match="a number between 0 and 1"):
                running.update(apps.Version.bind(4), canary=share)


@pytest.mark.usefixtures("cluster")
def test_a_killed_replica_is_replaced_and_clients_that_repeat_notice_nothing() -> None:
    said: list[str] = []
    with serve.run(apps.Version.bind(1), port=0, say=said.append) as running:
        client = serve.Client(running.url)
        for _ in range(3):
            replicas = running.status()["deployments"]["Version"]["replicas"]
            os.kill(next(each["pid"] for each in replicas.values() if each["pid"]), signal.SIGKILL)
            for _ in range(40):
                assert client.request("GET", "/") == 1
        client.close()
        deadline = time.monotonic() + 60
        while len(said) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert "died and is replaced" in said[0] and "SIGKILL" in said[0]
