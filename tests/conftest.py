"""Fixtures for every test: the leak meter around it, stacks of all processes when it runs out of time, and clusters;
and the lanes: `process` marks what starts a process, so that all other tests run in a minute or two."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

import rlplat
from rlplat.errors import NoSuchActor
from rlplat.runtime import refs as connection
from rlplat.runtime.look import observer
from tests.leak_meter import DROPS_FILE, MARK, LeakMeter, marked_processes
from tests.shared_cluster import OpenCluster, SharedCluster, own_cluster

SHARING = (
    "tests/algorithms/test_a3c.py",
    "tests/compat/",
    "tests/conformance/",
    "tests/faults/test_stream_death.py",
    "tests/faults/test_tuned_algorithm_death.py",
    "tests/faults/test_worker_death.py",
    "tests/given/",
    "tests/rl/learning/test_learner_group.py",
    "tests/runtime/inproc/",
    "tests/runtime/test_lifetime.py",
    "tests/serve/test_handles.py",
    "tests/serve/test_policy_faults.py",
    "tests/serve/test_updates.py",
    "tests/tune/",
)
"""Whose tests on processes share a cluster; in others (nodes that die, the runtime itself) each has its own."""
BACKENDS = ["inproc", "zmq", *(["ray"] if "RLPLAT_TEST_RAY" in os.environ else [])]

# How fast examples are made and run says how loaded the machine is, not whether the code is right.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")

# Torch's threads spin while they wait for each other. Beside other tests that costs six times the work itself.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background ignores Ctrl-C for them, and every child inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup does the same with this one
_started: list[str] = []
"""Programs that this process has started, interpreters mostly. (A fork that imports nothing costs next to nothing.)"""


def _note_starts(event: str, details: Any) -> None:
    if event == "subprocess.Popen":
        program = os.path.basename(str(details[0]))
        if program not in ("lscpu", "uname"):  # numpy.testing and `platform` ask them, once
            _started.append(program)


sys.addaudithook(_note_starts)
observer.ANSWER_S = 20.0  # nobody is left out because the machine keeps him from answering for a while


@pytest.fixture(scope="session", autouse=True)
def log_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clusters log in a folder of this process's own: no other run's clusters are in it, nor are its in theirs."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.getbasetemp() / "cluster-logs"
        patch.setenv("RLPLAT_LOG_DIR", str(root))
        patch.setenv(DROPS_FILE, str(tmp_path_factory.getbasetemp() / "dropped-messages"))
        patch.setattr("tests.leak_meter.log_root", root)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """What collecting makes lives as long as the process: no collection of garbage goes through its 800,000 objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        # A test may edit a file twice in a second: Python compares sizes and whole seconds, and would run the old one.
        sys.dont_write_bytecode = True
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What has a cluster of processes, a Ray or a PostgreSQL, is in the lane `process`, without saying so."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        params = getattr(getattr(item, "callspec", None), "params", {})
        backend = params.get("backend")
        if backend == "ray":
            item.add_marker(pytest.mark.on_ray)
        if fixtures & {"cluster", "torch_cluster", "server", "own_server"} or backend in ("zmq", "ray"):
            item.add_marker(pytest.mark.process)
    files: dict[Any, int] = {}
    items.sort(key=lambda item: (not is_long(item), files.setdefault(item.path, len(files)), shares_a_cluster(item)))


def is_long(item: pytest.Item) -> bool:
    """Those come first: else they are what all other test processes wait for at the end."""
    limit = item.get_closest_marker("timeout")
    return limit is not None and limit.args[0] > 120


def shares_a_cluster(item: pytest.Item) -> bool:
    """Whether it takes the cluster of the test before it. In a file those come last: one cluster may do for all."""
    backend = getattr(getattr(item, "callspec", None), "params", {}).get("backend", "zmq")
    fixtures = getattr(item, "fixturenames", ())
    takes_one = "open_cluster" in fixtures and backend == "zmq" and "may_drop" not in fixtures
    return takes_one and item.nodeid.startswith(SHARING)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Notes how many programs were started before the test and the fixtures that it is the first to use."""
    item.stash[_STARTED_BEFORE] = len(_started)
    return (yield)


_STARTED_BEFORE = pytest.StashKey[int]()


@pytest.fixture(autouse=True)
def lane(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of the fast lane that starts a program fails: it has to say so, or the lane would not stay fast."""
    yield
    started = _started[request.node.stash[_STARTED_BEFORE] :]
    if started and not any(map(request.node.get_closest_marker, ("process", "slow"))):
        pytest.fail(f"it started {started}: mark it with @pytest.mark.process", pytrace=False)


