"""A second and a third machine, which are process groups of this one with session folders of their own, over TCP."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

import rlplat
from rlplat.errors import ConfigError, ObjectLost, ObjectStoreFull, WorkerCrashed
from rlplat.runtime.link.trunk import AgentTrunk, HeadTrunks
from rlplat.runtime.machine.session import SPILL_LINK
from rlplat.runtime.placement import placement_group, remove_placement_group
from rlplat.runtime.start import join_file
from rlplat.runtime.start.start import versions
from rlplat.runtime.wire import agent_messages
from tests.patience import soon

pytestmark = pytest.mark.process
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def join(tmp_path: Path) -> str:
    path = str(tmp_path / "join.json")
    join_file.make(path, "127.0.0.1", 0)
    return path


@pytest.fixture
def start(join: str) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start_one(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rlplat.cli", "start", "--address", join, "--num-cpus", "2", *options]
        machine = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        started.append(machine)
        return machine

    yield start_one
    rlplat.shutdown()
    for machine in started:
        machine.terminate()
        assert machine.wait(60) == 0, machine.stderr.read() if machine.stderr else ""
        if machine.stderr:
            machine.stderr.close()


@rlplat.remote(resources={"far": 1}, num_cpus=0)
def session_there(*values: Any) -> str:
    return os.environ["RLPLAT_SESSION"]


def session_here() -> str:
    @rlplat.remote(resources={"here": 1}, num_cpus=0)
    def session() -> str:
        return os.environ["RLPLAT_SESSION"]

    return rlplat.get(session.remote(), timeout=60)


def init(join: str, num_cpus: int = 1) -> None:
    rlplat.init(num_cpus=num_cpus, num_gpus=0, resources={"here": 1}, address=join)


def alive() -> list[str]:
    return sorted(node["NodeID"] for node in rlplat.nodes() if node["Alive"])


def there(*names: str) -> None:
    assert soon(lambda: alive() == sorted(["node", *names]), 60)


def test_tasks_and_actors_run_on_either_machine(join: str, start: Start) -> None:
    start("--resource", "far=2")
    init(join)
    assert rlplat.get(session_there.remote(), timeout=60) != session_here()

    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    class Sum:
        def __init__(self) -> None:
            self.total = 0

        def add(self, number: int) -> int:
            self.total += number
            return self.total

    @rlplat.remote(resources={"here": 1}, num_cpus=0)
    def add_from_here(actor: Any) -> int:
        return rlplat.get(actor.add.remote(10))

    sums = Sum.options(name="sums").remote()
    assert rlplat.get([sums.add.remote(n) for n in range(100)], timeout=60)[-1] == 4950
    assert rlplat.get(add_from_here.remote(sums), timeout=60) == 4960
    assert rlplat.get(rlplat.get_actor("sums").add.remote(1), timeout=60) == 4961
    assert rlplat.cluster_resources()["CPU"] == 3

    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    def nested(n: int) -> int:
        return n if not n else n + rlplat.get(plain.remote(n - 1))

    @rlplat.remote
    def plain(n: int) -> int:
        return n

    assert rlplat.get(nested.remote(5), timeout=60) == 9
    with pytest.raises(ZeroDivisionError):
        rlplat.get(fails.remote(), timeout=60)


@rlplat.remote(resources={"far": 1}, num_cpus=0)
def fails() -> float:
    return 1 / 0


def test_spread_and_placement_groups_go_over_machines(join: str, start: Start) -> None:
    start()
    init(join, num_cpus=2)
    there("n2")

    @rlplat.remote(num_cpus=1, scheduling_strategy="SPREAD")
    class Where:
        def session(self) -> str:
            return os.environ["RLPLAT_SESSION"]

    actors = [Where.remote() for _ in range(2)]
    assert len(set(rlplat.get([actor.session.remote() for actor in actors], timeout=60))) == 2
    for actor in actors:
        rlplat.kill(actor)
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    assert group.wait(60)
    inside = [
        Where.options(placement_group=group, placement_group_bundle_index=n, scheduling_strategy=None).remote()
        for n in range(2)
    ]
    assert len(set(rlplat.get([actor.session.remote() for actor in inside], timeout=60))) == 2
    remove_placement_group(group)


def test_large_values_are_pulled_once_per_machine_and_their_copies_freed(join: str, start: Start) -> None:
    start("--resource", "far=2")
    init(join)

    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    def make(number: int) -> np.ndarray:
        return np.full(1_000_000, number)

    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    def sum_of(array: np.ndarray) -> int:
        return int(array.sum())

    def copies() -> list[str]:
        sessions = [rlplat.runtime.refs.backend().link.session]
        return [name for session in sessions for name in os.listdir(session) if name.startswith("s-w")]

    made = make.remote(3)
    first = rlplat.get(made, timeout=60)
    assert int(first.sum()) == 3_000_000
    assert len(copies()) == 1
    again = rlplat.get(made)
    assert np.shares_memory(first, again)
    ours = rlplat.put(np.full(1_000_000, 2))
    assert rlplat.get([sum_of.remote(ours) for _ in range(4)], timeout=60) == [2_000_000] * 4
    assert rlplat.get([make.remote(n) for n in range(20)], timeout=60)[19][0] == 19
    del first, again, made
    assert soon(lambda: not copies())


def segments_in(session: str) -> list[str]:
    return sorted(name for name in os.listdir(f"/dev/shm/{session}") if name.startswith("s-"))


def test_values_outlive_their_maker_for_readers_on_every_machine(join: str, start: Start) -> None:
    start("--resource", "far=1")
    start("--resource", "third=2")
    init(join)

    @rlplat.remote(resources={"far": 1}, num_cpus=0, max_retries=0)
    def make(number: int) -> tuple[np.ndarray, int]:
        return np.full(1_000_000, number), os.getpid()

    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    class Maker:
        def make(self, number: int) -> np.ndarray:
            return np.full(1_000_000, number)

    @rlplat.remote(num_cpus=0)
    def made_by(value: Any) -> int:
        return int(value[1])

    @rlplat.remote(resources={"third": 1}, num_cpus=0)
    class Holder:  # owns what a task elsewhere makes, and dies
        def hold(self) -> Any:
            ref = make.remote(9)
            rlplat.wait([ref])
            return ref, os.getpid()

    by_third, at_far = made_by.options(resources={"third": 1}), made_by.options(resources={"far": 1})
    session = rlplat.get(session_there.remote(), timeout=60)
    holder = Holder.remote()
    held, holder_pid = rlplat.get(holder.hold.remote(), timeout=60)
    refs = [held, *(make.remote(n) for n in range(3))]
    makers = [rlplat.get(at_far.remote(ref), timeout=60) for ref in refs]
    rlplat.get(refs[1], timeout=60)
    for maker in set(makers):
        os.kill(maker, signal.SIGKILL)
        assert soon(lambda pid=maker: not os.path.exists(f"/proc/{pid}"))
    for reader in (by_third, at_far):
        assert [rlplat.get(reader.remote(ref), timeout=60) for ref in refs] == makers
    assert [rlplat.get(ref, timeout=60)[1] for ref in refs] == makers
    actor = Maker.remote()
    made = actor.make.remote(5)
    rlplat.wait([made], timeout=60)
    rlplat.kill(actor)
    assert rlplat.get(session_there.remote(), timeout=60) == session  # (waits for the actor's end)
    assert int(rlplat.get(made, timeout=60)[0]) == 5
    assert len(segments_in(session)) >= 4
    os.kill(holder_pid, signal.SIGKILL)
    del refs, made
    assert soon(lambda: not segments_in(session))


def test_what_is_really_gone_elsewhere_is_made_again_or_named(join: str, start: Start) -> None:
    start("--resource", "far=2")
    init(join)

    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    def make(number: int) -> tuple[np.ndarray, int]:
        return np.full(1_000_000, number), os.getpid()

    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    class Maker:
        def make(self) -> np.ndarray:
            return np.zeros(1_000_000)

    actor = Maker.remote()
    session = rlplat.get(session_there.remote(), timeout=60)
    for is_alive in (True, False):
        ref, made = make.remote(1), actor.make.remote()
        rlplat.wait([ref, made], num_returns=2, timeout=60)
        if not is_alive:
            rlplat.kill(actor)
            assert rlplat.get([session_there.remote() for _ in range(2)], timeout=60) == [session] * 2
        for name in segments_in(session):
            os.unlink(f"/dev/shm/{session}/{name}")
        assert int(rlplat.get(ref, timeout=60)[0][0]) == 1
        with pytest.raises(ObjectLost, match=r"Maker\.make\) are gone"):
            rlplat.get(made, timeout=60)


def test_calls_are_answered_while_much_is_pulled_either_way(join: str, start: Start) -> None:
    start("--resource", "far=3")
    init(join)

    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    class Far:
        def make(self) -> np.ndarray:
            return np.ones(300_000_000, np.uint8)

        def first_of(self, array: np.ndarray) -> int:
            return int(array[0])

        def echo(self) -> None:
            pass

    busy, quiet = Far.remote(), Far.remote()
    made = busy.make.remote()
    rlplat.wait([made], timeout=60)
    ours = rlplat.put(np.ones(300_000_000, np.uint8))
    rlplat.get(quiet.echo.remote(), timeout=60)
    pulls = [
        threading.Thread(target=rlplat.get, args=[made]),
        threading.Thread(target=lambda: rlplat.get(busy.first_of.remote(ours))),
    ]
    num_answered = 0
    for pull in pulls:
        pull.start()
    while any(pull.is_alive() for pull in pulls):
        rlplat.get(quiet.echo.remote(), timeout=60)
        num_answered += 1
    for pull in pulls:
        pull.join()
    assert num_answered >= 10  # many, where nothing waits for the bytes
    assert "n2" in alive()


def test_a_worker_that_retires_stays_for_what_others_need_of_it(join: str, start: Start) -> None:
    start("--resource", "far=1")
    init(join)

    @rlplat.remote(resources={"far": 1}, num_cpus=0, max_calls=1, max_retries=0)
    def make(number: int) -> tuple[np.ndarray, int]:
        return np.full(1_000_000, number), os.getpid()

    first, second = make.remote(1), make.remote(2)
    rlplat.wait([first, second], num_returns=2, timeout=60)
    (one, maker), (two, other) = rlplat.get([first, second], timeout=60)
    assert (one[0], two[0]) == (1, 2)
    assert maker != other
    del one, two, first, second
    assert soon(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in (maker, other)))


def test_a_value_for_which_the_reader_has_no_room_is_refused_in_words(join: str, start: Start) -> None:
    start("--resource", "far=1")
    rlplat.init(num_cpus=1, num_gpus=0, address=join, object_store_memory=16 << 20)

    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    def make(size: int) -> np.ndarray:
        return np.ones(size)

    with pytest.raises(ObjectStoreFull, match="bytes of an object of another machine"):
        rlplat.get(make.remote(3_000_000), timeout=60)
    made = [make.remote(1_000_000) for _ in range(5)]  # copies that no view needs make way for others
    assert [int(rlplat.get(ref, timeout=60).sum()) for ref in made] == [1_000_000] * 5
    session = rlplat.runtime.refs.backend().link.session
    spilled = os.path.join(session, SPILL_LINK)
    ours = [rlplat.put(np.ones(600_000)) for _ in range(2)]
    assert int(rlplat.get(made[0], timeout=60).sum()) == 1_000_000  # ours have gone to disk for that
    assert len(os.listdir(spilled)) == 2
    ours += [rlplat.put(np.ones(600_000)) for _ in range(2)]  # the copy goes, and nothing else
    assert len(os.listdir(spilled)) == 2
    assert [int(rlplat.get(ref).sum()) for ref in ours] == [600_000] * 4


def test_a_machine_whose_workers_were_killed_with_it_is_lost(join: str, start: Start) -> None:
    machine = start("--resource", "far=9")
    init(join)

    @rlplat.remote(resources={"far": 1}, num_cpus=0, max_restarts=1, max_task_retries=-1)
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self) -> int:
            self.count += 1
            return self.count

    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    def large() -> np.ndarray:
        return np.ones(1_000_000)

    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    def kept_there() -> list[Any]:
        return [rlplat.put(np.ones(1_000_000))]

    @rlplat.remote(resources={"far": 1}, num_cpus=0, num_returns="streaming")
    def numbers() -> Iterator[int]:
        for number in range(10):
            time.sleep(0.05)
            yield number

    deaths: list[str] = []
    mortal = Counter.options(max_restarts=0).remote()
    mortal.on_death(lambda error: deaths.append(str(error)))
    Counter.options(name="named", lifetime="detached").remote().add.remote()
    stream = numbers.remote()
    taken = [rlplat.get(next(stream), timeout=60) for _ in range(3)]
    counter, ref = Counter.remote(), large.remote()
    (lost,) = rlplat.get(kept_there.remote(), timeout=60)
    assert rlplat.get([counter.add.remote() for _ in range(2)], timeout=60) == [1, 2]
    rlplat.wait([ref], timeout=60)
    before = rlplat.get(session_there.remote(), timeout=60)
    other = start("--resource", "far=9")
    there("n2", "n3")
    os.kill(node_process_of(machine.pid), signal.SIGKILL)
    assert rlplat.get(counter.add.remote(), timeout=60) == 1
    assert taken + [rlplat.get(each, timeout=60) for each in stream] == list(range(10))
    assert rlplat.get(rlplat.get_actor("named").add.remote(), timeout=60) == 1
    assert soon(lambda: deaths) and "its node n2 was lost" in deaths[0]
    assert rlplat.get(session_there.remote(), timeout=60) != before
    assert int(rlplat.get(ref, timeout=60).sum()) == 1_000_000
    with pytest.raises(rlplat.errors.RuntimeFault):
        rlplat.get(lost, timeout=60)
    assert "n2" not in alive()
    assert soon(lambda: len(alive()) == 3)  # the machine is there, and comes again under another name
    assert other.poll() is None


def node_process_of(machine: int) -> int:
    """The child of the process that `rlplat start` is."""
    with open(f"/proc/{machine}/task/{machine}/children") as file:
        (child,) = map(int, file.read().split())
    return child


def test_a_task_without_retries_hears_that_its_machine_is_lost(join: str, start: Start) -> None:
    machine = start("--resource", "far=1")
    init(join)

    @rlplat.remote(resources={"far": 1}, num_cpus=0, max_retries=0)
    def kill_the_node(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        signal.pause()

    there("n2")
    with pytest.raises(WorkerCrashed, match="node n2 was lost: its node process has ended"):  # not: after 8 s
        rlplat.get(kill_the_node.remote(node_process_of(machine.pid)), timeout=60)


def test_a_machine_whose_node_hangs_is_fenced_by_its_zygote(join: str, start: Start) -> None:
    machine = start("--resource", "far=2")
    init(join)

    @rlplat.remote(resources={"far": 1}, num_cpus=0, max_retries=0)
    def wait() -> None:
        signal.pause()

    waiting, session = wait.remote(), rlplat.get(session_there.remote(), timeout=60)
    os.kill(node_process_of(machine.pid), signal.SIGSTOP)
    with pytest.raises(WorkerCrashed, match="node n2 was lost"):
        rlplat.get(waiting, timeout=60)
    assert not marked_pids(session)
    assert rlplat.get(session_there.remote(), timeout=60) != session  # it has come again


class Wire:
    """Between a machine and the head: bytes pass, or nothing does, or the connection breaks."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._to = port
        self._ends: list[socket.socket] = []
        self.passes = threading.Event()
        self.passes.set()
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def _begin(self, target: Callable[..., None], *args: Any) -> None:
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for source, target in ((near, far), (far, near)):
                    self._begin(self._carry, source, target)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.passes.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.passes.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for thread in self._threads[1:]:
            thread.join()
        for end in self._ends:
            end.close()


