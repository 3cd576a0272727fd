"""Simulators that connect: what they send arrives in a vector environment, whatever they do."""

from __future__ import annotations

import contextlib
import json
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

pytest.importorskip("websockets")

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from rlplat.cli import main
from rlplat.errors import ConfigError
from rlplat.rl.envs.external import client, frames, server
from rlplat.rl.envs.external.client import Ended, Refused, Simulator, Simulators
from rlplat.rl.envs.external.server import parse_address
from rlplat.rl.envs.external.spaces_file import make_space, read_spaces
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.interfaces import Episode

VECTOR = {
    "observation": {"box": {"low": -100, "high": 100, "shape": [2]}},
    "action": {"discrete": {"n": 3, "start": 1}},
}
NESTED = {
    "observation": {
        "dict": {
            "robot": {"dict": {"joints": {"box": {"low": [0, 0], "high": [1, 2], "dtype": "float64"}}}},
            "action_mask": {"multi_binary": {"n": 2}},
        }
    },
    "action": {"tuple": [{"discrete": {"n": 2}}, {"box": {"low": -1, "high": 1, "shape": [3]}}]},
}


def obs_of(env: int, time: int) -> np.ndarray:
    return np.array([env, time], np.float32)


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    THREADS.append(threading.Thread(target=run, daemon=True))
    THREADS[-1].start()
    return done


THREADS: list[threading.Thread] = []


class Training:
    """A vector environment in this process, and where it listens."""

    def __init__(self, spaces: Any, num_envs: int) -> None:
        self.env = make_vector_env("external", num_envs, env_kwargs={"spaces": spaces, "listen": ":0"}, seed=7)
        self._listening = threading.Event()
        self.obs = in_thread(self.env.reset)

    @property
    def address(self) -> str:
        while (found := self.env._raw._server) is None:
            assert not self.obs.done()
        address: str = found.address
        return address


@pytest.fixture
def training() -> Iterator[Callable[..., Training]]:
    made: list[Training] = []

    def make(spaces: Any = VECTOR, num_envs: int = 1) -> Training:
        made.append(Training(spaces, num_envs))
        return made[-1]

    yield make
    for each in made:
        each.env.close()
    for thread in THREADS:
        thread.join(10)
    THREADS.clear()


def test_steps_of_several_simulators_arrive_in_their_rows(training: Any) -> None:
    there = training(num_envs=3)
    one, two = Simulator(there.address), Simulators(there.address, 2)
    assert len({*one.seeds, *two.seeds}) == 3, "an environment each has a seed of its own"
    first = in_thread(lambda: one.begin(obs_of(0, 0)))
    second = in_thread(lambda: two.reset(np.stack([obs_of(1, 0), obs_of(2, 0)])))
    assert np.array_equal(there.obs.result(), [[0, 0], [1, 0], [2, 0]])

    stepped = in_thread(lambda: there.env.step(np.array([0, 1, 2])))
    assert first.result() == 1 and np.array_equal(second.result(), [2, 3]), "counted from the space's start"
    in_thread(lambda: one.step(obs_of(0, 1), 0.5, False))
    ended = np.stack([obs_of(1, 9), obs_of(2, 9)])
    in_thread(lambda: two.step(np.stack([obs_of(1, 0), obs_of(2, 1)]), [1, 2], [True, False], [False, False], ended))
    step = stepped.result()
    assert np.array_equal(step.obs, [[0, 1], [1, 0], [2, 1]]) and np.array_equal(step.rewards, [0.5, 1, 2])
    assert np.array_equal(step.terminated, [False, True, False]) and not step.truncated.any() and step.valid.all()
    assert np.array_equal(step.final_obs[1], [1, 9])
    assert there.env.pop_episodes() == [Episode(1.0, 1)]


def test_an_episode_of_one_simulator_ends_with_the_next_ones_beginning(training: Any) -> None:
    there = training()
    one = Simulator(there.address)
    in_thread(lambda: one.begin(obs_of(0, 0)))
    there.obs.result()
    stepped = in_thread(lambda: there.env.step(np.array([0])))
    assert one.step(obs_of(0, 1), 1.0, False, True) is None
    in_thread(lambda: one.begin(obs_of(0, 5)))
    step = stepped.result()
    assert step.truncated[0] and np.array_equal(step.obs, [[0, 5]]) and np.array_equal(step.final_obs, [[0, 1]])


