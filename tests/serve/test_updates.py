"""Updates, scaling and deaths of replicas under traffic."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")

from rlplat import serve
from rlplat.errors import ConfigError, RlplatError
from tests.patience import soon
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
        assert {request(running.url, "GET", "/")[1] for _ in range(12)} == {3}


@pytest.mark.usefixtures("cluster")
def test_an_update_that_renames_a_deployment_and_does_not_start_changes_nothing() -> None:
    with serve.run(apps.Front.bind(apps.Back.bind()), port=None) as running:
        with pytest.raises(
            RlplatError,
            match=r"Door does not start: .*no such version \(at .*apps.py:\d+\); the version before goes on",
        ):
            running.update(apps.Version.options(name="Door").bind(-1, apps.Back.options(name="Other").bind()))
        assert running.handle.remote(0.0).result(5) == "answered"
        running.scale("Back", 1)  # raises nothing: that failure was of another command
        assert set(running.status()["deployments"]) == {"Front", "Back"}


@pytest.mark.usefixtures("cluster")
def test_a_user_config_is_everywhere_when_reconfigure_returns_and_its_errors_are_raised(
    tmp_path: Path,
) -> None:
    starts = tmp_path / "starts"
    with serve.run(apps.Slow.bind(starts), port=0) as running:
        scaling = threading.Thread(target=running.scale, args=("Slow", 2))
        scaling.start()
        while not starts.exists() or len(starts.read_text()) < 2:
            time.sleep(0.01)
        running.reconfigure("Slow", "newer")  # while the second one starts with what was newest before
        scaling.join()
        assert {request(running.url, "GET", "/")[1] for _ in range(12)} == {b"newer"}
        with pytest.raises(RlplatError, match=r"Slow.* does not take the user_config: ValueError: not that one"):
            running.reconfigure("Slow", "bad")
        with pytest.raises(TimeoutError, match=r"Slow.*, Slow.* did not take the user_config within 0.1 s"):
            running.reconfigure("Slow", "slow", timeout_s=0.1)
        running.reconfigure("Slow", "newest")
        time.sleep(0.6)  # the slow one would be through
        assert {request(running.url, "GET", "/")[1] for _ in range(12)} == {b"newest"}


@pytest.mark.usefixtures("cluster")
def test_a_user_config_that_all_took_stays_when_the_next_one_is_refused(tmp_path: Path) -> None:
    """Also when that was given before all had answered."""
    with serve.run(apps.Slow.bind(tmp_path / "starts"), port=None) as running:
        slow = threading.Thread(target=running.reconfigure, args=("Slow", "slow"))
        slow.start()
        time.sleep(0.1)
        with pytest.raises(RlplatError, match="not that one"):
            running.reconfigure("Slow", "bad")
        slow.join()
        assert running.handle.remote(None).result(5) == "slow"


@pytest.mark.usefixtures("cluster")
def test_a_user_config_that_is_refused_is_taken_back() -> None:
    app = apps.Version.options(user_config=1).bind(0)
    with serve.run(app, port=None, say=lambda _: None) as running:
        with pytest.raises(RlplatError, match="does not take the user_config: ValueError: only one has 7"):
            running.reconfigure("Version", 7)
        assert {running.handle.remote(None).result(5) for _ in range(12)} == {1}
        replicas = running.status()["deployments"]["Version"]["replicas"]
        for each in replicas.values():
            os.kill(each["pid"], signal.SIGKILL)
        assert running.handle.remote(None).result(10) == 1


@pytest.mark.usefixtures("cluster")
def test_a_user_config_that_kills_is_refused_and_taken_back() -> None:
    app = apps.Version.options(user_config=1, num_replicas=2).bind(0)
    with serve.run(app, port=None, say=lambda _: None) as running:
        for _ in range(2):  # the second time after a row of deaths
            with pytest.raises(RlplatError, match="a replica died of the user_config, or Version-"):
                running.reconfigure("Version", 9)
            assert running.handle.remote(None).result(10) == 1
        running.reconfigure("Version", 3)
        assert {running.handle.remote(None).result(5) for _ in range(12)} == {3}


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
                line.partition(" ")[0] for line in request(running.url, "GET", "/metrics")[1].decode().split("\n")
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
        assert soon(lambda: len(said) >= 3)
    assert "died and is replaced" in said[0] and "SIGKILL" in said[0]


class Counted:
    """Arrives as 5, and counts how often it is pickled."""

    num_pickled = 0

    def __reduce__(self) -> Any:
        self.num_pickled += 1
        return int, (5,)


@pytest.mark.usefixtures("cluster")
def test_a_user_config_is_pickled_once_for_all_replicas() -> None:
    config = Counted()
    with serve.run(apps.Version.bind(1), port=None) as running:
        running.reconfigure("Version", config)
        assert {running.handle.remote(None).result(5) for _ in range(12)} == {5}
        assert config.num_pickled == 1


@pytest.mark.usefixtures("cluster")
def test_what_cannot_be_pickled_is_refused_and_leaves_nothing_behind() -> None:
    lock = threading.Lock()
    with serve.run(apps.Version.bind(1), port=None, say=lambda _: None) as running:
        with pytest.raises(ConfigError, match=r"user_config for Version cannot be sent .*: \['lock'\] of type"):
            running.reconfigure("Version", {"lock": lock})
        with pytest.raises(
            RlplatError, match=r"Version does not start: .* cannot be pickled.*the version before goes on"
        ):
            running.update(apps.Version.bind(2, lock), timeout_s=5)
        replicas = running.status()["deployments"]["Version"]["replicas"]
        assert {each["state"] for each in replicas.values()} == {"ready"}
        assert running.handle.remote(None).result(5) == 1


@pytest.mark.usefixtures("cluster")
def test_a_deployment_that_was_dropped_is_unknown_and_an_application_is_stopped_once() -> None:
    running = serve.run(apps.Front.bind(apps.Back.bind()), port=0)
    running.update(apps.Back.options(name="Front").bind())
    with pytest.raises(ConfigError, match="there is no deployment 'Back'; there are Front"):
        running.scale("Back", 2)
    with serve.run(apps.Back.bind(), port=None) as other:  # its name is free
        assert other.handle.remote(0.0).result(5) == "answered"
    running.stop()
    with serve.run(apps.Front.bind(apps.Back.bind()), port=None) as other:
        running.stop()
        assert other.handle.remote(0.0).result(5) == "answered"
