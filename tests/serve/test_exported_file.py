"""`rlplat serve policy.onnx`: what a run's file answers is what the run's agent does."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("uvicorn")

import rlplat
from rlplat.cli import main
from rlplat.errors import BadObservation
from rlplat.export.exported_policy import ExportedPolicy
from rlplat.export.policy_export import contract_of
from rlplat.rl.run.agent_spaces import agent_spaces
from rlplat.serve.batching import Piece, Waiting
from rlplat.serve.policies.bodies import plain
from rlplat.serve.policies.engine import Ask, Engine
from rlplat.serve.policies.exported_agent import ExportedAgent, ExportedSpaces
from rlplat.serve.policies.serving import serve_policy
from rlplat.serve.running import Running
from tests.rl.run.test_trained_agent import LSTM, make, same, trained
from tests.serve.calling import act, request

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nested observations, a Dict of actions, a recurrent state."""
    folder = tmp_path_factory.mktemp("tree")
    return rlplat.export.to_onnx(trained("ppo", "tree", folder / "run", **LSTM), folder / "policy.onnx")


@pytest.fixture(scope="module")
def running(file: Path) -> Iterator[Running]:
    rlplat.init(num_cpus=1, num_gpus=0)
    with serve_policy(file, port=0) as running:
        yield running
    rlplat.shutdown()


class Reader(ExportedPolicy):
    """The file's own reader, without a file."""

    def __init__(self, contract: Any) -> None:
        self.contract = contract


def close(one: Any, other: Any) -> bool:
    """Floats within rounding; whole numbers equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(close, one, other))
    return bool(np.allclose(one, other, atol=1e-5, rtol=0))


@pytest.mark.parametrize("kind", ["tree", "dict", "info", "discrete", "multi", "box"])
def test_spaces_of_a_file_read_and_answer_as_those_of_the_environment(kind: str) -> None:
    spaces: Any = agent_spaces("tests.rl.run.test_trained_agent:make", {"kind": kind})
    contract = contract_of(spaces, 0, (), 0)
    found = ExportedSpaces(contract, spaces.spec)
    assert found.spec == spaces.spec
    env = make(kind)
    obs, info = env.reset(seed=1)
    mask = info.get("action_mask")
    rows, is_batch = spaces.read(obs, mask)
    assert same(found.read(obs, mask)[0], rows) and not is_batch
    assert same(found.feeds(rows), Reader(contract).read(obs, mask)[0]), "counted from start again"
    for read in (spaces.read, found.read):
        with pytest.raises(BadObservation, match=r"^observation"):
            read([])


def test_a_file_acts_as_its_run_in_batches_and_after_it_was_sent_to_a_replica(file: Path) -> None:
    agent = rlplat.load(file.parent / "run")
    exported = pickle.loads(pickle.dumps(ExportedAgent(file)))
    one = make("tree").observation_space.sample()
    rows, _ = agent.spaces.read(one)
    state = np.random.default_rng(0).normal(size=(1, agent.state_size)).astype(np.float32)
    wanted, wanted_state = agent.act_on_rows(rows, state=state)
    output, following = exported.act_on_rows(rows, state=state)
    assert close(exported.spaces.actions(output.actions, True), agent.spaces.actions(wanted.actions, True))
    assert np.allclose(output.values, wanted.values, atol=1e-5) and np.allclose(following, wanted_state, atol=1e-5)
    assert np.allclose(output.log_probs, wanted.log_probs, atol=1e-4)

    engine = Engine(exported, max_rows=8, max_waiting_rows=8)
    future: Any = SimpleNamespace(done=lambda: False)
    first, second = (engine._run([Piece(Waiting(Ask(rows, True, state), 1, future), 0, 1)] * n) for n in (1, 3))
    for acted in second:
        assert close(exported.spaces.actions(acted.actions, True), exported.spaces.actions(first[0].actions, True))


def test_a_session_of_a_file_goes_on_as_the_run_does(running: Running, file: Path) -> None:
    agent = rlplat.load(file.parent / "run")
    session = request(running.url, "POST", "/v1/sessions")[1]["session"]
    space = make("tree").observation_space
    state = agent.initial_state()
    for seq in range(1, 4):
        obs = space.sample()
        wanted, state = agent.act(obs, state=state)
        status, answer = act(running, {"obs": plain(obs), "session": session, "seq": seq})
        assert status == 200 and close(answer["action"], plain(wanted))
        assert answer["env_steps"] == agent.checkpoint.info.env_steps
    status, answer = act(running, {"obs": plain(obs), "state": "initial", "greedy": False})
    assert status == 200 and len(answer["state"]) == agent.state_size
    about = request(running.url, "GET", "/v1/policy")[1]
    assert about["model"] == "policy" and about["algorithm"] == "ppo"
    assert request(running.url, "GET", "/openapi.json")[0] == 200


def test_a_file_is_served_without_torch(file: Path) -> None:
    program = f"""
import sys
import rlplat.serve.policies.serving
from rlplat.serve.policies.exported_agent import ExportedAgent
agent = ExportedAgent({str(file)!r})
rows, _ = agent.spaces.read(agent.spaces.observation_space.sample())
agent.act_on_rows(rows)
print([name for name in ("torch", "onnx", "onnxscript", "tensorflow") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_is_for_runs_is_refused_for_a_file(file: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["serve", str(file), "--follow"]) == 2
    assert "follow is for a run" in capsys.readouterr().err
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(file.read_bytes()[:-100])
    assert main(["serve", str(damaged)]) == 2
    assert "damaged.onnx" in capsys.readouterr().err