def test_where_a_simulator_is_lost_its_episode_is_cut_and_the_next_takes_its_place(training: Any) -> None:
    there = training()
    lost = Simulator(there.address)
    in_thread(lambda: lost.begin(obs_of(0, 3)))
    there.obs.result()
    stepped = in_thread(lambda: there.env.step(np.array([0])))
    lost.close()
    again = Simulator(there.address)
    in_thread(lambda: again.begin(obs_of(0, 8)))
    step = stepped.result()
    assert step.truncated[0] and not step.terminated[0] and step.rewards[0] == 0
    assert np.array_equal(step.obs, [[0, 8]]) and np.array_equal(step.final_obs, [[0, 3]])


def test_the_client_connects_again_by_itself(training: Any) -> None:
    there = training()
    one = Simulator(there.address)
    first = in_thread(lambda: one.begin(obs_of(0, 0)))
    there.obs.result()
    stepped = in_thread(lambda: there.env.step(np.array([0])))
    first.result()
    one._socket.close_socket()
    following = in_thread(lambda: one.step(obs_of(0, 1), 1.0, False))
    assert stepped.result().truncated[0]
    in_thread(lambda: there.env.step(np.array([2])))
    assert following.result() == 3


def test_nested_spaces_travel_by_path(training: Any) -> None:
    there = training(NESTED)
    one = Simulator(there.address)
    assert one.spaces == NESTED
    seen = {"robot/joints": np.array([0.5, 2.0]), "action_mask": np.array([1, 0], np.int8)}
    action = in_thread(lambda: one.begin(seen))
    obs = there.obs.result()
    assert np.array_equal(obs["robot/joints"], [[0.5, 2.0]]) and np.array_equal(obs["action_mask"], [[True, False]])
    in_thread(lambda: there.env.step(np.array([[1, 0.5, -3, 0]], np.float32)))
    got = action.result()
    assert got["0"] == 1 and np.array_equal(got["1"], np.array([0.5, -1, 0], np.float32))


def test_a_frame_that_does_not_fit_is_refused_by_name_and_harms_nobody(training: Any) -> None:
    there = training(num_envs=2)
    good = Simulator(there.address)
    in_thread(lambda: good.begin(obs_of(0, 0)))
    for obs, message in [
        (np.zeros((1, 3), np.float32), r"obs is float32\[1, 3\]; expected float32\[1, 2\]"),
        (np.zeros((1, 2)), r"obs is float64\[1, 2\]; expected float32\[1, 2\]"),
        (np.full((1, 2), np.nan, np.float32), "obs has NaN or infinite numbers"),
        ({"x": np.zeros((1, 2), np.float32)}, r"obs has the arrays \['x'\]; expected \[''\]"),
    ]:
        with pytest.raises(Refused, match=message):
            Simulators(there.address).reset(obs)
    with pytest.raises(Refused, match=r"num_envs is 3, and the training has 2 environments"):
        Simulators(there.address, 3)
    for sent, message in [
        ("a text", "a frame is a binary message"),
        (b"\xc1", "not a frame of protocol 1"),
        (client.pack({"type": "join", "protocol": 9, "num_envs": 1}), "protocol 9 is asked for"),
        (client.pack({"type": "reset", "obs": {}}), "the first frame of a simulator is join"),
    ]:
        with connect(there.address) as socket:
            assert client.unpack(socket.recv())["type"] == "welcome"
            socket.send(sent)
            assert message in client.unpack(socket.recv())["message"]
    last = Simulators(there.address)
    in_thread(lambda: last.reset(obs_of(1, 0)[None]))
    assert np.array_equal(there.obs.result(), [[0, 0], [1, 0]])


def test_a_full_training_refuses_with_the_reason(training: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "JOIN_PATIENCE_S", 0.01)
    there = training()
    with Simulator(there.address), pytest.raises(Refused, match="0 of 1 environments are free"):
        Simulator(there.address)