@pytest.mark.parametrize("how", ["cut", "silent"])
def test_a_broken_connection_is_the_death_of_the_machine_and_the_kill_comes_first(
    join: str, start: Start, tmp_path: Path, how: str
) -> None:
    keys = json.loads(Path(join).read_text())
    wire = Wire(int(keys["address"].rpartition(":")[2]))
    by_wire = tmp_path / "by-wire.json"
    by_wire.write_text(json.dumps(keys | {"address": f"127.0.0.1:{wire.port}"}))
    by_wire.chmod(0o600)
    start("--resource", "far=2", "--address", str(by_wire))
    init(join)

    @rlplat.remote(resources={"far": 1}, num_cpus=0, max_restarts=-1, max_task_retries=-1)
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self) -> int:
            self.count += 1
            return self.count

    counter = Counter.remote()
    assert rlplat.get([counter.add.remote() for _ in range(3)], timeout=60)[-1] == 3
    session = rlplat.get(session_there.remote(), timeout=60)
    on_its_way = counter.add.remote()
    wire.cut() if how == "cut" else wire.passes.clear()
    later = counter.add.remote()
    try:
        assert soon(lambda: not marked_pids(session))
        wire.passes.set()
        counts = rlplat.get([on_its_way, later], timeout=60)
        assert counts in ([1, 2], [4, 1])  # it had arrived, or runs again in the next life
        assert "n2" not in alive()
        assert rlplat.get(session_there.remote(), timeout=60) != session
    finally:
        rlplat.shutdown()
        wire.close()