@pytest.fixture(scope="session")
def one_cluster() -> Iterator[SharedCluster]:
    cluster = SharedCluster()
    yield cluster
    cluster.end()
    cluster.check()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """The shared cluster ends before what a module starts for all of its tests: to its meter that would be a leak."""
    if fixturedef.scope == "module" and inspect.isgeneratorfunction(fixturedef.func):
        cluster: SharedCluster = request.getfixturevalue("one_cluster")
        cluster.end()
        cluster.check()


@pytest.fixture(autouse=True)
def leak_meter(request: pytest.FixtureRequest, one_cluster: SharedCluster) -> Iterator[LeakMeter | None]:
    """Fails the test when it leaves processes, shared memory, files, sockets or threads behind."""
    if shares_a_cluster(request.node):
        one_cluster.watch()
        yield None
        one_cluster.check()
        return
    one_cluster.end()
    one_cluster.check()
    if request.node.get_closest_marker("on_ray"):  # Ray keeps threads and files of its own
        yield None
        return
    meter = LeakMeter.start()
    yield meter
    leaks = meter.finish()
    if leaks:
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture
def may_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here messages that cannot be handled are sent on purpose."""
    monkeypatch.delenv(DROPS_FILE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """After pytest-timeout has dumped the stacks of this process, have the workers dump theirs (faulthandler)."""
    report = yield
    if report.when == "call" and report.failed and "Timeout" in str(call.excinfo and call.excinfo.value):
        for pid in marked_processes(os.environ.get(MARK, "-")):
            try:
                os.kill(pid, signal.SIGABRT)  # the node prints their last words on stderr
            except ProcessLookupError:
                pass
    return report


@pytest.fixture
def open_cluster(request: pytest.FixtureRequest, one_cluster: SharedCluster) -> OpenCluster:
    """`with open_cluster(num_cpus=2)`: a cluster with these options of `rlplat.init`, which others may have used."""
    return one_cluster.opened if shares_a_cluster(request.node) else own_cluster


@pytest.fixture
def cluster(open_cluster: OpenCluster) -> Iterator[None]:
    """A cluster of worker processes with 2 CPUs."""
    with open_cluster(num_cpus=2, num_gpus=0):
        yield


@pytest.fixture
def runtime() -> Iterator[None]:
    """All workers and actors in this process: an algorithm uses the runtime that is there."""
    rlplat.init(backend="inproc")
    yield
    rlplat.shutdown()


@pytest.fixture
def torch_cluster(open_cluster: OpenCluster) -> Iterator[None]:
    """The same for tests of training: torch is imported once, not in each of its workers."""
    with open_cluster(num_cpus=2, num_gpus=0, preload=["torch"]):
        yield


@pytest.fixture(scope="session")
def on_ray() -> Iterator[Any]:
    """One Ray cluster for all tests: its start takes seconds."""
    rlplat.init(num_cpus=2, num_gpus=0, backend="ray", log_to_driver=False, preload=["pydoc_data.topics"])
    yield connection.backend()
    rlplat.shutdown()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, open_cluster: OpenCluster) -> Iterator[str]:
    """Every backend in turn, with 2 CPUs: for what must be the same on all."""
    if request.param == "ray":
        opened = request.getfixturevalue("on_ray")
        connection.set_backend(opened)
        yield "ray"
        for _, name in opened.actor_names(True):
            with contextlib.suppress(NoSuchActor):  # it has ended meanwhile
                rlplat.kill(rlplat.get_actor(name))
        connection.set_backend(None)
        return
    if request.param == "zmq":
        with open_cluster(num_cpus=2, num_gpus=0):
            yield "zmq"
        return
    if (mark := request.node.get_closest_marker("beside")) is not None:
        pytest.skip(f"backend='inproc' runs nothing beside anything and counts no resources: {mark.args[0]}")
    rlplat.init(num_cpus=2, num_gpus=0, backend=request.param)
    yield request.param
    rlplat.shutdown()
