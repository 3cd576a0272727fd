"""Batches: rows are counted, every caller gets its own rows, a poisoned item fails alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat import serve
from rlplat.errors import ConfigError
from rlplat.serve import batch
from rlplat.serve.batching import Batcher, Piece, Waiting, batched, seconds_to_wait, take_batch
from rlplat.serve.refusals import Gate, Refused
from rlplat.serve.replica import Replica, ReplicaSpec

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(sizes=SIZES, max_rows=st.integers(1, 8))
def test_every_row_is_taken_once_in_order_and_no_batch_is_too_large(sizes: list[int], max_rows: int) -> None:
    loop = asyncio.new_event_loop()
    try:
        queue = deque(Waiting(index, size, loop.create_future()) for index, size in enumerate(sizes))
        taken: list[tuple[int, int]] = []
        while queue:
            pieces = take_batch(queue, max_rows)
            rows = sum(piece.stop - piece.start for piece in pieces)
            assert 1 <= rows <= max_rows
            assert rows == max_rows or not queue
            taken += [(piece.item, row) for piece in pieces for row in range(piece.start, piece.stop)]
        assert taken == [(index, row) for index, size in enumerate(sizes) for row in range(size)]
    finally:
        loop.close()


@given(sizes=SIZES, max_rows=st.integers(1, 8), poisoned=st.sets(st.integers(0, 11), max_size=3))
def test_callers_get_their_own_rows_and_a_poisoned_one_fails_alone(
    sizes: list[int], max_rows: int, poisoned: set[int]
) -> None:
    def run(pieces: list[Piece]) -> Sequence[Any]:
        if any(piece.item in poisoned for piece in pieces):
            raise ValueError("poison")
        return [[(piece.item, row) for row in range(piece.start, piece.stop)] for piece in pieces]

    async def all_at_once() -> list[Any]:
        batcher = Batcher(
            run,
            max_rows=max_rows,
            join=lambda parts: [row for part in parts for row in part],
            retries_singly=True,
        )
        futures = [batcher.submit(index, size) for index, size in enumerate(sizes)]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        await asyncio.sleep(0)
        assert batcher.num_waiting_rows == 0
        return answers

    for index, answer in enumerate(asyncio.run(all_at_once())):
        if index in poisoned:
            assert isinstance(answer, ValueError)
        else:
            assert answer == [(index, row) for row in range(sizes[index])]


def test_what_waits_while_the_function_runs_is_the_next_batch() -> None:
    batches: list[int] = []

    async def main() -> None:
        free = asyncio.Event()

        async def run(pieces: list[Piece]) -> Sequence[Any]:
            batches.append(len(pieces))
            await free.wait()
            return [piece.item for piece in pieces]

        batcher = Batcher(run, max_rows=100)
        first = batcher.submit(0)
        while not batches:
            await asyncio.sleep(0)
        rest = [batcher.submit(index) for index in range(1, 8)]
        free.set()
        assert await first == 0 and await asyncio.gather(*rest) == list(range(1, 8))

    asyncio.run(main())
    assert batches == [1, 7]


def test_a_caller_that_is_usually_alone_is_answered_at_once_and_two_still_share_a_batch() -> None:
    batches: list[list[int]] = []

    def run(pieces: list[Piece]) -> Sequence[Any]:
        batches.append([piece.item for piece in pieces])
        return batches[-1]

    async def main() -> None:
        batcher = Batcher(run, max_rows=100)

        async def ask(*items: int) -> list[bool]:
            futures = [batcher.submit(item) for item in items]
            were_done = [future.done() for future in futures]
            assert await asyncio.gather(*futures) == list(items)
            for _ in range(3):  # turns of the loop
                await asyncio.sleep(0)
            return were_done

        assert await ask(1) == [False]  # others might arrive in this turn
        assert await ask(2) == [True]
        assert await ask(3, 4) == [True, False]
        assert await ask(5, 6) == [False, False]
        assert await ask(7) == [False] and await ask(8) == [True]

    asyncio.run(main())
    assert batches == [[1], [2], [3], [4], [5, 6], [7], [8]]


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.booleans()), max_size=8),
    max_rows=st.integers(1, 12),
    now=st.integers(9, 12),
)
def test_a_batch_waits_for_its_oldest_row_only_and_only_while_it_is_not_full(
    arrivals: list[tuple[int, int, bool]], max_rows: int, now: int
) -> None:
    loop = asyncio.new_event_loop()
    try:
        queue = deque(Waiting(None, rows, loop.create_future(), float(since)) for since, rows, _ in sorted(arrivals))
        for waiting, (_, _, has_left) in zip(queue, sorted(arrivals), strict=True):
            if has_left:
                waiting.future.cancel()
        there = [waiting for waiting in queue if not waiting.future.done()]
        wait_s = seconds_to_wait(queue, max_rows, 8.0, float(now))
        if not there or sum(waiting.num_rows for waiting in there) >= max_rows:
            assert wait_s == 0
        else:
            assert wait_s == max(0.0, there[0].since + 8.0 - now)
    finally:
        loop.close()


def test_max_wait_waits_for_a_full_batch_and_no_longer_than_it_says() -> None:
    batches: list[int] = []

    def run(pieces: list[Piece]) -> Sequence[Any]:
        batches.append(len(pieces))
        return [piece.item for piece in pieces]

    async def main() -> None:
        patient = Batcher(run, max_rows=4, max_wait_s=1000.0)
        futures = [patient.submit(index) for index in range(3)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not batches
        futures += [patient.submit(index) for index in range(3, 9)]  # two full batches, and one that waits
        assert await asyncio.gather(*futures[:8]) == list(range(8))
        for _ in range(20):
            await asyncio.sleep(0)
        assert batches == [4, 4] and not futures[8].done()
        futures[8].cancel()
        assert await Batcher(run, max_rows=4, max_wait_s=0.001).submit(9) == 9

    asyncio.run(main())
    assert batches == [4, 4, 1]


CALLS: list[int] = []


class Sizes:
    """Answers with its input and the number of inputs that it came with."""

    def __call__(self, inputs: list[Any]) -> list[Any]:
        CALLS.append(len(inputs))
        if "poison" in inputs:
            raise ValueError("poison")
        return [KeyError("odd") if x == 13 else (x, len(inputs)) for x in inputs]

    async def awaited(self, inputs: list[Any]) -> list[Any]:
        await asyncio.sleep(0)
        return self(inputs)


def sizes(inputs: list[Any]) -> list[Any]:
    return Sizes()(inputs)


def calls_of(target: Any, options: serve.Batch, inputs: list[Any], method: str = "__call__") -> list[Any]:
    """What the calls of a replica answer that arrive at once."""
    deployment = serve.deployment(batch=options)(target)

    async def main() -> list[Any]:
        replica = Replica()
        await replica.start(ReplicaSpec(None, "sizes-0", "Sizes", deployment, (), {}, None, {}))
        answers = await asyncio.gather(*(replica.call(method, "", x) for x in inputs), return_exceptions=True)
        await replica.drain()
        return answers

    return asyncio.run(main())


@pytest.mark.parametrize(("target", "method"), [(Sizes, "__call__"), (Sizes, "awaited"), (sizes, "__call__")])
def test_the_option_batches_the_calls_of_any_deployment(target: Any, method: str) -> None:
    options = serve.Batch(max_size=3, method=method)
    assert calls_of(target, options, [0, 1, 2, 3], method) == [(0, 3), (1, 3), (2, 3), (3, 1)]
    CALLS.clear()
    answers = calls_of(target, options, ["poison", 13, 2], method)
    assert [type(each) for each in answers] == 3 * [ValueError] and CALLS == [3], "effects happen once"
    answers = calls_of(target, serve.Batch(max_size=3, method=method, retry_singly=True), ["poison", 13, 2], method)
    assert [type(each) for each in answers] == [ValueError, KeyError, tuple] and CALLS == [3, 3, 1, 1, 1]


@given(rows=st.lists(st.integers(0, 7), min_size=1, max_size=6), max_size=st.integers(1, 5))
@settings(max_examples=30)
def test_calls_with_many_rows_get_their_own_and_no_batch_has_more(rows: list[int], max_size: int) -> None:
    inputs = [[(call, row) for row in range(count)] for call, count in enumerate(rows)]

    async def main() -> list[Any]:
        with ThreadPoolExecutor(1) as executor:
            call = batched(Sizes().__call__, serve.Batch(max_size=max_size, many=True), "Sizes", executor)
            return await asyncio.gather(*map(call, inputs))

    answers = asyncio.run(main())
    assert [[x for x, _ in answer] for answer in answers] == inputs
    assert all(1 <= size <= max_size for answer in answers for _, size in answer)


def test_many_takes_arrays_and_says_what_it_does_not_take() -> None:
    array = np.arange(6.0).reshape(3, 2)

    def sums(inputs: list[Any]) -> list[float]:
        return [float(row.sum()) for row in inputs]

    whole, text = calls_of(sums, serve.Batch(max_size=2, many=True), [array, "abc"])
    assert whole == [1.0, 5.0, 9.0]
    assert str(text).startswith("Sizes.__call__ takes many inputs (batch.many): a list or an array, not str")


def test_options_that_cannot_be_are_refused() -> None:
    for wrong, text in (
        ({"max_size": 0}, "bad value for 'batch.max_size'"),
        ({"max_wait_ms": -1}, "bad value for 'batch.max_wait_ms'"),
        ({"max_wait_ms": float("nan")}, "bad value for 'batch.max_wait_ms'"),
        ({"max_rows": 3}, "unknown key 'batch.max_rows'.*; did you mean"),
        ({"max_size": 128}, "a batch of 128 never fills where 100 requests run at once"),
    ):
        with pytest.raises(ConfigError, match=text):
            serve.deployment(batch=wrong)(Sizes)
    with pytest.raises(ConfigError, match="bad value for 'batch'"):
        serve.deployment(batch=32)(Sizes)

    def words(inputs: list[Any]) -> Any:
        yield from inputs

    with pytest.raises(ConfigError, match=r"Sizes\.__call__ is batched and yields"):
        calls_of(words, serve.Batch(), [])
    with pytest.raises(AttributeError, match="Sizes has no method 'predict'"):
        calls_of(Sizes, serve.Batch(method="predict"), [])


def test_a_full_queue_refuses_and_a_caller_that_left_takes_no_row() -> None:
    async def main() -> None:
        seen: list[int] = []

        def run(pieces: list[Piece]) -> Sequence[Any]:
            seen.extend(piece.item for piece in pieces)
            return [piece.item for piece in pieces]

        batcher = Batcher(run, max_rows=4, max_waiting_rows=5)
        futures = [batcher.submit(index) for index in range(5)]
        with pytest.raises(Refused) as refusal:
            batcher.submit(5)
        assert refusal.value.status == 503 and refusal.value.retry_after_s
        futures[2].cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        assert seen == [0, 1, 3, 4] and batcher.num_waiting_rows == 0
        assert await batcher.submit(9, num_rows=7) == 9  # larger than the queue, which is empty

    asyncio.run(main())


def test_a_slow_function_goes_to_the_thread() -> None:
    import threading
    import time

    async def main() -> set[str]:
        with ThreadPoolExecutor(1, thread_name_prefix="elsewhere") as executor:
            threads: set[str] = set()

            def run(pieces: list[Piece]) -> Sequence[Any]:
                threads.add(threading.current_thread().name.split("_")[0])
                time.sleep(0.006)
                return [None] * len(pieces)

            batcher = Batcher(run, max_rows=4, executor=executor)
            for _ in range(3):
                await batcher.submit(0)
            return threads

    assert asyncio.run(main()) == {"MainThread", "elsewhere"}


def test_one_batch_that_took_long_moves_nothing_to_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading
    import time

    async def main() -> None:
        clock = [0.0]
        monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
        with ThreadPoolExecutor(1) as executor:
            threads: list[str] = []

            def run(pieces: list[Piece]) -> Sequence[Any]:
                threads.append(threading.current_thread().name)
                clock[0] += 0.5 if len(threads) == 20 else 0.0001  # once the process had no CPU
                return [None] * len(pieces)

            batcher = Batcher(run, max_rows=4, executor=executor)
            for _ in range(40):
                await batcher.submit(0)
            assert set(threads) == {"MainThread"}

    asyncio.run(main())


def test_the_decorator_batches_per_object_and_checks_what_comes_back() -> None:
    class Model:
        def __init__(self, add: int) -> None:
            self.add, self.sizes = add, []

        @batch(max_size=3)
        async def predict(self, inputs: list[int]) -> list[Any]:
            self.sizes.append(len(inputs))
            return [ValueError("odd") if x == 13 else x + self.add for x in inputs]

        @batch
        async def wrong(self, inputs: list[int]) -> Any:
            return 3

    async def main() -> None:
        one, two = Model(1), Model(100)
        answers = await asyncio.gather(*(one.predict(x) for x in (1, 2, 13, 4)), two.predict(7), return_exceptions=True)
        assert [answers[0], answers[1], answers[3], answers[4]] == [2, 3, 5, 107]
        assert isinstance(answers[2], ValueError) and one.sizes == [3, 1]
        with pytest.raises(TypeError, match="a list of one result for each input"):
            await one.wrong(1)

    asyncio.run(main())


def test_the_gate_counts_and_refuses_and_lets_go_of_those_who_leave() -> None:
    async def main() -> None:
        gate = Gate("model", 1, 1)
        release = asyncio.Event()

        async def request() -> None:
            async with gate:
                await release.wait()

        running, waiting = asyncio.create_task(request()), asyncio.create_task(request())
        while gate.ongoing < 2:
            await asyncio.sleep(0)
        with pytest.raises(Refused, match="1 requests wait"):
            async with gate:
                pass
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (gate.running, gate.waiting) == (1, 0)
        release.set()
        await running
        assert gate.ongoing == 0
        async with gate:
            assert gate.running == 1

    asyncio.run(main())
