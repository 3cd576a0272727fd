"""Messages of every kind with random fields: each is handled or dropped, and no process ends of one."""

from __future__ import annotations

import os
import pickle
import random
import time
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest
import zmq

import rlplat
from rlplat.runtime import refs
from rlplat.runtime.machine.session import WORKER_MARK
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.values import Value
from tests.patience import soon

KINDS = messages.KINDS
_INTS = (0, 1, -1, 2, 3, 7, 2**31, 2**40, -(2**63), 2**63 - 1)
_FLOATS = (0.0, 1.0, -1.0, 0.5, 1e300, float("nan"), float("inf"))
_NAMES = ("driver", "node", "w1", "w2", "w3", "w90001", "cli-1-1")
_STRINGS = (
    "", *_NAMES, "driver:1", "driver:2", "w1:3", "w1:\u00b2", "x" * 300, "../../x", "/", "a\0b", "s-driver-1", "s-w1-1",
    "s-../x", "s-" + "x" * 300, "CPU", "GPU", "PACK", "node:node", "tasks", "stacks", "__init__", "__ray_terminate__",
    "[]", "{}", '{"pip": 3}', "\udcff".encode("utf-8", "replace").decode(),
)  # fmt: skip
_BYTES = (b"", b"x" * 10, pickle.dumps(None), pickle.dumps(((), {})), pickle.dumps(3), b"\x80\x05.")


class Maker:
    """Random values of a type, as the decoder would accept them."""

    def __init__(self, seed: int, strings: tuple[str, ...] = ()) -> None:
        self.random = random.Random(seed)
        self._strings = (*_STRINGS, *strings)

    def message(self, kind: Any) -> Any:
        hints = typing.get_type_hints(kind)
        fields = msgspec.structs.fields(kind)
        return kind(**{field.name: self.value(hints[field.name]) for field in fields})

    def value(self, kind: Any, depth: int = 0) -> Any:
        pick, origin, args = self.random.choice, get_origin(kind), get_args(kind)
        if kind is int:
            return pick(_INTS)
        if kind is float:
            return pick(_FLOATS)
        if kind is str:
            return pick(self._strings)
        if kind is bytes:
            return pick(_BYTES)
        if kind is bool:
            return pick((True, False))
        if kind is type(None):
            return None
        if kind is Any:
            return pick((None, 1, "x", [], {}))
        if origin in (Union, types.UnionType):
            return self.value(pick(args), depth)
        if origin is tuple and args[-1] is not Ellipsis:
            return tuple(self.value(each, depth + 1) for each in args)
        num = 0 if depth > 3 else self.random.randrange(4)
        if origin in (list, tuple):
            return origin(self.value(args[0], depth + 1) for _ in range(num))
        if origin is dict:
            return {self.value(args[0], depth + 1): self.value(args[1], depth + 1) for _ in range(num)}
        hints = typing.get_type_hints(kind)
        fields = msgspec.structs.fields(kind)
        return kind(**{field.name: self.value(hints[field.name], depth + 1) for field in fields})


class Stranger:
    """A process of the same user that found the sockets: it says what it likes."""

    def __init__(self, session: Path, label: bytes) -> None:
        self._session, self._label = session, label
        self._context = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}

    def send(self, to: str, *parts: bytes) -> None:
        if to not in self._sockets:
            socket = self._sockets[to] = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.ROUTING_ID, self._label)
            socket.connect(f"ipc://{self._session / to}")
        self._sockets[to].send_multipart(parts)

    def is_answered(self, to: str, question: Any, answer: type) -> bool:
        """So everything that was sent before is handled."""
        self.send(to, messages.encode([question]))
        while self._sockets[to].poll(20_000):
            if any(type(message) is answer for message in messages.decode(self._sockets[to].recv())):
                return True
        return False

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close(linger=1000)
        self._context.term()


class Plain:
    def where(self) -> tuple[str, int]:
        return os.environ[WORKER_MARK], os.getpid()


class Coroutines:
    async def where(self) -> tuple[str, int]:
        return os.environ[WORKER_MARK], os.getpid()


@rlplat.remote
def where() -> tuple[str, int]:
    return os.environ[WORKER_MARK], os.getpid()


class Town:
    """A cluster with an actor of every kind, and what shows that all of its processes live."""

    def __init__(self) -> None:
        make = rlplat.remote(num_cpus=0)
        kinds = [make(Plain), make(Plain).options(max_concurrency=2), make(Coroutines)]
        self.actors = [kind.remote() for kind in kinds]
        self.client: Any = refs.backend()
        self.session = Path(self.client.link.session)
        self.workers = dict(rlplat.get([*(actor.where.remote() for actor in self.actors), where.remote()]))
        """Pids."""

    def everybody(self) -> list[str]:
        return ["driver", "node", *self.workers]

    def strings(self) -> tuple[str, ...]:
        """Names that mean something here."""
        return (where._code.key or "",)

    def num_dropped(self) -> int:
        """By the driver."""
        return int(self.client.link.transport.dropped.count)

    def check(self) -> None:
        """All processes live, and new ones can be had. (An actor may wait for an argument that a stranger owns.)"""
        assert self.client.link.loop.failure is None
        assert self.client._node.poll() is None
        for pid in self.workers.values():
            os.kill(pid, 0)
        name, _ = rlplat.get(rlplat.remote(num_cpus=0)(Plain).remote().where.remote(), timeout=20)
        assert name not in self.workers