def marked_pids(session: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if f"RLPLAT_SESSION={session}".encode() in environ.split(b"\0"):
                found.append(int(name))
    return found


def test_machines_work_for_one_program_after_the_other(join: str, start: Start) -> None:
    machine = start("--resource", "far=1")
    sessions = set()
    for _ in range(2):
        init(join)
        sessions.add(rlplat.get(session_there.remote(), timeout=60))
        rlplat.shutdown()
    assert len(sessions) == 2
    assert soon(lambda: not any(marked_pids(session) for session in sessions))
    assert machine.stderr is not None
    said = [machine.stderr.readline() for _ in range(5)]
    assert "waits for programs" in said[0]
    for works, ended in (said[1:3], said[3:5]):
        assert "works for a program" in works
        assert ended.endswith("the program has ended\n")


def test_when_the_driver_is_killed_a_machine_is_clean_and_waits_for_the_next(join: str, start: Start) -> None:
    machine = start("--resource", "far=1")
    program = f"""if True:
        import os, signal, rlplat
        rlplat.init(num_cpus=1, num_gpus=0, address={join!r})
        @rlplat.remote(resources={{"far": 1}}, num_cpus=0)
        def work():
            print(os.environ["RLPLAT_SESSION"], file=open({join + ".session"!r}, "w"))
            signal.pause()
        rlplat.get(work.remote())
    """
    driver = subprocess.Popen([sys.executable, "-c", program])
    said = Path(join + ".session")
    try:
        assert soon(lambda: said.exists() and said.read_text().endswith("\n"), 60)
    finally:
        driver.kill()
        driver.wait()
    session = said.read_text().strip()
    assert soon(lambda: not marked_pids(session))
    assert soon(lambda: not Path(f"/proc/{machine.pid}/task/{machine.pid}/children").read_text())
    init(join)
    assert rlplat.get(session_there.remote(), timeout=60) != session


def test_a_machine_that_is_slow_to_start_is_waited_for(join: str) -> None:
    keys = join_file.read(join)
    trunks: list[AgentTrunk] = []
    heard: list[Any] = []

    def answer() -> Any:
        return next((agent_messages.decode(frame) for _, _, frame, _ in trunks[-1].receive()), None)

    def be_slow() -> None:
        while not trunks or trunks[-1].has_ended:  # the head is not there yet
            trunks.append(AgentTrunk(keys))
            trunks[-1].tell(agent_messages.AskProgram(versions()))
            soon(lambda: trunks[-1].has_ended or heard.append(answer()) or heard[-1])
        time.sleep(2.5)  # its interpreter starts; longer than `init` waits for nobody
        trunks.append(AgentTrunk(keys, heard[-1].node))
        trunks[-1].tell(agent_messages.Join(heard[-1].node, {"CPU": 1.0, "GPU": 0.0}, 0, "slow", "", "s"))

    slow = threading.Thread(target=be_slow)
    slow.start()
    init(join)
    found = alive()
    slow.join()
    rlplat.shutdown()
    for trunk in trunks:
        trunk.close()
    assert found == ["n2", "node"]


def test_a_second_program_at_the_same_time_is_refused(join: str) -> None:
    init(join)
    script = f"import rlplat; rlplat.init(num_cpus=1, num_gpus=0, address={join!r})"
    second = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    address = join_file.read(join).address
    assert f"ConfigError: {address} is in use: another program has this cluster" in second.stderr
    rlplat.shutdown()


@pytest.mark.parametrize("whose", ["node", "head"])
def test_who_has_not_the_key_does_not_get_in(join: str, start: Start, tmp_path: Path, whose: str) -> None:
    keys = json.loads(Path(join).read_text())
    other = str(tmp_path / "other.json")
    join_file.make(other, "127.0.0.1", 0)
    strange = json.loads(Path(other).read_text())
    Path(other).write_text(json.dumps(keys | {f"{whose}_{part}": strange[f"{whose}_{part}"] for part in PARTS}))
    init(join)
    command = [sys.executable, "-m", "rlplat.cli", "start", "--address", other]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (refused.returncode, refused.stdout) == (2, "")
    waits, why = refused.stderr.splitlines()
    assert "waits for programs" in waits
    assert f"what listens at {keys['address']} refuses the keys in {other}" in why
    start("--resource", "far=1")
    assert rlplat.get(session_there.remote(), timeout=60)
    assert alive() == ["n2", "node"]


PARTS = ("public", "secret")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("head_public", "abc"),
        ("node_secret", "é" * 40),
        ("address", "nonsense"),
        ("address", 5),
        ("address", "a:65536"),
    ],
)
def test_a_join_file_that_is_none_is_refused_in_one_line(join: str, field: str, value: Any) -> None:
    Path(join).write_text(json.dumps(json.loads(Path(join).read_text()) | {field: value}))
    with pytest.raises(ConfigError, match=f"is no join file: .*{field}"):
        init(join)


