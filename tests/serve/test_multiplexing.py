"""Several models in a replica: which replica is called, which model goes, when it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvicorn")

import rlplat
from rlplat import serve
from rlplat.errors import ConfigError
from rlplat.serve.http.requests import application
from rlplat.serve.multiplexing import (
    BOUND,
    FEW_CALLS,
    ModelRequest,
    Slot,
    Slots,
    choose_replica,
)
from rlplat.serve.replica import Replica, ReplicaSpec
from tests.patience import soon
from tests.serve import apps
from tests.serve.calling import request

NAMES = [f"m-{number}" for number in range(6)]
ONGOING = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 20), min_size=1)
HELD = st.dictionaries(st.sampled_from(NAMES), st.sets(st.sampled_from("abc")))


@given(ongoing=ONGOING, held=HELD, model_id=st.sampled_from("abc"))
def test_a_replica_that_has_the_model_is_called_unless_it_is_too_busy(
    ongoing: dict[str, int], held: dict[str, set[str]], model_id: str
) -> None:
    chosen = choose_replica(model_id, ongoing, held)
    share = BOUND * (sum(ongoing.values()) + 1) / len(ongoing)
    free = {name for name, number in ongoing.items() if number < max(FEW_CALLS, share)}
    holders = {name for name in free if model_id in held.get(name, ())}
    assert chosen in (holders or free)
    if holders:
        assert ongoing[chosen] == min(ongoing[name] for name in holders)
    else:
        assert len(held.get(chosen, ())) == min(len(held.get(name, ())) for name in free)
    assert chosen == choose_replica(model_id, dict(reversed(ongoing.items())), held)  # no order matters


@given(num_models=st.integers(1, 20), num_replicas=st.integers(1, 6), turns=st.lists(st.integers(0, 19)))
def test_models_spread_evenly_and_each_is_loaded_once(num_models: int, num_replicas: int, turns: list[int]) -> None:
    ongoing = dict.fromkeys(NAMES[:num_replicas], 0)
    held: dict[str, set[str]] = {name: set() for name in ongoing}
    for turn in [*range(num_models), *turns]:
        model_id = str(turn % num_models)
        held[choose_replica(model_id, ongoing, held)].add(model_id)
    sizes = [len(models) for models in held.values()]
    assert sum(sizes) == num_models and max(sizes) - min(sizes) <= 1


@given(model_id=st.integers(0, 999).map(str), gone=st.sampled_from(NAMES))
def test_a_replica_that_leaves_moves_only_its_own_models(model_id: str, gone: str) -> None:
    before = choose_replica(model_id, dict.fromkeys(NAMES, 0), {})
    after = choose_replica(model_id, {name: 0 for name in NAMES if name != gone}, {})
    assert after == before or before == gone


def test_a_model_in_demand_is_loaded_by_a_second_replica() -> None:
    held = {"m-0": {"a"}, "m-1": set[str]()}
    assert choose_replica("a", {"m-0": 3, "m-1": 0}, held) == "m-0"
    assert choose_replica("a", {"m-0": 9, "m-1": 0}, held) == "m-1"


@given(max_models=st.integers(1, 4), steps=st.lists(st.tuples(st.sampled_from("abcde"), st.booleans())))
def test_slots_are_bounded_and_the_least_recently_used_of_no_user_goes(
    max_models: int, steps: list[tuple[str, bool]]
) -> None:
    slots, used = Slots(max_models), list[Slot]()
    recent: list[str] = []  # the model: ids by their last use
    for model_id, is_kept in steps:
        busy = {slot.model_id for slot in used}
        idle = [each for each in recent if each not in busy]
        taken = slots.take(model_id)
        if taken is None:
            assert model_id not in recent and len(recent) == max_models and not idle
            used.pop().users -= 1
            continue
        slot, evicted = taken
        if model_id in recent:
            assert evicted is None
            recent.remove(model_id)
        elif len(recent) == max_models:
            assert evicted is not None and evicted.model_id == idle[0] and evicted.users == 0
            recent.remove(idle[0])
        recent.append(model_id)
        if is_kept:
            used.append(slot)
        else:
            slot.users -= 1
        assert list(slots.by_id) == recent and len(recent) <= max_models


class Model:
    def __init__(self, events: list[str], name: str) -> None:
        self.events, self.name = events, name
        self.is_closed = False
        events.append(f"load {name}")

    def close(self) -> None:
        self.is_closed = True
        self.events.append(f"close {self.name}")


class Zoo:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.go = asyncio.Event()

    @serve.multiplexed(max_models=2)
    async def load(self, model_id: str) -> Model:
        await asyncio.sleep(0)
        if model_id == "broken" and "broken" not in self.events:
            self.events.append("broken")
            raise FileNotFoundError(model_id)
        return Model(self.events, model_id)

    async def __call__(self, wait: bool = False) -> str:
        model = await self.load(serve.model_id())
        if wait:
            await self.go.wait()
        assert not model.is_closed
        return model.name

    async def two(self, other: str) -> list[str]:
        return [(await self.load(each)).name for each in (serve.model_id(), other)]

    async def three(self) -> None:
        for each in "xyz":
            await self.load(each)

    def blocking(self) -> Any:
        return self.load(serve.model_id())


def in_zoo(story: Any) -> Zoo:
    """Runs `story(zoo, call)` with a replica of a Zoo in this process; call(model_id, method, *args)."""

    async def main() -> Zoo:
        replica = Replica()
        await replica.start(ReplicaSpec(None, "zoo-0", "Zoo", serve.deployment(Zoo), (), {}, None, {}))
        zoo = replica._object

        def call(model_id: str, method: str = "__call__", *args: Any) -> asyncio.Future[Any]:
            return asyncio.ensure_future(replica.call(method, model_id, *args))

        await story(zoo, call)
        await replica.drain()
        return zoo  # type: ignore[no-any-return]

    return asyncio.run(main())


def test_each_model_is_loaded_once_and_the_oldest_is_closed_before_the_next_is_loaded() -> None:
    async def story(zoo: Zoo, call: Any) -> None:
        assert await asyncio.gather(*(call(each) for each in "aabab")) == list("aabab")
        assert await call("a") == "a"
        assert await call("c") == "c"

    events = in_zoo(story).events
    assert events == ["load a", "load b", "close b", "load c", "close a", "close c"]


def test_a_model_in_use_is_not_closed_and_a_request_for_another_waits() -> None:
    async def story(zoo: Zoo, call: Any) -> None:
        held = [call("a", "__call__", True), call("b", "__call__", True)]
        late = call("c")
        for _ in range(50):
            await asyncio.sleep(0)
        assert zoo.events == ["load a", "load b"] and not late.done()
        zoo.go.set()
        assert await asyncio.gather(*held, late) == ["a", "b", "c"]

    assert in_zoo(story).events[:4] == ["load a", "load b", "close a", "load c"]


def test_a_caller_that_leaves_neither_ends_the_load_of_others_nor_keeps_a_slot() -> None:
    async def story(zoo: Zoo, call: Any) -> None:
        leaving, staying = call("a"), call("a")
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying == "a" and zoo.events == ["load a"]
        waiting = [call(each, "__call__", True) for each in "ab"]
        for _ in range(20):
            await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        assert await asyncio.gather(call("c"), call("d")) == ["c", "d"]

    in_zoo(story)


def test_what_goes_wrong_is_said_in_one_line_and_frees_its_slot() -> None:
    async def story(zoo: Zoo, call: Any) -> None:
        for _ in range(3):
            with pytest.raises(serve.Refused, match="no model is named: send the header x-model-id"):
                await call("")
        with pytest.raises(FileNotFoundError, match="broken"):
            await call("broken")
        assert await call("broken") == "broken"  # tried again
        assert await call("a", "two", "b") == ["a", "b"]
        with pytest.raises(ConfigError, match="takes more than max_models=2 models"):
            await call("a", "three")
        with pytest.raises(TypeError, match=r"Zoo\.load is awaited, in an `async def` method"):
            await call("a", "blocking")
        with pytest.raises(serve.Refused, match="expected 1 to 256 printable characters"):
            await call("a" * 257)
        assert await call("z") == "z"

    in_zoo(story)
    with pytest.raises(ConfigError, match="max_models is 1 or more, not 0"):
        serve.multiplexed(max_models=0)
    with pytest.raises(ConfigError, match="a method that takes a model's id"):
        serve.multiplexed(lambda: 1)
    with pytest.raises(serve.Refused, match="model_id is ''"):
        serve.Handle("Zoo").options(model_id="")
    assert serve.Handle("Zoo").options(model_id="a").options(retry=False).predict.model_id == "a"


def test_the_model_of_a_request_is_its_own_and_a_batch_has_none() -> None:
    seen: list[Any] = []

    class Batched:
        @serve.batch
        async def predict(self, inputs: list[Any]) -> list[Any]:
            try:
                seen.append(serve.model_id())
            except serve.Refused as refusal:
                seen.append(refusal.code)
            return inputs

    async def main() -> None:
        with ModelRequest("a"):
            assert serve.model_id() == "a"
            with ModelRequest("b"):
                assert serve.model_id() == "b"
            assert serve.model_id() == "a"
            await Batched().predict(1)

    asyncio.run(main())
    assert seen == ["model-needed"]


def served_at_once() -> str:
    return serve.model_id()


def served_as_a_stream() -> Iterator[str]:
    yield serve.model_id()


@pytest.mark.parametrize("served", [served_at_once, served_as_a_stream])
def test_a_def_that_takes_http_requests_knows_the_model_too(served: Any) -> None:

    sent: list[Any] = []

    async def receive() -> Any:
        return await asyncio.Future()

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        with ThreadPoolExecutor(1) as executor, ModelRequest("a"):
            await application(served, executor)(scope, receive, send)

    asyncio.run(main())
    assert b"".join(message.get("body", b"") for message in sent) == b"a"


@pytest.fixture(scope="module")
def running() -> Iterator[serve.Running]:
    rlplat.init(num_cpus=2, num_gpus=0)
    with serve.run(apps.Shop.bind(apps.Zoo.bind()), port=0) as running:
        yield running
    rlplat.shutdown()


@pytest.mark.process
def test_calls_go_to_the_replica_that_has_the_model(running: serve.Running) -> None:
    def answer(model_id: str) -> list[Any]:
        status, found, _ = request(running.url, "POST", "/", 1, {"x-model-id": model_id})
        assert status == 200
        return found  # type: ignore[no-any-return]

    first = {}
    for each in ("model0", "model1", "model2", "model3"):
        first[each] = answer(each)
        assert soon(lambda model=each: model in request(running.url, "GET", "/models")[1])
    pids = [pid for _, pid, _ in first.values()]
    assert sorted(map(pids.count, set(pids))) == [2, 2]  # as many as they hold: nothing is unloaded
    for each in [*first, *first]:
        assert answer(each) == first[each] == [each, first[each][1], 1]
    status, refusal, _ = request(running.url, "POST", "/", 1)
    assert (status, refusal["error"]["code"]) == (400, "model-needed")
    status, refusal, _ = request(running.url, "POST", "/", 1, {"x-model-id": "a" * 300})
    assert (status, refusal["error"]["code"]) == (400, "bad-model-id")
