"""Replicas of a policy come and go: what was promised is kept, and what is lost is said."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

import rlplat
from rlplat.serve.policies.serving import Follower, serve_policy
from tests.serve.calling import OBS, act, request, train

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    train(runs / "demo")
    train(runs / "lstm", policy={"core": "lstm"})
    return runs


@pytest.mark.usefixtures("torch_cluster")
def test_sessions_outlive_a_drained_replica_and_of_a_killed_one_are_said_to_be_lost(runs: Path) -> None:
    agent = rlplat.load(runs / "lstm")
    rows = np.array([OBS], np.float32)
    _, state = agent.act_on_rows(rows)
    output, _ = agent.act_on_rows(rows, state=state)
    with serve_policy(runs / "lstm", port=0, num_replicas=2) as running:
        sessions = [request(running.url, "POST", "/v1/sessions")[1]["session"] for _ in range(8)]
        for session in sessions:
            act(running, {"obs": OBS, "session": session})
        running.scale("lstm", 1)
        for session in sessions:
            _, answer = act(running, {"obs": OBS, "session": session, "outputs": ["value"]})
            assert answer["value"] == pytest.approx(float(output.values[0]), abs=1e-5)
        running.scale("lstm", 2)
        sessions = [request(running.url, "POST", "/v1/sessions")[1]["session"] for _ in range(12)]
        victim = sessions[0].rpartition(".")[0]
        os.kill(running.status()["deployments"]["lstm"]["replicas"][victim]["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 60
        while victim in running.status()["deployments"]["lstm"]["replicas"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for session in sessions:
            status, answer = act(running, {"obs": OBS, "session": session})
            if session.rpartition(".")[0] == victim:
                assert status == 410 and answer["error"]["code"] == "session-lost"
            else:
                assert status == 200


@pytest.mark.usefixtures("torch_cluster")
def test_weights_are_followed_and_what_cannot_be_used_changes_nothing(runs: Path) -> None:
    said: list[str] = []
    with serve_policy(runs / "demo", port=0) as running:
        agent = rlplat.load(runs / "demo")
        before = agent.checkpoint.info.env_steps
        follower = Follower(running, "demo", agent, "latest", "", said.append)
        broken = runs / "demo" / "checkpoints" / "step_9999"
        broken.mkdir()
        (broken / "manifest.json").write_text("{}")
        follower.look()
        assert act(running, {"obs": OBS})[1]["env_steps"] == before and said == []
        shutil.rmtree(broken)
        rlplat.train(resume=str(runs / "demo"), stop={"env_steps": 256})
        follower.look()
        assert said[-1].startswith("now serving step_")
        deadline = time.monotonic() + 30
        while act(running, {"obs": OBS})[1]["env_steps"] <= before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        shutil.rmtree(runs / "demo" / "checkpoints")
        follower.look()
        assert "the weights stay as they are" in said[-1] and act(running, {"obs": OBS})[0] == 200
