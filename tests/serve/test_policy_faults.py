"""Replicas of a policy come and go: what was promised is kept, and what is lost is said."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

import rlplat
from rlplat.errors import ActorDied
from rlplat.serve.policies import serving
from rlplat.serve.policies.acting import ServedPolicy
from rlplat.serve.policies.bodies import Rows
from rlplat.serve.policies.engine import Acted
from rlplat.serve.policies.serving import Follower, policy_application, serve_policy
from rlplat.serve.policies.sessions import SessionBook
from rlplat.serve.refusals import Refused
from tests.patience import soon
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
        assert soon(lambda: victim not in running.status()["deployments"]["lstm"]["replicas"])
        for session in sessions:
            status, answer = act(running, {"obs": OBS, "session": session})
            if session.rpartition(".")[0] == victim:
                assert status == 410 and answer["error"]["code"] == "session-lost"
            else:
                assert status == 200


def test_a_step_that_runs_while_its_session_moves_is_not_lost() -> None:
    async def main() -> None:
        book, moved, ends = SessionBook(10, 60.0), [], []
        session = book.open("a", 1, now=0.0)

        async def adopt(sessions: Any) -> None:
            moved.append([(id, float(state[0]), seq) for id, state, seq, *_ in sessions])
            ends.append(asyncio.ensure_future(book.close("a")))
            await asyncio.sleep(0.01)

        async def fail(sessions: Any) -> None:
            raise ActorDied("a-1")

        with pytest.raises(ActorDied):
            await book.move_all(fail)
        assert len(book) == 1 and not session.has_moved
        async with session.lock:  # as a step holds it
            moving = asyncio.ensure_future(book.move_all(adopt))
            await asyncio.sleep(0)
            session.keep(np.ones(1, np.float32), None, b"", None)
        await moving
        assert moved == [[("a", 1.0, 1)]] and session.has_moved and len(book) == 0
        assert not await ends[0], "it is to be ended where it is now"

    asyncio.run(main())


class Peer:
    """A replica as the others see it: `peer.ask.remote(method, ...)`; `before` runs when it is asked."""

    def __init__(self, policy: ServedPolicy, before: Callable[[], Awaitable[object]] | None = None) -> None:
        self._policy, self._before, self.ask = policy, before, self

    async def remote(self, method: str, *args: Any) -> Any:
        if self._before is not None:
            before, self._before = self._before, None
            await before()
        answer = getattr(self._policy, method)(*args)
        return await answer if inspect.isawaitable(answer) else answer


def replicas(*names: str) -> list[ServedPolicy]:
    """Their policy adds the observation to the state."""

    class Engine:
        async def act(self, rows: Any, num_rows: int, *, greedy: bool, state: Any) -> Acted:
            return Acted(rows, rows, rows, state + rows, 0)

    policies = [ServedPolicy("b") for _ in names]
    for policy, name in zip(policies, names, strict=True):
        policy.engine: Any = Engine()  # type: ignore[misc]
        policy.introduce(name, dict)
    return policies


def test_a_replica_that_ends_opens_sessions_elsewhere_and_adopts_none() -> None:
    staying, leaving = replicas("b-1", "b-0")
    staying.open_for_peer = lambda: "b-1.x"  # type: ignore[method-assign]
    leaving.introduce("b-0", lambda: {"b-0": None, "b-1": Peer(staying)})

    async def main() -> None:
        leaving.is_leaving.set()
        assert await leaving.open_session() == "b-1.x" and len(leaving.sessions) == 0
        with pytest.raises(Refused, match="b-0 is ending"):
            leaving.adopt([("a", np.zeros(1, np.float32), 0, None)])
        with pytest.raises(Refused, match="b-0 is ending"):
            leaving.open_for_peer()

    asyncio.run(main())


@pytest.mark.parametrize("moves_here", [False, True])
def test_a_session_that_moves_while_it_is_searched_is_found(moves_here: bool) -> None:
    """Asked is the replica that does not have it yet, then the one that does not have it any more."""
    asked, early, late = replicas("b-2", "b-0", "b-1")
    late.introduce("b-1", lambda: {"b-2": Peer(asked)} if moves_here else {"b-0": Peer(early)})
    peers = {"b-0": Peer(early), "b-1": Peer(late, before=late.hand_over)}
    asked.introduce("b-2", lambda: peers)
    late.sessions.open("gone.a", 1, time.monotonic())

    async def main() -> None:
        step = Rows(np.ones((1, 1), np.float32), 1, False, True, [], "gone.a", 1, False)
        assert (await asked.act(step)).state.tolist() == [[1.0]]
        assert len((asked if moves_here else early).sessions) == 1 and len(late.sessions) == 0
        await asked.end_session("gone.a")
        assert len(asked.sessions) + len(early.sessions) == 0
        with pytest.raises(Refused, match="there is no session 'gone\\.a'"):
            await asked.act(step)

    asyncio.run(main())


def test_a_session_of_a_replica_that_is_not_known_yet_is_found() -> None:
    asked, new = replicas("b-0", "b-1")
    peers: dict[str, Any] = {}
    asked.introduce("b-0", lambda: peers)

    async def main() -> None:
        new.sessions.open("b-1.a", 1, time.monotonic())
        search = asyncio.ensure_future(asked.end_session("b-1.a"))
        await asyncio.sleep(0)
        peers["b-1"] = Peer(new)  # as the controller says it
        await search
        assert len(new.sessions) == 0

    asyncio.run(main())


@pytest.mark.usefixtures("torch_cluster")
def test_sessions_belong_to_a_side_of_a_canary_and_outlive_it(runs: Path) -> None:
    agent = rlplat.load(runs / "lstm")
    rows, state, values = np.array([OBS], np.float32), None, []
    for _ in range(3):
        output, state = agent.act_on_rows(rows, state=state)
        values.append(float(output.values[0]))
    with serve_policy(runs / "lstm", port=0) as running:
        running.update(policy_application(runs / "lstm"), canary=0.5)
        sessions = [request(running.url, "POST", "/v1/sessions")[1]["session"] for _ in range(4)]
        assert sorted(each.rpartition(".")[0] for each in sessions) == 2 * ["lstm-0"] + 2 * ["lstm.canary-0"]

        def step(expected: float) -> None:
            for session in sessions:  # over a connection of its own, to either side
                _, answer = act(running, {"obs": OBS, "session": session, "outputs": ["value"]})
                assert answer["value"] == pytest.approx(expected, abs=1e-5)

        step(values[0])
        step(values[1])
        running.end_canary()
        step(values[2])


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
        assert soon(lambda: act(running, {"obs": OBS})[1]["env_steps"] > before)
        shutil.rmtree(runs / "demo" / "checkpoints")
        follower.look()
        assert "the weights stay as they are" in said[-1] and act(running, {"obs": OBS})[0] == 200


def test_a_look_that_fails_is_not_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running, looks = SimpleNamespace(is_stopped=threading.Event()), []

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 3:
            running.is_stopped.set()
        raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(serving, "FOLLOW_PERIOD_S", 0.001)
    follower: Any = Follower(running, "demo", SimpleNamespace(directory=tmp_path), "latest", "", print)  # type: ignore[arg-type]
    follower.look = look
    follower._run()
    assert looks == [0, 1, 2] and "on closed file" in capsys.readouterr().err