@pytest.fixture
def town(may_drop: None) -> Iterator[Town]:
    rlplat.init(num_cpus=2, num_gpus=0, log_to_driver=False)
    yield Town()
    rlplat.shutdown()


@pytest.mark.process
def test_no_message_ends_a_process(town: Town) -> None:
    """(One cluster for all of it.)"""
    _a_stranger_says_everything_to_everybody(town, b"w90001>", messages.Fetch(424242), messages.Fetched)
    _a_stranger_says_everything_to_everybody(town, b"cli-7-7>", messages.Inspect(1, "spans", 1), messages.Report)
    _a_stranger_says_everything_to_everybody(town, b"node>", None, None)
    _a_stranger_says_everything_to_everybody(town, b"driver>", None, None)
    _tails_are_nobody_s_messages(town)
    _who_has_no_name_is_not_heard(town)
    _refs_to_objects_of_the_nameless_are_harmless(town)
    _the_driver_says_everything_to_the_node_and_the_workers(town)
    _the_node_and_the_workers_say_everything_to_the_driver(town)


def _a_stranger_says_everything_to_everybody(town: Town, label: bytes, question: Any, answer: Any) -> None:
    maker, stranger = Maker(1, town.strings()), Stranger(town.session, label)
    for to in town.everybody():
        for _ in range(3):
            for kind in KINDS:
                stranger.send(to, messages.encode([maker.message(kind)]))
        if answer is messages.Report or (answer is not None and to != "node"):
            assert stranger.is_answered(to, question, answer), f"{to} does not answer {label!r}"
    stranger.close()
    town.check()


def _tails_are_nobody_s_messages(town: Town) -> None:
    stranger, asker = Stranger(town.session, b"w90002>"), Stranger(town.session, b"cli-8-8>")
    frame, before = messages.encode([messages.Pace("no code", 1.0)]), town.num_dropped()
    for to in town.everybody():
        for tail in (b"", b"w1>", b"node>", b"driver>", b"x" * 300):
            for who in (stranger, asker):
                who.send(to, frame, tail)
                who.send(to, frame, tail, frame)
        assert asker.is_answered(to, messages.Inspect(1, "spans", 1), messages.Report)
    assert town.num_dropped() >= before + 10
    assert "w1" not in town.client.calls._pace
    stranger.close()
    asker.close()
    town.check()


def _who_has_no_name_is_not_heard(town: Town) -> None:
    for label in (b"x" * 250 + b">", b">", b"../x>", b"\xff\xfe>", b"w99995", b"w5>>", b"W5>"):
        stranger, before = Stranger(town.session, label), town.num_dropped()
        for to in town.everybody():
            stranger.send(to, messages.encode([messages.Fetch(1)]))
        assert soon(lambda before=before: town.num_dropped() > before), label  # type: ignore[misc]
        stranger.close()
    town.check()


def _refs_to_objects_of_the_nameless_are_harmless(town: Town) -> None:
    stranger = Stranger(town.session, b"w90003>")
    for client_id in ("", "x" * 300, "../x", "a\0b"):
        value = Value(pickle.dumps(None), None, [(client_id, 1)])
        for to in town.everybody():
            stranger.send(to, messages.encode([messages.Fetched(1, value), messages.Lent(1, client_id, 1)]))
            if to != "node":
                assert stranger.is_answered(to, messages.Fetch(424242), messages.Fetched)
    stranger.close()
    town.check()


def _the_driver_says_everything_to_the_node_and_the_workers(town: Town) -> None:
    """As one of another version might. (What ends a process when it is said of a real one names none here.)"""
    maker, client = Maker(2), town.client
    for to in town.everybody():
        for _ in range(4 if to != "driver" else 0):
            for kind in KINDS:
                message = maker.message(kind)
                if kind in (messages.KillWorker, messages.EndActor, messages.ReturnLease):
                    message = msgspec.structs.replace(message, **{kind.__struct_fields__[0]: "w90001"})
                with client.link.lock:
                    client.link.transport.post(to, message)
                    client.link.loop.send_now()
        town.check()


def _the_node_and_the_workers_say_everything_to_the_driver(town: Town) -> None:
    """Whatever the driver comes to believe, it goes on. (The last: it may believe that its workers are dead.)"""
    maker, client, before = Maker(3, town.strings()), town.client, town.num_dropped()
    for sender in ("w1", "w2", "w3", "node"):
        for _ in range(4):
            for kind in KINDS:
                with client.link.lock:
                    client.link.transport.dropped.deliver(sender, [maker.message(kind)], client.link.handlers.get)
                    client.calls.go_on()
                    client.link.chores.next_s()
                    client.link.chores.run_due()
    assert town.num_dropped() > before
    assert client.link.loop.failure is None


@pytest.mark.usefixtures("cluster")
def test_tasks_are_given_back_by_the_worker_that_has_them_only(tmp_path: Path) -> None:
    """A stranger's word neither takes back what was lent with them, nor ends those that are being cancelled."""
    client: Any = refs.backend()

    @rlplat.remote(max_retries=0)
    def wait(box: list[Any]) -> int:
        (tmp_path / "began").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return int(rlplat.get(box[0]))

    inner = rlplat.put(7)
    result = wait.remote([inner])
    assert soon((tmp_path / "began").exists)
    with client.link.lock:
        before = client.objects.book.find(inner.id).num_lent()
        client.link.transport.dropped.deliver("w90001", [messages.GaveBack([result.id])], client.link.handlers.get)
        assert client.objects.book.find(inner.id).num_lent() == before
    (tmp_path / "go").touch()
    assert rlplat.get(result, timeout=60) == 7
