"""What a cluster says of itself: `rlplat.state`, and that asking leaves nothing behind and disturbs nobody."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat import state
from rlplat.errors import ConfigError, NotInitialized
from rlplat.runtime.client import report as inspection
from rlplat.runtime.look import observer
from rlplat.runtime.look.observer import Observer, find_session
from rlplat.runtime.refs import backend
from rlplat.runtime.wire.messages import Inspect
from tests.patience import soon


@rlplat.remote
def wait_for(path: str, *after: Any) -> int:
    Path(f"{path}.begun").touch()
    while not os.path.exists(path):
        time.sleep(0.005)
    return os.getpid()


@rlplat.remote
def plus_one(number: int) -> int:
    return number + 1


@rlplat.remote
def fail() -> None:
    raise ValueError("on purpose")


@rlplat.remote
class Gate:
    def wait_for(self, path: str) -> str:
        while not os.path.exists(path):
            time.sleep(0.005)
        return path

    def pid(self) -> int:
        return os.getpid()


@rlplat.remote
class Caller:
    def __init__(self, gate: Any) -> None:
        self.gate = gate

    def call(self, path: str) -> bool:
        self.ref = self.gate.wait_for.remote(path)
        return True


def states_of(name: str) -> dict[str, Any]:
    return {state: count for state, count in state.summarize_tasks().get(name, {}).items() if state != "mean_s"}


# ---------------------------------------------------------------- tasks


def test_the_states_of_tasks(cluster: None, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    running = [wait_for.remote(go) for _ in range(2)]
    waiting = [wait_for.options(name="late").remote(go) for _ in range(3)]
    depending = plus_one.remote(running[0])
    assert soon(lambda: states_of("wait_for") == {"running": 2})
    assert states_of("late") == {"waiting-worker": 3}
    assert states_of("plus_one") == {"waiting-args": 1}

    rows = state.list_tasks()
    assert rows.total == 6 and not rows.silent
    assert [row["state"] for row in rows[:2]] == ["running"] * 2
    first = rows[0]
    assert first["task"] == f"driver:{running[0].id}" and first["kind"] == "task" and first["owner"] == "driver"
    assert first["resources"] == {"CPU": 1.0} and first["retries_left"] == 3
    assert {row["worker"] for row in rows[:2]} == {
        row["worker"] for row in state.list_workers(filters={"state": "leased"})
    }
    assert [row["waits"] for row in state.list_tasks(filters={"state": "waiting-args"})] == [1]
    assert len(state.list_tasks(limit=1)) == 1
    with pytest.raises(ConfigError, match="unknown column 'colour'"):
        state.list_tasks(filters={"colour": "red"})

    Path(go).touch()
    rlplat.get([*waiting, depending])
    assert soon(lambda: states_of("wait_for") == {"ended": 2})
    assert states_of("late") == {"ended": 3}, "a task has the name of its options before and after its end"
    assert state.summarize_tasks()["plus_one"]["mean_s"] >= 0
    assert state.list_tasks() == []


def test_failed_tasks_are_counted_by_name(cluster: None) -> None:
    for ref in [fail.remote() for _ in range(3)]:
        with pytest.raises(ValueError):
            rlplat.get(ref)
    assert soon(lambda: states_of("fail") == {"failed": 3, "ended": 3})


def test_of_two_callers_of_an_actor_only_the_call_that_runs_is_running(cluster: None, tmp_path: Path) -> None:
    """Each caller knows what it has sent; which of it has begun, only the actor's process knows."""
    go = str(tmp_path / "go")
    gate = Gate.remote()
    caller = Caller.remote(gate)
    rlplat.get(caller.call.remote(go))
    calls = [gate.wait_for.remote(go) for _ in range(4)]
    assert soon(lambda: states_of("Gate.wait_for") == {"running": 1, "queued": 4})
    rows = state.list_tasks(filters={"name": "Gate.wait_for"})
    assert sorted(row["owner"] == "driver" for row in rows) == [False, True, True, True, True]
    assert {row["kind"] for row in rows} == {"call"}
    Path(go).touch()
    rlplat.get(calls)


