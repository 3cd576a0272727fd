"""Calls by handles while replicas end, die and are replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import rlplat
from rlplat import serve
from rlplat.errors import ActorDied, GetTimeout, RlplatError, SerializationError
from rlplat.serve.handle import Routes, all_routes, routes_of
from rlplat.serve.refusals import Refused
from tests.patience import soon
from tests.serve import apps

pytestmark = pytest.mark.process


@pytest.mark.usefixtures("cluster")
def test_a_request_that_runs_can_still_call_others_when_the_application_is_stopped(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    running = serve.run(apps.Front.bind(apps.Back.bind(), 0.6, asked), port=None)
    answer = running.handle.remote(0.0)
    while not asked.exists():
        time.sleep(0.01)
    before = time.monotonic()
    running.stop()
    assert answer.result(0.5) == "answered" and time.monotonic() - before < 10


@pytest.mark.usefixtures("cluster")
def test_what_the_user_gave_for_messages_may_raise() -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        raise ValueError("I/O operation on closed file")

    with serve.run(apps.Back.bind(), port=None, say=say) as running:
        for count in (1, 2):
            pid = running.handle.pid.remote().result(10)
            os.kill(pid, signal.SIGKILL)
            assert running.handle.pid.remote().result(30) != pid and len(said) == count


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", ["Back", "Front"])
def test_a_call_whose_only_replica_dies_is_answered_by_the_next_one(name: str) -> None:
    """From the driver, and from another replica, which the driver asks once."""
    with serve.run(apps.Front.bind(apps.Back.bind()), port=None, say=lambda _: None):
        answer = serve.Handle(name).options(retry=name == "Back").remote(0.5)
        pid = serve.Handle("Back").pid.remote().result(10)
        time.sleep(0.2)  # it runs
        os.kill(pid, signal.SIGKILL)
        assert answer.result(20) == "answered"


@pytest.mark.usefixtures("cluster")
def test_a_stream_is_sent_again_until_its_first_value(tmp_path: Path) -> None:
    async def taken(stream: AsyncIterator[int], pids: list[int]) -> None:
        async for pid in stream:
            pids.append(pid)

    async def ended(stream: AsyncIterator[int], pids: list[int]) -> None:
        async for pid in stream:
            pids.append(pid)
            os.kill(pid, signal.SIGKILL)

    with serve.run(apps.Back.bind(), port=None, say=lambda _: None):
        handle = serve.Handle("Back")
        with pytest.raises(ActorDied):
            asyncio.run(taken(handle.options(retry=False).pids.stream(tmp_path / "first", 0.0), []))
        pids: list[int] = []
        asyncio.run(taken(handle.pids.stream(tmp_path / "second", 0.0), pids))
        assert len(pids) == 2
        pids.clear()
        with pytest.raises(
            ActorDied,
            match=r"Back-2 ended during Handle\(Back.pids\).stream\(\), after 1 of its values; .*repeat",
        ):
            asyncio.run(ended(handle.pids.stream(tmp_path / "second", 3600.0), pids))
        assert len(pids) == 1


@pytest.mark.usefixtures("cluster")
def test_a_stream_whose_reader_is_cancelled_is_closed_at_once(tmp_path: Path) -> None:
    async def read(has_begun: asyncio.Event) -> None:
        async for _ in serve.Handle("Back").ticks.stream(tmp_path / "closed"):
            has_begun.set()

    async def leave() -> None:
        has_begun = asyncio.Event()
        reading = asyncio.ensure_future(read(has_begun))
        await has_begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError) as left:  # as a server does, which keeps the traceback
            await reading
        async with asyncio.timeout(5):
            while not (tmp_path / "closed").exists():
                await asyncio.sleep(0.01)
        del left

    with serve.run(apps.Back.bind(), port=None, say=lambda _: None):
        asyncio.run(leave())


@pytest.mark.usefixtures("cluster")
def test_a_replica_that_hangs_is_replaced() -> None:
    said: list[str] = []
    with serve.run(apps.Stuck.bind(), port=None, say=said.append) as running:
        for method in ("block", "block_loop", "fall_ill"):
            pid = running.handle.pid.remote().result(10)
            with contextlib.suppress(RlplatError):
                serve.Handle("Stuck", method, retry=False).remote().result(10)
            deadline = time.monotonic() + 30
            now = pid
            while now == pid:
                assert time.monotonic() < deadline, said
                time.sleep(0.05)
                with contextlib.suppress(Refused):  # its thread is blocked still
                    now = running.handle.pid.remote().result(10)
    assert ["Stuck-0" in said[0], "Stuck-1" in said[1], "Stuck-2" in said[2]] == [True] * 3, said
    assert "blocks its thread" in said[0] and "no answer for 0.6 s" in said[1] and "ill" in said[2]


@pytest.mark.usefixtures("cluster")
def test_a_replica_that_hangs_while_it_starts_is_replaced(tmp_path: Path) -> None:
    """Where its code and arguments are unpickled, which imports, and in its constructor."""
    said: list[str] = []
    with serve.run(apps.Reluctant.bind(apps.HangsOnce(tmp_path)), port=None, say=said.append) as running:
        for _ in range(2):
            pid = running.handle.pid.remote().result(30)
            os.kill(pid, signal.SIGKILL)
            assert running.handle.pid.remote().result(30) != pid
    late = [each for each in said if "has not started within 1 s" in each]
    assert [("Reluctant-1" in late[0]), ("Reluctant-3" in late[1])] == [True, True], said


@pytest.mark.usefixtures("cluster")
def test_calls_are_counted_until_they_have_ended(tmp_path: Path) -> None:
    """Those that fail, are given up or cancelled too, though their responses are kept; and streams."""
    ongoing: dict[str, int] = {}

    async def main() -> None:
        handle = serve.Handle("Back")
        stream = handle.ticks.stream(tmp_path / "closed")
        await anext(stream)
        assert ongoing["Back-0"] == 1
        await stream.aclose()
        kept = [handle.nothing.remote(), handle.remote(60.0)]
        with pytest.raises(AttributeError):
            await kept[0]
        assert ongoing["Back-0"] == 1
        waiting = asyncio.ensure_future(kept[1]._answer())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert ongoing["Back-0"] == 1, "it runs still"
        kept[1].cancel()

    with serve.run(apps.Back.bind(), port=None, say=lambda _: None):
        ongoing = routes_of("Back").ongoing
        asyncio.run(main())
        assert soon(lambda: ongoing["Back-0"] == 0)
        late = serve.Handle("Back").remote(0.3)
        with pytest.raises(GetTimeout):
            late.result(0.01)
        assert routes_of("Back").ongoing == {"Back-0": 1}, "it runs still"
        assert soon(lambda: routes_of("Back").ongoing == {"Back-0": 0})


@pytest.mark.usefixtures("cluster")
def test_what_a_method_raises_of_another_actor_is_not_the_death_of_its_replica() -> None:
    with serve.run(apps.Heir.bind(), port=None) as running:
        with pytest.raises(ActorDied, match="not this one"):
            running.handle.remote().result(5)
        assert running.handle.count.remote().result(5) == 1


@pytest.mark.usefixtures("cluster")
def test_a_method_that_exits_fails_its_call_and_no_replica() -> None:
    """It ended one replica after the other, as the call was sent to the next one."""
    with serve.run(apps.Leaves.bind(), port=None) as running:
        handle = running.handle
        pid = handle.pid.remote(_method="a name of the platform's too").result(5)
        for method in (handle.plain, handle.coroutine):
            with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
                method.remote().result(5)
        for method in (handle.parts, handle.async_parts):
            found: list[int] = []
            with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
                found.extend(method.stream())
            with pytest.raises(TypeError, match=r"yields; call \.stream\(\)"):
                method.remote().result(5)
        assert handle.pid.remote(_method="").result(5) == pid


@pytest.mark.usefixtures("cluster")
def test_messages_name_the_method_that_was_called() -> None:
    with serve.run(apps.Back.bind(), port=None) as running:
        with pytest.raises(GetTimeout, match=r"first Back\.__call__, which is with worker"):
            running.handle.remote(1.0).result(0.1)
        with pytest.raises(TypeError, match=r"^Back\.pid \(worker"):
            running.handle.pid.remote(1).result(10)
        with pytest.raises(SerializationError, match=r"an argument of Back\.pid cannot be pickled"):
            running.handle.pid.remote(threading.Lock())
        with pytest.raises(TypeError, match=r"^Back\.ticks \(worker"):
            list(running.handle.ticks.stream(1, 2))


@pytest.mark.usefixtures("cluster")
def test_a_stream_is_read_without_an_event_loop() -> None:
    with serve.run(apps.Scale.bind(1.0), port=None) as running:
        assert list(running.handle.words.stream(3)) == ["0 ", "1 ", "2 "]
        for word in running.handle.words.stream(10**9):
            assert word == "0 "
            break  # which closes it
        assert list(running.handle.words.stream(0)) == []


@pytest.mark.usefixtures("cluster")
def test_a_stream_waits_for_a_deployment_that_is_not_there_yet() -> None:
    found: list[str] = []

    async def read() -> None:
        async for word in serve.Handle("Scale").words.stream(2):
            found.append(word)

    reading = threading.Thread(target=lambda: asyncio.run(read()))
    reading.start()
    time.sleep(0.1)  # it has looked, and there is none
    with serve.run(apps.Scale.bind(1.0), port=None):
        reading.join(10)
        assert found == ["0 ", "1 "]


def test_an_application_whose_cluster_is_gone_is_stopped_at_once() -> None:
    rlplat.init(num_cpus=1)
    running = serve.run(apps.Back.bind(), port=None, say=lambda _: None)
    rlplat.shutdown()
    before = time.monotonic()
    running.stop(20.0)
    assert time.monotonic() - before < 10


def test_a_call_is_not_sent_again_to_a_replica_that_has_ended() -> None:
    routes = Routes(replicas={"m-0": None, "m-1": None})
    assert routes.choose(gone={"m-0"}) == "m-1" and routes.choose(gone={"m-0", "m-1"}) is None


def test_a_handle_that_is_left_over_does_not_make_its_deployment_known() -> None:
    answer = serve.Handle("ended").remote()
    with pytest.raises(Refused, match="no replica of ended is ready"):
        answer.ref()
    del answer
    assert "ended" not in all_routes()


def test_an_answer_is_waited_for_no_longer_than_it_says_where_no_replica_is_ready() -> None:
    before = time.monotonic()
    with pytest.raises(GetTimeout, match=r"no replica of nothing was ready within 0\.2 s"):
        serve.Handle("nothing").remote().result(timeout_s=0.2)
    assert time.monotonic() - before < 5
