"""The only door to ZeroMQ: order, coalescing, both directions, garbage and the dead."""

from __future__ import annotations

import os
import random
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from rlplat.runtime.link import transport
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.values import Value
from tests.patience import soon


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Transport]]:
    made: list[Transport] = []

    def make_one(client_id: str) -> Transport:
        made.append(Transport(str(tmp_path), client_id))
        return made[-1]

    yield make_one
    for each in made:
        each.close()


def receive(transport: Transport, count: int) -> list[tuple[str, Any]]:
    """Messages with their senders, as they come."""
    out: list[tuple[str, Any]] = []
    while len(out) < count:
        for sender, batch in transport.receive():
            out += [(sender, message) for message in batch]
        if len(out) < count:
            # libzmq's descriptor signals once for many messages: look again now and then.
            select.select([transport.fd], [], [], 0.01)
    return out


def done(n: int) -> messages.Done:
    return messages.Done([n], [b""])


def test_messages_to_a_peer_keep_their_order(make: Callable[[str], Transport]) -> None:
    a, b = make("w1"), make("w2")
    for n in range(1000):
        a.post("w2", done(n))
        if n % 7 == 0:
            a.flush()
    a.flush()
    assert receive(b, 1000) == [("w1", done(n)) for n in range(1000)]


def test_a_folder_with_a_longer_path_than_sockets_may_have(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    num_descriptors = len(os.listdir("/proc/self/fd"))
    a, b = Transport(str(folder), "w1"), Transport(str(folder), "w2")
    for sender, receiver, name in ((a, b, "w2"), (b, a, "w1")):
        sender.post(name, done(7))
        sender.flush()
        assert [message for _, message in receive(receiver, 1)] == [done(7)]
    a.close()
    b.close()
    assert len(os.listdir("/proc/self/fd")) == num_descriptors


def test_nothing_leaves_before_the_flush_and_then_as_one_frame(make: Callable[[str], Transport]) -> None:
    a, b = make("w1"), make("w2")
    assert [a.post("w2", done(n)) for n in range(3)] == [1, 2, 3]
    assert a.num_unsent == 3
    a.flush()
    assert a.num_unsent == 0
    batches: list[Any] = []
    while not batches:
        batches = list(b.receive())
        select.select([b.fd], [], [], 0.01)
    assert batches == [("w1", [done(0), done(1), done(2)])]


def frames_of(receiver: Transport, num_messages: int) -> list[list[Any]]:
    got: list[list[Any]] = []

    def are_here() -> bool:
        got.extend(batch for _, batch in receiver.receive())
        return sum(map(len, got)) >= num_messages

    assert soon(are_here, within_s=10), f"{sum(map(len, got))} of {num_messages} messages have come"
    return got


def test_a_long_outbox_leaves_as_several_frames(
    make: Callable[[str], Transport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver refuses one that is too long, and nobody hears of it."""
    monkeypatch.setattr(transport, "_MAX_FRAME_BYTES", 10_000)
    monkeypatch.setattr(transport, "_FRAME_BYTES", 2_000)
    a, b = make("w1"), make("w2")
    sent = [messages.Item(n, n, Value(b"x" * (3_000 if n % 50 == 7 else n % 90))) for n in range(500)]
    a.post_all("w2", sent)
    a.flush()
    assert a.num_unsent == 0
    got = frames_of(b, 500)
    assert [message for batch in got for message in batch] == sent
    assert all(len(messages.encode(batch)) <= 2_000 or len(batch) == 1 for batch in got)
    assert len(got) < 100


def test_very_many_messages_leave_as_several_frames(make: Callable[[str], Transport]) -> None:
    a, b = make("w1"), make("w2")
    a.post_all("w2", [done(n) for n in range(5_000)])
    for n in range(5_000, 10_000):
        a.post_result("w2", n, b"")
    a.flush()
    got = frames_of(b, 5_004)
    tasks = [task for batch in got for message in batch for task in message.tasks]
    assert tasks == list(range(10_000))
    assert max(map(len, got)) <= 1024
    assert max(len(message.tasks) for batch in got for message in batch) <= 1024


@pytest.mark.usefixtures("may_drop")
def test_a_message_that_is_too_long_for_any_frame_is_dropped_aloud(
    make: Callable[[str], Transport], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transport, "_MAX_FRAME_BYTES", 10_000)
    monkeypatch.setattr(transport, "_FRAME_BYTES", 2_000)
    a, b = make("w1"), make("w2")
    for message in (done(1), messages.Done([2], [b"x" * 10_000]), done(3)):
        a.post("w2", message)
    a.flush()
    a.post("w2", done(4))
    a.flush()
    assert receive(b, 3) == [("w1", done(n)) for n in (1, 3, 4)]
    assert "w1 dropped a Done to 'w2': it is 10,0" in capfd.readouterr().err


def test_two_peers_may_connect_to_each_other_at_once(make: Callable[[str], Transport]) -> None:
    a, b = make("w1"), make("w2")
    for n in range(50):
        a.post("w2", done(n))
        b.post("w1", done(100 + n))
        a.flush()
        b.flush()
    assert receive(b, 50) == [("w1", done(n)) for n in range(50)]
    assert receive(a, 50) == [("w2", done(100 + n)) for n in range(50)]


def test_frames_of_every_size_in_all_directions(make: Callable[[str], Transport]) -> None:
    chooser = random.Random(5)
    ends = {name: make(name) for name in ("driver", "w1", "w2")}
    sent: dict[tuple[str, str], list[Any]] = {}
    for _ in range(600):
        sender, receiver = chooser.sample(sorted(ends), 2)
        # A length takes one byte more from 256 and from 65,536 on, for the message as well as for its frame.
        size = max(0, chooser.choice([0, 24, 256, 8192, 65_536, 1 << 17]) + chooser.randrange(-40, 41))
        task, data = (
            chooser.choice([1, 127, 128, 255, 65_535, 1 << 32, (1 << 62) - 1]),
            chooser.randbytes(size),
        )
        messages_now = [messages.Done([task], [data]), messages.Item(task, size, Value(data))]
        if chooser.random() < 0.5:
            ends[sender].post_all(receiver, messages_now)
        else:
            for message in messages_now:
                ends[sender].post(receiver, message)
        sent.setdefault((sender, receiver), []).extend(messages_now)
        if chooser.random() < 0.4:
            ends[sender].flush()
    for end in ends.values():
        end.flush()
    for receiver, end in ends.items():
        expected = {pair: batch for pair, batch in sent.items() if pair[1] == receiver}
        got: dict[tuple[str, str], list[Any]] = {}
        for sender, message in receive(end, sum(map(len, expected.values()))):
            got.setdefault((sender, receiver), []).append(message)
        assert got == expected


def test_a_reply_goes_back_on_the_connection_it_came_by(make: Callable[[str], Transport]) -> None:
    a, b = make("driver"), make("w1")
    a.post("w1", done(1))
    a.flush()
    receive(b, 1)
    assert b.label("driver") == b"driver>"
    b.post("driver", done(2))
    b.flush()
    assert receive(a, 1) == [("w1", done(2))]


def test_a_peer_that_does_not_exist_yet_gets_its_messages_later(make: Callable[[str], Transport]) -> None:
    a = make("driver")
    a.post("w9", done(1))
    a.flush()
    assert receive(make("w9"), 1) == [("driver", done(1))]


def test_a_dead_peer_is_forgotten_with_what_was_meant_for_it(make: Callable[[str], Transport]) -> None:
    a, b = make("driver"), make("w1")
    a.post("w1", done(1))
    a.flush()
    receive(b, 1)
    b.close = lambda linger_s=0: None  # type: ignore[method-assign]
    Transport.close(b)
    a.post("w1", done(2))
    a.forget("w1")
    a.forget("w1")
    assert a.num_unsent == 0
    a.flush()


@pytest.mark.usefixtures("may_drop")
def test_a_message_that_cannot_be_encoded_takes_no_other_with_it(
    make: Callable[[str], Transport], capfd: pytest.CaptureFixture[str]
) -> None:
    a, b, c = make("w1"), make("w2"), make("w3")
    a.post("w2", done(1))
    a.post("w2", messages.Pace("\udcff", 1.0))  # text that is not UTF-8
    a.post("w2", messages.MakeRoom(2**70))
    a.post("w2", done(2))
    a.post("w3", done(3))
    a.flush()
    assert a.num_unsent == 0
    a.post("w2", done(4))
    a.flush()
    assert receive(b, 3) == [("w1", done(n)) for n in (1, 2, 4)]
    assert receive(c, 1) == [("w1", done(3))]
    said = capfd.readouterr().err
    assert "w1 dropped a Pace to 'w2': UnicodeEncodeError" in said
    assert "w1 dropped a MakeRoom to 'w2': OverflowError" in said


@pytest.mark.usefixtures("may_drop")
def test_a_reply_that_cannot_be_encoded_does_not_leave_its_label_alone(
    make: Callable[[str], Transport],
) -> None:
    a, b = make("w1"), make("w2")
    b.post("w1", done(1))
    b.flush()
    receive(a, 1)
    a.reply_once("w2", messages.Report(1, error="\udcff"))
    a.reply_once("w2", messages.Report(2))
    a.post("w2", done(2))
    a.flush()
    heard = receive(b, 2)  # by two connections, in any order
    assert ("w1", messages.Report(2)) in heard and ("w1", done(2)) in heard


@pytest.mark.parametrize("connects", ["driver", "w1"])
def test_late_frames_of_the_dead_are_dropped(make: Callable[[str], Transport], connects: str) -> None:
    """Whoever of the two has connected; and what others say behind them is heard."""
    a, b = make("driver"), make("w1")
    if connects == "driver":
        a.post("w1", done(1))
        a.flush()
        receive(b, 1)
    b.post("driver", done(2))
    b.flush()
    receive(a, 1)
    b.post("driver", done(3))
    b.flush()
    assert soon(a.has_input)
    a.forget("w1")
    assert list(a.receive()) == []
    assert not a.has_input()
    c = make("w2")
    c.post("driver", done(4))
    c.flush()
    assert receive(a, 1) == [("w2", done(4))]


@pytest.mark.usefixtures("may_drop")
def test_garbage_is_dropped_and_the_honest_are_heard(make: Callable[[str], Transport], tmp_path: Path) -> None:
    a, b = make("driver"), make("w1")
    context = zmq.Context()
    intruder = context.socket(zmq.DEALER)
    intruder.setsockopt(zmq.LINGER, 0)
    intruder.setsockopt(zmq.ROUTING_ID, b"intruder>")
    intruder.connect(f"ipc://{tmp_path / 'driver'}")
    for frames in (
        [b"noise"],
        [b"a", b"b", b"c"],
        [b""],
        [messages.encode([done(1)]), b"tail"],
        [b"\x91" * 10_000],
    ):
        intruder.send_multipart(frames)
    intruder.send(messages.encode([done(7)]))
    assert receive(a, 2) == [("intruder", done(1)), ("intruder", done(7))]  # the tail of one is dropped
    b.post("driver", done(8))
    b.flush()
    assert receive(a, 1) == [("w1", done(8))]
    intruder.close()
    context.term()


@pytest.mark.usefixtures("may_drop")
@pytest.mark.parametrize("tail", [b"", b"w1>", b"w2>", b"node>"])
def test_a_tail_behind_a_frame_is_never_a_label(make: Callable[[str], Transport], tmp_path: Path, tail: bytes) -> None:
    """Not when there is a further part behind it either, which would be a frame of that name."""
    a, b = make("driver"), make("w1")
    context = zmq.Context()
    intruder = context.socket(zmq.DEALER)
    intruder.setsockopt(zmq.LINGER, 0)
    intruder.setsockopt(zmq.ROUTING_ID, b"w2>")
    intruder.connect(f"ipc://{tmp_path / 'driver'}")
    intruder.send_multipart([messages.encode([done(1)]), tail])
    intruder.send_multipart([messages.encode([done(2)]), tail, messages.encode([done(3)])])
    intruder.send(messages.encode([done(4)]))
    assert receive(a, 3) == [("w2", done(1)), ("w2", done(2)), ("w2", done(4))]
    assert a.dropped.count == 2
    b.post("driver", done(5))
    b.flush()
    assert receive(a, 1) == [("w1", done(5))]
    intruder.close()
    context.term()


@pytest.mark.usefixtures("may_drop")
@pytest.mark.parametrize("peer", ["", "x" * 300, "../w1", "a\0b", "W1"])
def test_what_is_for_nobody_goes_nowhere(make: Callable[[str], Transport], peer: str) -> None:
    a = make("driver")
    a.post(peer, done(1))
    a.flush()
    assert a.num_unsent == 0
    assert a.dropped.count == 1


@pytest.mark.usefixtures("may_drop")
def test_a_name_that_is_no_text_harms_nobody(make: Callable[[str], Transport], tmp_path: Path) -> None:
    a = make("driver")
    context = zmq.Context()
    intruder = context.socket(zmq.DEALER)
    intruder.setsockopt(zmq.LINGER, 0)
    intruder.setsockopt(zmq.ROUTING_ID, b"\xff\xfe>")
    intruder.connect(f"ipc://{tmp_path / 'driver'}")
    intruder.send(messages.encode([done(1)]))
    b = make("w1")
    b.post("driver", done(8))
    b.flush()
    heard: list[Any] = []
    while ("w1", done(8)) not in heard:
        heard += receive(a, 1)
    intruder.close()
    context.term()


@pytest.mark.parametrize("who_connected", ["we", "they", "nobody"])
def test_what_is_posted_to_a_forgotten_peer_is_dropped(make: Callable[[str], Transport], who_connected: str) -> None:
    """Connecting to it again, under the label of a connection that is still ending, would abort the process."""
    a, b, other = make("w1"), make("w2"), make("w3")
    if who_connected == "we":
        a.post("w2", done(1))
        a.flush()
        receive(b, 1)
    elif who_connected == "they":
        b.post("w1", done(1))
        b.flush()
        receive(a, 1)
    for n in range(3):
        a.forget("w2")
        a.post("w2", done(n))
        a.post("w3", done(n))
        a.flush()
        assert a.num_unsent == 0
    assert receive(other, 3) == [("w1", done(n)) for n in range(3)]
    assert list(b.receive()) == []