def test_the_end_of_the_training_is_told(training: Any) -> None:
    there = training()
    one = Simulator(there.address)
    action = in_thread(lambda: one.begin(obs_of(0, 0)))
    there.obs.result()
    there.env.close()
    with pytest.raises(Ended, match="the training has ended"):
        action.result()
    with pytest.raises(Ended, match="no training answers"):
        Simulator(there.address, patience_s=0.01)


def test_other_machines_need_the_token(training: Any, monkeypatch: Any) -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:0 lets other machines in.*RLPLAT_EXTERNAL_TOKEN"):
        server.SimulatorServer("0.0.0.0:0", VECTOR, {}, [0])
    monkeypatch.setenv("RLPLAT_EXTERNAL_TOKEN", "swordfish")
    there = training()
    with pytest.raises(Refused, match="wrong or no token"):
        Simulator(there.address, token="cod")
    Simulator(there.address).close()


def test_a_web_page_cannot_join(training: Any) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    there = training()
    port = there.address.rpartition(":")[2]
    for headers, origin in ({}, "http://evil.example"), ({"Host": f"evil.example:{port}"}, None):
        with pytest.raises(InvalidStatus) as caught:
            connect(there.address, origin=origin, additional_headers=headers)
        assert caught.value.response.status_code in (403, 421)
    Simulator(there.address).close()


def test_a_port_that_is_taken_is_named(training: Any) -> None:
    there = training()
    port = there.address.rpartition(":")[2]
    with pytest.raises(ConfigError, match=f"nothing can listen at :{port}: .*take another port"):
        server.SimulatorServer(f":{port}", VECTOR, {}, [0])