def test_a_program_that_does_not_run_on_the_head_is_told_so(join: str) -> None:
    Path(join).write_text(json.dumps(json.loads(Path(join).read_text()) | {"address": "192.0.2.1:7000"}))
    with pytest.raises(ConfigError, match="runs on its head, the machine of that address"):
        init(join)


def test_who_connects_and_says_nothing_keeps_nobody_out(join: str, start: Start) -> None:
    """Or half a greeting; ZeroMQ gives them two seconds."""
    host, _, port = join_file.read(join).address.rpartition(":")
    init(join)
    silent = [socket.create_connection((host, int(port))) for _ in range(200)]
    try:
        for number, each in enumerate(silent[:100]):
            each.sendall(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03"[: number % 11])
        start("--resource", "far=1")
        assert rlplat.get(session_there.remote(), timeout=60)
        assert soon(lambda: all(is_closed(each) for each in silent))
    finally:
        for each in silent:
            each.close()


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(1000)  # its own greeting, and then the end
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def can_mount() -> bool:
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no mount namespace can be made here (root)")
def test_a_machine_without_room_for_objects_is_refused_in_words(join: str, start: Start) -> None:
    init(join)
    mount = 'mount -t tmpfs -o size=4m tmpfs /dev/shm && exec "$@"'
    command = [sys.executable, "-m", "rlplat.cli", "start", "--address", join, "--resource", "far=1"]
    full = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "-", *command], capture_output=True, text=True, timeout=60
    )
    assert full.returncode == 1
    assert "/dev/shm has only 4 MB free" in full.stderr.splitlines()[-1]
    start("--resource", "far=1")
    assert rlplat.get(session_there.remote(), timeout=60)


