"""Batches: rows are counted, every caller gets its own rows, a poisoned item fails alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplat.serve import batch
from rlplat.serve.batching import Batcher, Piece, Waiting, take_batch
from rlplat.serve.refusals import Gate, Refused

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
        batcher = Batcher(run, max_rows=max_rows, join=lambda parts: [row for part in parts for row in part])
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

        @batch(max_rows=3)
        async def predict(self, inputs: list[int]) -> list[Any]:
            self.sizes.append(len(inputs))
            return [ValueError("odd") if x == 13 else x + self.add for x in inputs]

        @batch
        async def wrong(self, inputs: list[int]) -> Any:
            return 3

    async def main() -> None:
        one, two = Model(1), Model(100)
        answers = await asyncio.gather(
            *(one.predict(x) for x in (1, 2, 13, 4)), two.predict(7), return_exceptions=True
        )
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