@pytest.mark.parametrize("listen", ["9900", ":x", ":99999", ""])
def test_wrong_addresses_are_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="give a port, such as :9900"):
        parse_address(listen)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("observation: {box: {low: 0, high: 1, shape: [2]}}", "has to have the keys observation and action"),
        ("observation: {bax: {}}\naction: {discrete: {n: 2}}", "observation is .*it is one of box:"),
        (
            "observation: {discrete: {n: 2}}\naction: {discrete: {m: 2}}",
            "action: discrete .*unexpected keyword",
        ),
        (
            "observation: {tuple: [{discrete: {n: 0}}]}\naction: {discrete: {n: 2}}",
            r"observation\.0: discrete",
        ),
    ],
)
def test_a_wrong_file_of_spaces_is_one_message(text: str, message: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "spaces.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_spaces(str(file))
    assert main(["train", "--algo", "ppo", "--env", "external", "--spaces", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


def test_the_command_says_which_flags_belong_together(tmp_path: Path, capsys: Any) -> None:
    assert main(["train", "--algo", "ppo", "--env", "external"]) == 2
    assert "--env external needs --spaces FILE" in capsys.readouterr().err
    assert main(["train", "--algo", "ppo", "--env", "CartPole-v1", "--listen", ":1"]) == 2
    assert "go with --env external" in capsys.readouterr().err
    file = tmp_path / "spaces.yaml"
    file.write_text("observation: {discrete: {n: 2}}\naction: {discrete: {n: 2}}")
    several = ["--spaces", str(file), "--num-rollout-workers", "2"]
    assert main(["train", "--algo", "ppo", "--env", "external", *several]) == 2
    assert "num_rollout_workers=2 with env external: one process listens" in capsys.readouterr().err


def test_spaces_of_a_file_are_gymnasiums() -> None:
    box = make_space({"box": {"low": 0, "high": 255, "shape": [8, 8, 3], "dtype": "uint8"}}, "x")
    assert box.dtype == np.uint8 and box.shape == (8, 8, 3) and box.high.max() == 255
    open_end = make_space({"box": {"low": [None, None], "high": [1, None]}}, "x")
    assert open_end.low.tolist() == [-np.inf] * 2 and open_end.high.tolist() == [1, np.inf], "a resumed run's file"
    assert make_space({"multi_discrete": {"nvec": [2, 3]}}, "x").nvec.tolist() == [2, 3]


CONFORMANCE = json.loads((Path(__file__).parent / "frames.json").read_text())


@pytest.mark.parametrize("case", CONFORMANCE, ids=lambda case: case["name"])
def test_frames_are_the_documented_bytes(case: dict[str, Any]) -> None:
    """Both writers and both readers, and what other languages are to reproduce."""
    data = bytes.fromhex(case["hex"])
    value = client.unpack(data)
    assert msgspec.msgpack.decode(data) == value and client.pack(value) == data
    assert plain(value) == case["frame"]
    if case["from"] == "simulator":
        frames.decode(data)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value.hex() if isinstance(value, bytes) else [plain(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "value", [None, True, -1, 0, 127, 128, -(2**40), 2**63 - 1, 0.5, "é" * 40, b"x" * 300, [1] * 20]
)
def test_the_clients_reader_takes_what_any_writer_writes(value: Any) -> None:
    for wrapped in (value, {"k": value}, [value] * 3):
        assert client.unpack(msgspec.msgpack.encode(wrapped)) == wrapped == client.unpack(client.pack(wrapped))
    with pytest.raises((ValueError, IndexError, struct.error)):
        client.unpack(client.pack({"k": value})[:-1])


def test_step_before_reset_is_refused_in_words(training: Callable[..., Training]) -> None:
    with connect(training().address) as socket:
        socket.recv()
        socket.send(frames.encode("join", protocol=frames.PROTOCOL, num_envs=1))
        socket.recv()
        rows = {name: frames.pack_array(np.zeros(1, dtype)) for name, dtype in
                (("rewards", np.float32), ("terminated", np.bool_), ("truncated", np.bool_))}  # fmt: skip
        socket.send(frames.encode("step", obs={"": frames.pack_array(np.zeros((1, 2), np.float32))}, **rows))
        said = msgspec.msgpack.decode(socket.recv())
    assert said == {"type": "error", "message": "reset is the first frame after join, and this is step"}


def test_frames_before_join_take_no_memory(training: Callable[..., Training]) -> None:
    """Each connection would have held 16 frames of 256 MiB unasked."""
    address, process = training().address, psutil.Process()
    before = process.memory_info().rss
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(connect(address)) for _ in range(33)]
        for socket in sockets:
            socket.recv()
        with pytest.raises(InvalidStatus, match="503"), connect(address):
            pass
        for socket in sockets:
            with contextlib.suppress(ConnectionClosed):
                socket.send([b"\0" * (1 << 20)] * 8)  # one message in fragments
        for socket in sockets:
            with pytest.raises(ConnectionClosed, match="1009"):
                socket.recv(timeout=30)
    assert process.memory_info().rss - before < 128 << 20


def test_one_that_never_joins_and_one_that_falls_silent_are_named_and_leave_their_place(
    training: Callable[..., Training], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "JOIN_S", 0.2)
    monkeypatch.setattr(server, "SILENT_S", 0.4)
    address = training().address
    with connect(address) as mute, connect(address) as sleeping:
        mute.recv(), sleeping.recv()
        sleeping.send(frames.encode("join", protocol=frames.PROTOCOL, num_envs=1))
        assert msgspec.msgpack.decode(sleeping.recv())["type"] == "joined"
        for socket, seconds in ((mute, 0.2), (sleeping, 0.4)):
            text = msgspec.msgpack.decode(socket.recv(timeout=30))["message"]
            assert text.startswith(f"nothing was sent for {seconds:g} s")
    with connect(address) as third:
        third.recv()
        third.send(frames.encode("join", protocol=frames.PROTOCOL, num_envs=1))
        assert msgspec.msgpack.decode(third.recv())["type"] == "joined"
    assert caplog.text.count("is refused: nothing was sent") == 2


@pytest.mark.parametrize(
    "data",
    [b"", b"\xa2\xff\xfe", b"\x81\xa4type\xa1\xff", b"\x91" * 200_000, b"\xc1", "text", b"\x01", b"\x80"],
)
def test_bytes_that_are_no_frame_are_refused_as_one(data: bytes | str) -> None:
    with pytest.raises(frames.BadFrame, match="frame"):
        frames.decode(data)