def test_what_has_no_key_or_speaks_no_zeromq_is_not_heard(join: str, start: Start) -> None:
    keys = json.loads(Path(join).read_text())
    host, _, port = keys["address"].rpartition(":")
    init(join)
    context = zmq.Context()
    plain, unknown = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    public, secret = zmq.curve_keypair()
    for option, value in (
        (zmq.CURVE_SERVERKEY, keys["head_public"].encode()),
        (zmq.CURVE_PUBLICKEY, public),
        (zmq.CURVE_SECRETKEY, secret),
    ):
        unknown.setsockopt(option, value)
    question = agent_messages.encode(agent_messages.AskProgram(versions()))
    for each in (plain, unknown):
        each.setsockopt(zmq.LINGER, 0)
        each.connect(f"tcp://{keys['address']}")
        each.send_multipart([b"", b"", question])
    garbage = random.Random(1)
    for _ in range(100):
        with socket.create_connection((host, int(port))) as stranger, contextlib.suppress(OSError):
            stranger.sendall(garbage.randbytes(garbage.randrange(1, 200)))
    start("--resource", "far=1")
    assert rlplat.get(session_there.remote(), timeout=60)  # others are heard meanwhile
    assert not plain.poll(500)
    assert not unknown.poll(500)
    assert alive() == ["n2", "node"]
    plain.close()
    unknown.close()
    context.term()


