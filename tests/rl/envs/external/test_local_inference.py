"""Simulators that act by themselves: fragments arrive whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("websockets")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from websockets.sync.client import connect

from rlplat.cli import main
from rlplat.errors import ConfigError
from rlplat.rl.envs.external import client, frames
from rlplat.rl.envs.external.client import Ended, LocalPolicy, Refused, Simulator, Simulators
from rlplat.rl.envs.external.frames import BadFrame
from rlplat.rl.envs.external.server import FragmentServer
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.interfaces import Episode
from rlplat.rl.sampling.recorders import make_recorder
from rlplat.rl.sampling.simulator_rollouts import SimulatorRollouts
from tests.rl.envs.external.local_policy import RECORDED, policy_file, policy_frame, read
from tests.rl.envs.external.test_external import THREADS, VECTOR, in_thread, obs_of

LEAVES: frames.Leaves = {"": ("float32", (2,))}


@pytest.fixture
def served() -> Iterator[Any]:
    made: list[FragmentServer] = []

    def make(num_envs: int = 1, *, num_steps: int = 2, ahead: int = 0) -> FragmentServer:
        made.append(FragmentServer(":0", VECTOR, LEAVES, [*range(num_envs)], num_steps=num_steps, ahead=ahead))
        return made[-1]

    yield make
    for each in made:
        each.close()
    for thread in THREADS:
        thread.join(10)
    THREADS.clear()


def local(num_envs: int = 1, *, num_steps: int = 3, **policy: Any) -> LocalPolicy:
    made = LocalPolicy(num_envs, seed=1)
    made.use(policy_frame(num_steps, onnx_bytes=policy_file(**policy)))
    return made


def test_a_fragment_holds_every_step_in_order() -> None:
    there = local(2, num_steps=3)
    obs = np.array([[0, 1], [1, 2]], np.float32)
    assert np.array_equal(there.act(obs)[""], [0, 1])
    last = np.array([[9, 9], [8, 8]], np.float32)
    assert there.answered(obs, [1, 2], [True, False], [True, True], last) is None
    obs[:] = 5  # a simulator may write into the same memory
    there.act(obs)
    assert there.answered(obs, [3, 4], [False, False], [False, False], None) is None
    there.act(obs)
    frame = there.answered(obs, [5, 6], [False, True], [False, False], last)
    assert frame is not None and frame["continues"] is False
    [first, second] = frames.read_fragment(
        frames.decode(client.pack(frame)),
        LEAVES,
        RECORDED,
        3,
        2,  # type: ignore[arg-type]
    )
    assert first.obs[""].tolist() == [[0, 1], [5, 5], [5, 5]] and first.next_obs[""].tolist() == [5, 5]
    assert first.outputs["policy_action"].tolist() == [0, 5, 5]
    assert first.outputs["value"].tolist() == [1, 5, 5] and first.outputs["log_prob"].tolist() == [-1, -5, -5]
    assert first.rewards.tolist() == [1, 3, 5] and second.rewards.tolist() == [2, 4, 6]
    assert first.terminated.tolist() == [True, False, False] and not first.truncated.any(), "it terminated"
    assert second.truncated.tolist() == [True, False, False] and second.final_obs[""].tolist() == [[8, 8]]
    assert not len(first.final_obs[""])


def test_episodes_that_begin_anew_are_cut_at_what_was_seen_last() -> None:
    there = local(num_steps=2)
    there.act(obs_of(0, 0)[None])
    there.answered(obs_of(0, 1)[None], [1], [False], [False], None)
    there.act(obs_of(0, 1)[None])
    there.cut()
    there.act(obs_of(1, 0)[None])
    frame = there.answered(obs_of(1, 1)[None], [2], [False], [False], None)
    assert frame is not None
    assert read(frame["truncated"]).tolist() == [[True], [False]]
    assert read(frame["final_obs"][""]).tolist() == [[0, 1]]
    assert read(frame["obs"][""]).tolist() == [[[0, 0]], [[1, 0]]] and read(frame["rewards"]).tolist() == [
        [1],
        [2],
    ]
    there.use(policy_frame(1, version=1))
    there.act(obs_of(1, 1)[None])
    there.cut()  # nothing of this fragment has an outcome: the next one does not follow the last
    there.act(obs_of(2, 0)[None])
    frame = there.answered(obs_of(2, 1)[None], [2], [False], [False], None)
    assert frame is not None and frame["continues"] is False and not read(frame["truncated"]).any()


def test_a_core_is_zero_where_episodes_begin() -> None:
    there = LocalPolicy(2, seed=1)
    record = [*RECORDED, "state_in", "state_out"]
    there.use(policy_frame(3, onnx_bytes=policy_file(states=1), record=record))
    obs = np.zeros((2, 2), np.float32)
    frame = None
    for ended in ([True, False], [False, False], [False, False]):
        there.act(obs)
        frame = there.answered(obs, [0, 0], ended, [False, False], obs)
    assert frame is not None
    assert read(frame["outputs"]["state_in"])[:, :, 0].tolist() == [[0, 0], [0, 1], [1, 2]]
    assert read(frame["outputs"]["state_out"])[:, :, 0].tolist() == [[1, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros((1, 3), np.float32), r"obs is float32\[1, 3\]; expected float32\[1, 2\]"),
        (np.zeros((1, 2)), r"obs is float64\[1, 2\]; expected float32\[1, 2\]"),
        ({"x": np.zeros((1, 2), np.float32)}, r"obs has the arrays \['x'\]"),
    ],
)
def test_what_the_policy_cannot_take_is_named(obs: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        local().act(obs)


def test_a_damaged_policy_is_refused() -> None:
    there, whole = LocalPolicy(1, seed=1), policy_file()
    for at in (100, len(whole) - 1):
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(Refused, match="version 4 came here damaged: its checksum is another one"):
            there.use(policy_frame(1, version=4, onnx_bytes=damaged))
    from rlplat.export import sealing

    with pytest.raises(Refused, match=r"onnxruntime .* cannot read the policy of version 4"):
        there.use(policy_frame(1, version=4, onnx_bytes=sealing.seal(b"no model")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": {}}, r"obs has the arrays \[\]; expected \[''\]"),
        ({"outputs": {}}, "outputs has the arrays"),
        ({"rewards": np.zeros((2, 1), np.float32)}, r"rewards is float32\[2, 1\]; expected float32\[3, 1\]"),
        ({"rewards": np.full((3, 1), np.nan, np.float32)}, "rewards has NaN or infinite numbers"),
        ({"truncated": np.ones((3, 1), np.bool_)}, "final_obs is missing"),
        (
            {"truncated": np.ones((3, 1), np.bool_), "terminated": np.ones((3, 1), np.bool_)},
            "terminated and truncated are both true",
        ),
    ],
)
def test_a_fragment_that_does_not_fit_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    there = local(num_steps=3)
    frame = None
    for _ in range(3):
        there.act(obs_of(0, 0)[None])
        frame = there.answered(obs_of(0, 0)[None], [0], [False], [False], None)
    assert frame is not None
    frame |= {key: frames.pack_array(v) if isinstance(v, np.ndarray) else v for key, v in change.items()}
    decoded: Any = frames.decode(client.pack(frame))
    with pytest.raises(BadFrame, match=message):
        frames.read_fragment(decoded, LEAVES, RECORDED, 3, 1)


def play(one: Simulator, num_steps: int, time: int = 0) -> int:
    """Steps in an endless episode; the time after it."""
    for _ in range(num_steps):
        assert one.step(obs_of(1, time + 1), 1.0, False) == 1
        time += 1
    return time


def test_with_nothing_ahead_every_step_is_by_the_newest_policy(served: Any) -> None:
    server = served(num_steps=2)
    server.offer(0, policy_file(), RECORDED)
    one = Simulator(server.address)
    playing = in_thread(lambda: (one.begin(obs_of(1, 0)), play(one, 4)))
    [first] = server.take()
    server.offer(7, policy_file(0.5), RECORDED)
    [second] = server.take()
    assert (first.version, second.version) == (0, 7) and (first.continues, second.continues) == (False, True)
    assert second.outputs["value"].tolist() == [2.5, 3.5] and second.obs[""][0].tolist() == [1, 2]
    taking = in_thread(server.take)  # answers the last fragment: the simulator acts once more, and is lost
    assert playing.result(10)[1] == 4
    one._socket.close_socket()
    again = Simulator(server.address)
    in_thread(lambda: (again.begin(obs_of(1, 8)), play(again, 2, 8)))
    [third] = taking.result(10)
    assert third.continues is False and third.obs[""].tolist() == [[1, 8], [1, 9]], "only its own fragment is lost"


def test_a_complete_fragment_outlives_its_simulator(served: Any) -> None:
    server = served(num_steps=1, ahead=1)
    server.offer(0, policy_file(), RECORDED)
    one = Simulator(server.address)
    one.begin(obs_of(1, 0))
    sent = in_thread(lambda: one.step(obs_of(1, 1), 2.0, False))
    with server._changed:
        assert server._changed.wait_for(lambda: server._waiting[0], 10)
    assert not sent.done(), "one fragment ahead is the limit"
    one.close()
    [taken] = server.take()
    assert taken.rewards.tolist() == [2.0]


def test_the_client_connects_again_and_acts_by_the_newest(served: Any) -> None:
    server = served(num_steps=2)
    server.offer(0, policy_file(), RECORDED)
    one = Simulator(server.address)
    taking = in_thread(server.take)
    one.begin(obs_of(1, 0))
    time = play(one, 1)
    one._socket.close_socket()
    server.offer(1, policy_file(), RECORDED)
    in_thread(lambda: play(one, 3, time))
    [fragment] = taking.result(10)
    assert fragment.version == 1 and fragment.obs[""].tolist() == [[1, 2], [1, 3]] and not fragment.continues


def test_the_end_is_told_and_wrong_frames_are_named(served: Any) -> None:
    server = served()
    for sent, message in [
        (
            client.pack({"type": "join", "protocol": 1, "num_envs": 1}),
            "protocol 1 is asked for, and this is protocol 2",
        ),
        (client.pack({"type": "fragment"}), "not a frame of protocol 1 or 2: Object missing required field"),
    ]:
        with connect(server.address) as socket:
            assert client.unpack(socket.recv())["protocol"] == 2
            socket.send(sent)
            assert message in client.unpack(socket.recv())["message"]
    server.offer(3, policy_file(), RECORDED)
    one = Simulators(server.address)
    waiting = in_thread(lambda: one.reset(obs_of(1, 0)[None]))  # for the first take
    server.close()
    with pytest.raises(Ended, match="the training has ended"):
        waiting.result(10)


def test_a_fragment_of_another_version_is_refused(served: Any) -> None:
    server = served(num_steps=1)
    server.offer(3, policy_file(), RECORDED)
    one = Simulator(server.address)
    taking = in_thread(server.take)
    one.begin(obs_of(1, 0))
    assert one._local is not None
    one._local._version = 2
    with pytest.raises(Refused, match="the fragment is by version 2; the policy that was sent is 3"):
        one.step(obs_of(1, 1), 1.0, False)
    server.close()
    with pytest.raises(Exception, match="closed while it waited for simulators"):
        taking.result(10)


class Critic:
    """What is worth as much as the second number observed."""

    core_state = np.zeros((0, 0), np.float32)

    def values(self, obs: Any) -> np.ndarray:
        worth: np.ndarray = obs[:, 1]
        return worth


def test_fragments_become_a_batch_of_the_recorder() -> None:
    config = {
        "env": "external",
        "env_kwargs": {"spaces": VECTOR, "listen": ":0", "inference": "local"},
        "num_envs_per_worker": 2,
        "rollout_length": 3,
        "framework": "torch",
    }
    rollouts, critic = SimulatorRollouts(config, np.random.SeedSequence(1), ahead=0), Critic()
    try:
        recorder = make_recorder(
            "samples",
            3,
            rollouts.reset(),
            rollouts.spec.action,
            0,
            values_of=lambda columns, obs: critic.values(obs),
            values_at_once=False,
        )
        rollouts.server.offer(5, policy_file(), RECORDED)
        two = Simulators(rollouts.server.address, 2)

        def simulate() -> None:
            def at(time: int) -> np.ndarray:
                return np.stack([obs_of(0, time), obs_of(1, 10 + time)])

            two.reset(at(0))
            two.step(at(1), [1, 2], [False, False], [False, False])
            two.step(at(2), [1, 2], [False, True], [True, False], at(7))
            two.step(at(3), [1, 2], [False, False], [False, False])

        in_thread(simulate)
        obs, timing = rollouts.play(recorder, critic)  # type: ignore[arg-type]
        batch = recorder.finish(lambda batch: (2, critic.values(obs)), timing=timing, weights_version=rollouts.version)
        assert batch.shape == (3, 2) and batch.valid.all() and batch.weights_version == 5
        assert batch.actions.tolist() == [[0, 1]] * 3 and batch.log_probs[:, 1].tolist() == [-10, -11, -12]
        assert batch.values[:, 0].tolist() == [0, 1, 2]
        assert batch.next_values[:, 0].tolist() == [1, 7, 3], "of the last observation where it was cut off"
        assert batch.terminated[:, 1].tolist() == [False, True, False]
        assert rollouts.pop_episodes() == [Episode(2.0, 2), Episode(4.0, 2)]
    finally:
        rollouts.close()


def test_wrong_settings_are_one_message(capsys: Any, tmp_path: Any) -> None:
    def kwargs(inference: str) -> dict[str, Any]:
        return {"spaces": VECTOR, "listen": ":0", "inference": inference}

    with pytest.raises(ConfigError, match=r"inference is 'here'; it is remote .* or local"):
        make_vector_env("external", 1, env_kwargs=kwargs("here"))
    with pytest.raises(ConfigError, match=r"inference: local is for .* ppo, impala, a3c and dqn"):
        make_vector_env("external", 1, env_kwargs=kwargs("local"))
    assert main(["train", "--algo", "ppo", "--env", "CartPole-v1", "--inference", "local"]) == 2
    assert "--inference go with --env external" in capsys.readouterr().err


def test_a_policy_frame_of_the_server_is_what_the_client_reads(served: Any) -> None:
    server = served()
    server.offer(0, policy_file(), RECORDED)
    with connect(server.address) as socket:
        socket.recv()
        socket.send(client.pack({"type": "join", "protocol": 2, "num_envs": 1}))
        assert client.unpack(socket.recv())["type"] == "joined"
        taking = in_thread(server.take)
        frame = msgspec.msgpack.decode(socket.recv())
        assert frame == {"type": "policy"} | policy_frame(2, 0, policy_file())
    server.close()
    assert taking.exception(10) is not None