def test_calls_to_an_actor_that_has_no_worker_yet(cluster: None, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    busy = [wait_for.remote(go) for _ in range(2)]
    assert soon(lambda: states_of("wait_for") == {"running": 2})
    gate = Gate.options(num_cpus=1).remote()
    call = gate.pid.remote()
    assert soon(lambda: states_of("Gate.pid") == {"waiting-actor": 1})
    (actor,) = state.list_actors()
    assert actor["state"] == "pending" and actor["class"] == "Gate"
    (demand,) = state.cluster_status()["waiting"]
    assert demand["kind"] == "actor" and demand["count"] == 1 and "CPU" in demand["reason"]
    Path(go).touch()
    rlplat.get([*busy, call])


@rlplat.remote
class AsyncGate:
    async def wait_for(self, path: str) -> None:
        while not os.path.exists(path):
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", [Gate, AsyncGate])
def test_calls_that_run_at_once_and_those_that_wait_for_a_place(cluster: None, tmp_path: Path, kind: Any) -> None:
    """In threads and in coroutines; the timeline has a row for each that overlaps another."""
    go, name = str(tmp_path / "go"), f"{kind.__name__}.wait_for"
    actor = kind.options(max_concurrency=2).remote()
    calls = [actor.wait_for.remote(go) for _ in range(5)]
    assert soon(lambda: states_of(name) == {"running": 2, "queued": 3})
    (stack,) = state.stacks(kind.__name__)
    frames = [frame[2] for thread in stack["threads"] for frame in thread["frames"]]
    assert frames.count(f"{kind.__name__}.wait_for") >= 2
    Path(go).touch()
    rlplat.get(calls)
    assert soon(lambda: states_of(name).get("ended") == 5)
    rows = check_trace({"traceEvents": state.timeline()})
    assert sum(any(event["name"] == name for event in row) for row in rows.values()) >= 2


# ---------------------------------------------------------------- the rest of the view


def test_nodes_workers_actors_and_status(cluster: None) -> None:
    gate = Gate.options(name="door").remote()
    pid = rlplat.get(gate.pid.remote())
    (actor,) = state.list_actors(filters={"state": "alive"})
    assert (actor["class"], actor["name"], actor["client"]) == ("Gate", "door", "driver")
    (worker,) = state.list_workers(filters={"actor": actor["actor"]})
    assert (worker["pid"], worker["worker"], worker["state"]) == (pid, actor["worker"], "actor")
    assert worker["rss_bytes"] > 1e6
    (node,) = state.list_nodes()
    assert node["state"] == "alive" and node["total"]["CPU"] == 2
    status = state.cluster_status()
    assert status["pid"] == os.getpid() and status["uptime_s"] > 0
    assert status["resources"]["CPU"] == {"total": 2.0, "used": 0.0}
    assert status["actors"] == {"alive": 1} and status["workers"]["actor"] == 1
    json.dumps(status)
    rlplat.kill(gate)
    assert soon(lambda: state.list_actors(filters={"state": "dead"}))
    assert "rlplat.kill" in state.list_actors()[0]["reason"]


def test_objects_say_how_big_they_are_where_and_who_borrows_them(cluster: None, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    big = rlplat.put(np.zeros(1_000_000))
    small = rlplat.put("little")
    task = wait_for.remote(go, [big])
    assert soon(lambda: states_of("wait_for") == {"running": 1})
    rows = {row["id"]: row for row in state.list_objects()}
    found = rows[f"driver:{big.id}"]
    assert found["size"] > 8_000_000 and found["where"] == "shm" and found["made_by"] == "put"
    assert next(iter(rows)) == found["id"], "the biggest comes first"
    assert soon(lambda: state.list_objects()[0]["borrowers"])
    assert rows[f"driver:{small.id}"]["where"] == "inline"
    pending = rows[f"driver:{task.id}"]
    assert pending["where"] == "pending" and pending["made_by"] == "wait_for"
    report = state.memory_report()
    assert report["owners"][0]["owner"] == "driver" and report["store"]["by_creator"]["driver"] > 8_000_000
    assert state.list_objects(limit=1).total == 3
    Path(go).touch()
    rlplat.get(task)


@pytest.mark.process
def test_call_sites_are_recorded_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPLAT_RECORD_CALLSITES", "1")
    rlplat.init(num_cpus=1, num_gpus=0)
    try:
        ref = rlplat.put(np.zeros(100_000))
        task = plus_one.remote(1)
        rows = {row["id"]: row["call_site"] for row in state.list_objects()}
        for each in (ref, task):
            assert f"{Path(__file__).name}:" in rows[f"driver:{each.id}"]
            assert "test_call_sites" in rows[f"driver:{each.id}"]
        rlplat.get(task)
        groups = {row["made_by"]: row for row in state.summarize_objects()}
        assert groups["plus_one"]["where"] == "inline" and groups["put"]["count"] == 1
        assert "test_call_sites" in groups["plus_one"]["call_site"]
    finally:
        rlplat.shutdown()


def test_every_object_is_counted_by_what_made_it(cluster: None, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    kept = [rlplat.put(np.zeros(20_000)) for _ in range(3)]
    tasks = [wait_for.remote(go) for _ in range(5_000)]
    (first, second, *_) = state.summarize_objects()
    assert (first["made_by"], first["where"], first["count"]) == ("put", "shm", len(kept))
    assert first["bytes"] > 3 * 160_000
    assert (second["made_by"], second["where"], second["count"]) == ("wait_for", "pending", len(tasks))
    Path(go).touch()
    rlplat.get(tasks)


def test_state_from_inside_a_task(cluster: None) -> None:
    @rlplat.remote
    def look() -> tuple[int, list[str]]:
        return state.cluster_status()["pid"], [row["name"] for row in state.list_tasks()]

    pid, names = rlplat.get(look.remote())
    assert pid == os.getpid() and any("look" in name for name in names)


def test_without_worker_processes_there_is_nothing_to_look_at() -> None:
    rlplat.init(num_cpus=1, backend="inproc")
    try:
        with pytest.raises(NotInitialized, match="inproc"):
            state.list_tasks()
    finally:
        rlplat.shutdown()


def test_a_hundred_thousand_queued_tasks(cluster: None, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    busy = [wait_for.remote(go) for _ in range(2)]
    refs = [plus_one.remote(0) for _ in range(100_000)]
    assert soon(lambda: states_of("wait_for") == {"running": 2})
    assert states_of("plus_one")["waiting-worker"] == 100_000
    rows = state.list_tasks(limit=10)
    assert len(rows) == 10 and rows.total == 100_002
    command = [sys.executable, "-m", "rlplat.cli", "status", "--json", "--pid", str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert len(done.stdout) < 10_000
    status = json.loads(done.stdout)
    if not status["silent"]:  # a machine that is busy with other things may need more than 2 s
        assert status["tasks"] == {"running": 2, "waiting-worker": 100_000}
    Path(go).touch()
    rlplat.get(busy)
    assert rlplat.get(refs[-1]) == 1


# ---------------------------------------------------------------- nobody is disturbed


def test_asking_leaves_nothing_behind(cluster: None) -> None:
    """No sockets in the folder, no clients, no descriptors in the node, no names in the books of the transport."""
    rlplat.get(plus_one.remote(1))
    assert soon(lambda: "starting" not in state.cluster_status()["workers"])
    session = find_session()
    with Observer(session) as onlooker:
        node_pid = onlooker.ask_node()["pid"]
    descriptors = len(os.listdir(f"/proc/{node_pid}/fd"))
    for _ in range(5):
        state.cluster_status()
    assert not [name for name in os.listdir(session) if name.startswith("cli-")]
    assert soon(lambda: len(os.listdir(f"/proc/{node_pid}/fd")) <= descriptors)
    with Observer(session) as onlooker:
        assert not [client for client in onlooker.ask_node()["clients"] if client.startswith("cli-")]
    transport = backend().link.transport  # type: ignore[attr-defined]
    assert not [name for name in transport._labels if name.startswith("cli-")]
    assert not [label for label in (*transport._callers, *transport._outbox) if label.startswith(b"cli-")]
    assert rlplat.get(plus_one.remote(1)) == 2


def test_asking_in_the_middle_of_much_work(cluster: None) -> None:
    """Queues and books change while they are looked at, and whoever is asked is busy."""
    gate = Gate.remote()
    refs = [plus_one.remote(n) for n in range(20_000)]
    calls = [gate.pid.remote() for _ in range(5_000)]
    for what in ("tasks", "objects", "spans", "stacks") * 3:
        with Observer(find_session()) as onlooker:
            _, silent = onlooker.ask_clients(what, 1000)
        assert not [row for row in silent if "Error" in row["why"]]
    assert rlplat.get(refs) == list(range(1, 20_001))
    assert len(set(rlplat.get(calls))) == 1


def test_a_stopped_and_then_killed_command_disturbs_nobody(cluster: None) -> None:
    """It asks for a lot, never reads the answers, and dies."""
    program = (
        "import sys\n"
        "from rlplat.runtime.look.observer import Observer, find_session\n"
        "from rlplat.runtime.wire import messages\n"
        f"observer = Observer(find_session({os.getpid()}))\n"
        "observer.ask_node()\n"
        "for n in range(2000): observer._transport.post('node', messages.Inspect(n, 'node', 0))\n"
        "for n in range(2000): observer._transport.post('driver', messages.Inspect(n, 'stacks', 0))\n"
        "observer._transport.flush()\n"
        "print('asked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert command.stdout is not None and command.stdout.readline() == "asked\n"
        os.kill(command.pid, signal.SIGSTOP)
        assert rlplat.get([plus_one.remote(n) for n in range(100)]) == list(range(1, 101))
        assert state.cluster_status()["pid"] == os.getpid()
    finally:
        command.kill()
        command.communicate()
    assert rlplat.get(plus_one.remote(1)) == 2
    assert soon(lambda: not state.cluster_status()["silent"])


def test_a_question_that_nobody_understands_is_answered_with_an_error(cluster: None) -> None:
    with Observer(find_session()) as onlooker:
        reports = onlooker.ask(["driver"], "the weather", 10)
    assert "KeyError" in reports["driver"].error
    assert rlplat.get(plus_one.remote(1)) == 2


class Recording:
    def __init__(self) -> None:
        self.answered: list[str] = []

    def reply_once(self, peer: str, message: Any) -> None:
        self.answered.append(peer)


def test_only_onlookers_are_answered() -> None:
    """A reply is forgotten at once, which must not happen to a client."""
    transport = Recording()
    client = SimpleNamespace(link=SimpleNamespace(transport=transport))
    inspection.answer(client, "w1", Inspect(1, "tasks", 1))
    assert transport.answered == []
    inspection.answer(client, "cli-1-1", Inspect(1, "tasks", 1))
    assert transport.answered == ["cli-1-1"]


def test_a_process_that_does_not_answer_is_named(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "ANSWER_S", 1.0)
    gate = Gate.remote()
    pid = rlplat.get(gate.pid.remote())
    os.kill(pid, signal.SIGSTOP)
    try:
        rows = state.list_tasks()
        (stack,) = state.stacks("Gate")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "SIGSTOP" in {row["pid"]: row["why"] for row in rows.silent}[pid]
    assert f"kill -CONT {pid}" in stack["text"]
    assert rlplat.get(gate.pid.remote()) == pid


# ---------------------------------------------------------------- stacks


def test_stacks_of_every_process(cluster: None, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    task = wait_for.remote(go)
    assert soon(lambda: states_of("wait_for") == {"running": 1})
    rows = {row["client"]: row for row in state.stacks()}
    (worker,) = [row["worker"] for row in state.list_workers(filters={"state": "leased"})]
    assert {"driver", "node", worker} <= rows.keys()
    main = rows[worker]["threads"][0]
    assert main["is_main"] and main["frames"][-1][2].endswith("wait_for")
    functions = [frame[2] for frame in rows["driver"]["threads"][0]["frames"]]
    assert "test_stacks_of_every_process" in functions
    with pytest.raises(ConfigError, match="no process 'w99'"):
        state.stacks("w99")
    Path(go).touch()
    rlplat.get(task)


@rlplat.remote
class Hog:
    def hold(self, path: str) -> int:
        Path(path).touch()
        return sum(range(10**12))  # one call of native code, all the while with the GIL

    def ping(self) -> None:
        pass


@pytest.mark.parametrize("by", ["py-spy", "a signal"])
def test_the_stack_of_a_process_whose_native_code_holds_the_gil(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "a signal":
        monkeypatch.setattr(state, "_py_spy_program", lambda: None)
    elif state._py_spy_program() is None:
        pytest.skip("py-spy is not installed")
    monkeypatch.setattr(observer, "ANSWER_S", 1.0)
    hog = Hog.remote()
    rlplat.get(hog.ping.remote())
    begun = tmp_path / "begun"
    call = hog.hold.remote(str(begun))
    assert soon(begun.exists)

    def shows_the_call(row: dict[str, Any]) -> bool:
        found = not row["threads"] and "hold" in row["text"] and "test_state.py" in row["text"]
        return found and by in row["doing"]

    assert soon(lambda: shows_the_call(*state.stacks("Hog")))  # at first it may not have come to the native code
    rlplat.kill(hog)
    with pytest.raises(rlplat.errors.ActorDied):
        rlplat.get(call)


# ---------------------------------------------------------------- time


@pytest.fixture
def wide_cluster() -> Iterator[None]:
    """So many CPUs that no worker is surplus: one that ends takes the spans of its calls along."""
    rlplat.init(num_cpus=8, num_gpus=0)
    yield
    rlplat.shutdown()


@pytest.mark.process
def test_the_timeline_of_a_cluster(wide_cluster: None, tmp_path: Path) -> None:
    @rlplat.remote
    def nested(number: int) -> int:
        time.sleep(0.02)
        inner: int = rlplat.get(plus_one.remote(number))
        return inner

    gate = Gate.remote()
    rlplat.get([*(nested.remote(n) for n in range(3)), gate.pid.remote()])
    assert soon(lambda: states_of("Gate.pid").get("ended"))
    file = tmp_path / "trace.json"
    rlplat.timeline(file)
    trace = json.loads(file.read_text())
    rows = check_trace(trace)
    names = [event["name"] for events in rows.values() for event in events]
    assert sum("nested" in name for name in names) == 3 and names.count("plus_one") == 3
    assert "Gate.__init__" in names and "Gate.pid" in names
    titles = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert any(title.endswith(" Gate") for title in titles)
    took = [e["dur"] for events in rows.values() for e in events if "nested" in e["name"]]
    assert min(took) >= 20_000
    assert any(e["name"] == "get" and e["cat"] == "wait" for events in rows.values() for e in events)
    assert rlplat.timeline() != []


def check_trace(trace: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """Fields as Perfetto wants them; complete events of one row nest or follow one another."""
    rows: dict[int, list[dict[str, Any]]] = {}
    titled = set()
    for event in trace["traceEvents"]:
        assert event["ph"] in ("M", "X") and isinstance(event["name"], str)
        assert type(event["pid"]) is int and type(event["tid"]) is int
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            rows.setdefault(event["tid"], []).append(event)
        elif event["name"] == "thread_name":
            titled.add(event["tid"])
    assert rows.keys() <= titled
    for events in rows.values():
        ends: list[float] = []
        for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
            while ends and ends[-1] <= event["ts"] + 1e-3:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3
            ends.append(event["ts"] + event["dur"])
    return rows


@pytest.mark.process
def test_the_command_of_a_cluster_is_shown_without_the_way_to_python(tmp_path: Path) -> None:
    """What tells runs apart, --out, stands at the end, where a long line is cut."""
    script = tmp_path / "rlplat"
    script.write_text("import sys; print(flush=True); sys.stdin.read()\n")
    words = [sys.executable, script, "train", "--out", "runs/a"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs: before, the kernel may not show its command yet
        assert observer.command_of(process.pid) == "rlplat train --out runs/a"
        assert observer.command_of(process.pid, width=15) == "rlplat train..."
        process.communicate()