def test_other_versions_are_refused_in_words(join: str, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    init(join)
    script = (
        f"import rlplat; rlplat.__version__ = '0.0.1'\nfrom rlplat import machines\nmachines.work({join!r}, 1, 0, None)"
    )
    refused = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "with rlplat 0.0.1" in refused.stderr
    assert "all machines of a cluster need the same" in refused.stderr
    rlplat.shutdown()


def test_a_join_file_is_private_and_is_not_written_over(join: str, tmp_path: Path) -> None:
    assert os.stat(join).st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="is there already"):
        join_file.make(join, "127.0.0.1", 0)
    os.chmod(join, 0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        rlplat.init(num_cpus=1, num_gpus=0, address=join)
    with pytest.raises(ConfigError, match="rlplat start --head"):
        rlplat.init(num_cpus=1, num_gpus=0, address="10.0.0.1:6379")


ENV = """
import os
import gymnasium


class Env(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        with open({file!r}, "a") as file:
            file.write(os.environ.get("RLPLAT_SESSION", "") + "\\n")
"""


def test_a_training_has_rollout_workers_on_every_machine(
    start: Start, join: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its first step on, though the machines join after the program has begun."""
    from rlplat.cli import main

    monkeypatch.setenv("RLPLAT_ADDRESS", "")  # what --address sets is for this test only
    start()
    seen = tmp_path / "sessions"
    (tmp_path / "env.py").write_text(ENV.format(file=str(seen)))
    command = ["train", "--algo", "ppo", "--env", f"{tmp_path}/env.py:Env", "--address", join]
    command += ["--num-rollout-workers", "4", "--stop.env-steps", "4000", "--out", str(tmp_path / "run")]
    assert main(command) == 0, capsys.readouterr().err
    assert len({line for line in seen.read_text().splitlines() if line}) == 2
    monkeypatch.setenv("RLPLAT_ADDRESS", "")
    place = command.index("--address")
    assert main([*command[:place], *command[place + 2 : -1], str(tmp_path / "one")]) == 0
    assert returns_of(tmp_path / "run") == returns_of(tmp_path / "one")  # on one machine


def returns_of(run: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["env_steps"], row["episode_return_mean"]) for row in rows]


def test_a_head_that_cannot_reach_itself_writes_no_join_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentTrunk, "tell", lambda self, message: None)  # as where a firewall drops it
    monkeypatch.setattr(join_file, "_REACH_S", 0.1)
    with pytest.raises(ConfigError, match="was not reached from this machine itself"):
        join_file.make(str(tmp_path / "join.json"), "127.0.0.1", 0)
    assert not os.listdir(tmp_path)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_head_with_an_ipv6_address_is_reached(tmp_path: Path) -> None:
    keys = join_file.make(str(tmp_path / "six.json"), "::1", 0)
    head, agent = HeadTrunks(keys), AgentTrunk(keys, "n2")
    try:
        agent.tell(agent_messages.AskLease(1))
        heard: list[Any] = []
        assert soon(lambda: heard.extend(head.receive()) or heard)
        assert [machine for machine, *_ in heard] == [b"n2"]
    finally:
        agent.close()
        head.close()
