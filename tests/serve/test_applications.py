"""Applications: composition by handles, HTTP, streams, FastAPI; updates and deaths under traffic."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import http.client
import os
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")

import rlplat
from rlplat import serve
from rlplat.errors import ConfigError, UsageError
from rlplat.serve.files.control import folder_of
from rlplat.serve.listening import PREFIX, ListeningSocket, fetch_sockets, running_servers
from rlplat.serve.replica import Replica, ReplicaSpec
from tests.patience import soon
from tests.serve import apps
from tests.serve.calling import request

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def running() -> Iterator[serve.Running]:
    rlplat.init(num_cpus=2, num_gpus=0)
    with serve.run(apps.gateway(2.0, 10.0), port=0) as running:
        yield running
    rlplat.shutdown()


def test_deployments_call_each_other(running: serve.Running) -> None:
    handle = running.handle
    assert handle.pipeline.remote(3.0).result(30) == 60.0
    assert handle.chained.remote(3.0).result(30) == 60.0
    assert handle.ensemble.remote(3.0).result(30) == 36.0
    assert serve.Handle("scale1").blocking.remote(1.0).result(30) == 11.0


def test_http_answers_are_made_of_what_is_returned(running: serve.Running) -> None:
    assert request(running.url, "POST", "/pipeline", 3.0)[:2] == (200, 60.0)
    assert request(running.url, "GET", "/words")[:2] == (200, b"0 1 2 ")
    assert request(running.url, "GET", "/none")[:2] == (204, b"")
    status, answer, _ = request(running.url, "GET", "/fail")
    assert status == 500 and answer["error"]["code"] == "failed"
    status, answer, _ = request(running.url, "GET", "/refuse")
    assert (status, answer) == (409, {"error": {"code": "stale", "message": "too old"}})


def test_errors_of_a_call_arrive_as_what_they_are(running: serve.Running) -> None:
    with pytest.raises(KeyError, match="missing"):
        serve.Handle("scale0").fail.remote().result(30)
    with pytest.raises(AttributeError, match="no method 'nothing'"):
        serve.Handle("scale0").nothing.remote().result(30)


def test_http_requests_can_be_batched(running: serve.Running) -> None:
    with serve.run(apps.doubled.bind(), port=0) as doubled, ThreadPoolExecutor(4) as clients:
        answers = clients.map(lambda x: request(doubled.url, "POST", "/", x)[:2], range(8))
        assert list(answers) == [(200, 2 * x) for x in range(8)]


def test_a_client_that_leaves_frees_its_slot(running: serve.Running) -> None:
    parts = urlsplit(running.url)
    for _ in range(5):
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        connection.request("GET", "/slow")
        connection.close()
    nobody = b'rlplat_serve_running{replica="Gateway-0",version="3"} 0'
    assert soon(lambda: nobody in request(running.url, "GET", "/metrics")[1])


def test_a_name_that_runs_is_not_taken_twice(running: serve.Running) -> None:
    with pytest.raises(ConfigError, match="a deployment named scale0 runs in this process already"):
        serve.run(apps.gateway(1.0), port=None)


def test_wrong_names_and_numbers_are_refused(running: serve.Running) -> None:
    with pytest.raises(ConfigError, match="no deployment 'scale'; did you mean"):
        running.scale("scale", 2)
    with pytest.raises(ConfigError, match="1 or more"):
        running.scale("scale0", 0)
    with pytest.raises(ConfigError, match="did you mean 'num_replicas'"):
        serve.deployment(num_replica=2)(apps.Version)


def test_fastapi_is_mounted_with_its_web_sockets(running: serve.Running) -> None:
    pytest.importorskip("fastapi")
    from tests.serve.fastapi_app import Api

    sync_client = pytest.importorskip("websockets.sync.client")
    with serve.run(Api.bind(apps.Scale.bind(3.0)), port=0) as api:
        assert request(api.url, "GET", "/scaled/2")[:2] == (200, {"scaled": 6.0})
        assert request(api.url, "GET", "/scaled/x")[0] == 422
        assert request(api.url, "GET", "/openapi.json")[0] == 200
        with sync_client.connect(api.url.replace("http", "ws") + "/echo") as socket:
            socket.send("hello")
            assert socket.recv() == "hello"
        assert set(api.status()["deployments"]) == {"Api", "Scale"}


def test_a_replica_is_let_in_when_there_are_files_again() -> None:
    """Too many open files in the process that listens, for a moment."""
    listening, limits = ListeningSocket("127.0.0.1", 0), resource.getrlimit(resource.RLIMIT_NOFILE)
    kept: list[int] = []
    with socket.socket(socket.AF_UNIX) as replica:
        resource.setrlimit(resource.RLIMIT_NOFILE, (replica.fileno() + 50, limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(os.dup(replica.fileno()))
            replica.settimeout(30)
            replica.connect(listening.door)
            time.sleep(0.05)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for each in kept:
                os.close(each)
        _, sockets, _, _ = socket.recv_fds(replica, 1, 3)
    for each in sockets:
        os.close(each)
    listening.close()
    assert len(sockets) == 3


def test_the_folder_of_a_killed_server_is_swept_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = tmp_path / f"{PREFIX}killed"
    killed.mkdir(mode=0o700)
    (killed / "life").touch()  # the lock ended with its process
    open_to_all, link, private = tmp_path / f"{PREFIX}open", tmp_path / f"{PREFIX}link", tmp_path / "private"
    for folder, mode in ((open_to_all, 0o755), (private, 0o700)):
        folder.mkdir(mode=mode)
        (folder / "life").touch()
    link.symlink_to(private)
    (killed / "door").touch()
    half_made = tmp_path / f"{PREFIX}new"
    half_made.mkdir()
    one = ListeningSocket("127.0.0.1", 0)
    assert not killed.exists() and half_made.exists()
    two = ListeningSocket("127.0.0.1", 0)
    assert os.path.exists(one.door) and os.path.exists(two.door)
    one.close()
    two.close()
    assert set(tmp_path.iterdir()) == {half_made, open_to_all, private, link} and (private / "life").exists()


def test_the_door_is_found_however_long_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    listening = ListeningSocket("127.0.0.1", 0)
    fetched = fetch_sockets(listening.door)
    for each in fetched:
        each.close()
    listening.close()
    assert len(fetched) == 3 and not list(folder.iterdir())


def test_a_stream_of_a_method_that_does_not_yield_says_so_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        replica = Replica()
        await replica.start(ReplicaSpec(None, "scale-0", "Scale", apps.Scale, (2.0,), {}, None, {}))
        with pytest.raises(TypeError, match=r"Scale\.__call__ does not yield; call \.remote\(\)"):
            async for _ in replica.stream("__call__", "", 1.0):
                pass
        await replica.drain()

    asyncio.run(main())
    gc.collect()  # a coroutine that was never awaited warns here


def test_without_a_folder_that_can_be_written_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nothing)
    with pytest.raises(UsageError, match="TMPDIR"):
        ListeningSocket("127.0.0.1", 0)
    assert running_servers() == {}
    (tmp_path / ".rlplat").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="HOME"):
        folder_of(tmp_path / "serve.yaml")


def test_the_door_is_closed_and_its_folder_removed() -> None:
    listening = ListeningSocket("127.0.0.1", 0)
    folder = os.path.dirname(listening.door)
    assert os.stat(folder).st_mode & 0o777 == 0o700
    listening.close()
    assert not os.path.exists(folder)
    with open(os.devnull) as other:  # it may have the number of one of the descriptors
        listening.close()
        os.fstat(other.fileno())
