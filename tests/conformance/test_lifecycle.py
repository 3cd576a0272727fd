"""init, shutdown, resources, and verbs at the wrong time or in the wrong process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import pytest

import rlplat
from rlplat.errors import ConfigError, InfeasibleResources, NotInitialized, OptionError

pytestmark = pytest.mark.process

BACKENDS = ["inproc", "zmq"]


@pytest.fixture(autouse=True)
def afterwards() -> Iterator[None]:
    yield
    rlplat.shutdown()


@pytest.mark.parametrize("name", BACKENDS)
def test_init_and_shutdown_can_be_repeated(name: str) -> None:
    for _ in range(3):
        assert not rlplat.is_initialized()
        rlplat.init(num_cpus=1, backend=name)
        assert rlplat.is_initialized()
        assert rlplat.get(rlplat.put(1)) == 1
        rlplat.shutdown()
        rlplat.shutdown()


@pytest.mark.parametrize("name", BACKENDS)
def test_init_twice_says_what_to_do(name: str) -> None:
    rlplat.init(num_cpus=1, backend=name)
    with pytest.raises(ConfigError, match=r"rlplat\.shutdown\(\) first"):
        rlplat.init(backend=name)


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ConfigError, match="'carrier pigeon': 'zmq', 'inproc' or 'ray'"):
        rlplat.init(backend="carrier pigeon")
    assert not rlplat.is_initialized()


@pytest.mark.parametrize("options", [{"num_cpus": -1}, {"num_gpus": -1}, {"resources": {"disk": -1.0}}])
def test_negative_resources_are_refused(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options)).replace("resources", "disk")):
        rlplat.init(**options)
    assert not rlplat.is_initialized()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("value", [math.inf, math.nan, "2", True, 10**400], ids=lambda v: str(v)[:4])
@pytest.mark.parametrize("option", ["num_cpus", "num_gpus", "resources"])
def test_what_is_no_amount_is_refused(name: str, option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"rlplat\.init: {option}.* must be .*, not ") as caught:
        rlplat.init(backend=name, **{option: {"disk": value} if option == "resources" else value})
    assert repr(value)[:50] in str(caught.value)
    assert not rlplat.is_initialized()


@pytest.mark.parametrize("resources", [{5: 1}, {"\udcff": 1}, ["disk"]])
def test_what_does_not_name_resources_is_refused(resources: Any) -> None:
    with pytest.raises(ConfigError, match=r"rlplat\.init: resources.* must be "):
        rlplat.init(resources=resources)
    assert not rlplat.is_initialized()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("namespace", [5, "\udcff"])
def test_a_namespace_that_is_no_text_is_refused(name: str, namespace: Any) -> None:
    with pytest.raises(OptionError, match=r"rlplat\.init: namespace must be text"):
        rlplat.init(backend=name, namespace=namespace)
    assert not rlplat.is_initialized()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    ("preload", "message"),
    [
        ("torch", "must be a list of texts, not 'torch'"),
        (b"torch", "must be a list of texts, not b'torch'"),
        (None, "must be a list of texts, not None"),
        ([5], "each must be text, not 5"),
    ],
)
def test_a_preload_that_is_no_list_of_names_is_refused(name: str, preload: Any, message: str) -> None:
    with pytest.raises(OptionError, match=rf"rlplat\.init: preload.* {message}"):
        rlplat.init(backend=name, preload=preload)
    assert not rlplat.is_initialized()


@pytest.mark.parametrize("name", BACKENDS)
def test_what_belongs_to_an_ended_cluster_says_so(name: str) -> None:
    class Actor:
        def f(self) -> int:
            return 1

    rlplat.init(num_cpus=1, backend=name)
    ref, actor = rlplat.put(1), rlplat.remote(Actor).remote()
    rlplat.get(actor.f.remote())
    rlplat.shutdown()
    with pytest.raises(NotInitialized):
        actor.f.remote()
    with pytest.raises(NotInitialized):
        rlplat.kill(actor)
    with pytest.raises(NotInitialized):
        rlplat.get(ref)
    with pytest.raises(NotInitialized):
        rlplat.wait([ref])


@pytest.mark.parametrize("name", BACKENDS)
def test_a_ref_of_an_earlier_cluster_is_not_one_of_this_one(name: str) -> None:
    rlplat.init(num_cpus=1, backend=name)
    stale = [rlplat.put("old") for _ in range(5)]
    rlplat.shutdown()
    rlplat.init(num_cpus=1, backend=name)
    fresh = [rlplat.put("new") for _ in range(5)]
    with pytest.raises(NotInitialized, match="cluster that was shut down"):
        rlplat.get(stale[0])
    assert not set(stale) & set(fresh)
    del stale
    rlplat.put(0)
    assert rlplat.get(fresh) == ["new"] * 5


def test_the_first_task_starts_a_cluster() -> None:
    @rlplat.remote
    def f() -> int:
        return 1

    assert not rlplat.is_initialized()
    assert rlplat.get(f.remote()) == 1
    assert rlplat.is_initialized()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_forked_child_is_refused_and_the_parent_unharmed(name: str) -> None:
    rlplat.init(num_cpus=1, backend=name)
    ref = rlplat.put(1)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            rlplat.get(ref)
            text = "no error"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    text = os.read(read, 4096).decode()
    os.close(read)
    os.close(write)
    assert text.startswith("NotInitialized")
    assert "forked" in text
    assert "os.fork" in text

    @rlplat.remote
    def f(x: int) -> int:
        return x + 1

    assert rlplat.get(f.remote(ref)) == 2


@pytest.mark.beside("resources")
def test_resources_are_counted(backend: str) -> None:
    class Actor:
        def f(self) -> None: ...

    assert rlplat.cluster_resources() == {"CPU": 2.0, "GPU": 0.0}
    actor = rlplat.remote(num_cpus=1.5)(Actor).remote()
    rlplat.get(actor.f.remote())
    assert rlplat.available_resources()["CPU"] == 0.5
    rlplat.kill(actor)
    while rlplat.available_resources()["CPU"] != 2:
        pass


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_gpus": 8}, r"8 GPU \(the cluster has 0\).*num_gpus"),
        ({"num_cpus": 3}, r"3 CPU \(the cluster has 2\).*num_cpus"),
        ({"resources": {"robot": 1}}, r"1 robot \(the cluster has 0\).*resources"),
    ],
    ids=["gpu", "cpu", "custom"],
)
def test_what_can_never_be_had_is_refused_at_once(name: str, options: dict, words: str) -> None:
    rlplat.init(num_cpus=2, num_gpus=0, backend=name)

    class Actor:
        pass

    with pytest.raises(InfeasibleResources, match=f"task f needs {words}"):
        _named_f(options).remote()
    with pytest.raises(InfeasibleResources, match=f"actor .*Actor needs {words}"):
        rlplat.remote(**options)(Actor).remote()


def _named_f(options: dict) -> Any:
    def f() -> None: ...

    f.__qualname__ = "f"
    return rlplat.remote(**options)(f)


def test_custom_resources_bound_how_many_run() -> None:
    rlplat.init(num_cpus=4, num_gpus=0, resources={"robot": 1})

    class Actor:
        def f(self) -> int:
            return 1

    first = rlplat.remote(resources={"robot": 1})(Actor).remote()
    second = rlplat.remote(resources={"robot": 1})(Actor).remote()
    assert rlplat.get(first.f.remote()) == 1
    with pytest.raises(TimeoutError, match="waits for its resources"):
        rlplat.get(second.f.remote(), timeout=0.2)
    rlplat.kill(first)
    assert rlplat.get(second.f.remote(), timeout=60) == 1


# CUDA_VISIBLE_DEVICES is a property of a process: the in-process backend leaves the driver's alone.


def test_each_worker_sees_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    rlplat.init(num_cpus=2, num_gpus=2)

    class Actor:
        def see(self) -> tuple[str, tuple[int, ...]]:
            import os

            return os.environ["CUDA_VISIBLE_DEVICES"], rlplat.get_runtime_context().gpu_ids

    one = rlplat.remote(num_gpus=1)(Actor).remote()
    two = rlplat.remote(num_gpus=1)(Actor).remote()
    none = rlplat.remote(Actor).remote()
    seen = rlplat.get([one.see.remote(), two.see.remote()])
    assert sorted(seen) == [("5", (0,)), ("7", (1,))]
    assert rlplat.get(none.see.remote()) == ("", ())
    rlplat.kill(one)
    rlplat.kill(two)
    both = rlplat.remote(num_gpus=2)(Actor).remote()
    assert rlplat.get(both.see.remote()) == ("5,7", (0, 1))


def test_fractions_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    rlplat.init(num_cpus=2, num_gpus=1)

    class Actor:
        def see(self) -> str:
            import os

            return os.environ["CUDA_VISIBLE_DEVICES"]

    actors = [rlplat.remote(num_gpus=0.5)(Actor).remote() for _ in range(2)]
    assert rlplat.get([actor.see.remote() for actor in actors]) == ["0", "0"]
    assert rlplat.available_resources()["GPU"] == 0

    @rlplat.remote(num_gpus=1)
    def task() -> str:
        import os

        return os.environ["CUDA_VISIBLE_DEVICES"]

    ref = task.remote()
    with pytest.raises(TimeoutError):
        rlplat.get(ref, timeout=0.2)
    for actor in actors:
        rlplat.kill(actor)
    assert rlplat.get(ref, timeout=60) == "0"
