"""Tasks: arguments, refs among them, several returns, options."""

from __future__ import annotations

from typing import Any

import pytest

import rlplat
from rlplat.errors import ConfigError, TaskError


def test_arguments_and_keywords_arrive(backend: str) -> None:
    @rlplat.remote
    def describe(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> tuple:
        return a, b, rest, c, more

    assert rlplat.get(describe.remote(1)) == (1, 2, (), 3, {})
    assert rlplat.get(describe.remote(1, 5, 6, 7, c=8, d=9)) == (1, 5, (6, 7), 8, {"d": 9})


def test_a_chain_of_dependencies_runs_in_order(backend: str) -> None:
    @rlplat.remote
    def increment(x: int) -> int:
        return x + 1

    ref = rlplat.put(0)
    for _ in range(50):
        ref = increment.remote(ref)
    assert rlplat.get(ref) == 50


@pytest.mark.parametrize("num_returns", [2, 5])
def test_several_returns_are_several_refs(backend: str, num_returns: int) -> None:
    @rlplat.remote(num_returns=num_returns)
    def count() -> tuple[int, ...]:
        return tuple(range(num_returns))

    refs = count.remote()
    assert len(refs) == num_returns
    assert rlplat.get(refs[::-1]) == list(range(num_returns))[::-1]


def test_the_wrong_number_of_returns_is_an_error_of_each_ref(backend: str) -> None:
    @rlplat.remote(num_returns=2)
    def three() -> tuple[int, int, int]:
        return 1, 2, 3

    for ref in three.remote():
        with pytest.raises(TaskError, match="num_returns=2 but returned 3 values"):
            rlplat.get(ref)


def test_an_unknown_option_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"'num_cpu'.*did you mean 'num_cpus'"):
        rlplat.remote(num_cpu=1)(int)
    with pytest.raises(ConfigError, match="known options: num_cpus"):
        rlplat.remote(len).options(zzz=1)


@pytest.mark.parametrize(
    "options",
    [{"num_cpus": -1}, {"num_gpus": -1}, {"num_returns": -1}, {"num_returns": 1.5}, {"max_concurrency": 0}],
)
def test_a_bad_option_is_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        rlplat.remote(**options)


def test_calling_a_remote_function_directly_says_how() -> None:
    @rlplat.remote
    def f() -> None: ...

    with pytest.raises(TypeError, match=r"f\.remote\("):
        f()


def test_lambdas_and_classes_of_the_script_travel_by_value(backend: str) -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    @rlplat.remote
    def apply(f: Any, point: Point) -> Point:
        return Point(f(point.x))

    result = rlplat.get(apply.remote(lambda x: x + 1, Point(1)))
    assert isinstance(result, Point)
    assert result.x == 2


def test_a_task_gets_a_copy_of_its_argument(backend: str) -> None:
    @rlplat.remote
    def append(items: list) -> int:
        items.append(0)
        return len(items)

    items = [1, 2]
    assert rlplat.get(append.remote(items)) == 3
    assert items == [1, 2]


def test_many_small_tasks_keep_their_results_apart(backend: str) -> None:
    @rlplat.remote
    def square(x: int) -> int:
        return x * x

    assert rlplat.get([square.remote(i) for i in range(3000)]) == [i * i for i in range(3000)]


def test_tasks_of_different_demands_all_run(backend: str) -> None:
    @rlplat.remote
    def f(x: int) -> int:
        return x

    refs = [f.options(num_cpus=cpus).remote(i) for i in range(20) for cpus in (0, 0.5, 1, 2)]
    assert rlplat.get(refs) == [i for i in range(20) for _ in range(4)]
