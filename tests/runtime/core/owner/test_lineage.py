"""Recipes of results: kept while something needs them, bounded, planned in the right order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlplat.runtime.core.owner.lineage import Broken, Lineage
from tests.runtime.core.validity import check_lineage


def lineage_of(needs: dict[int, tuple[int, ...]], live: set[int], **limits: int) -> Lineage:
    """One task for each object, which makes it from those that it needs."""
    lineage = Lineage(**limits)
    for id, of in needs.items():
        lineage.add((id,), f"f{id}", of, None, 100, 3, {id})
    for id in needs:
        if id not in live:
            lineage.freed(id)
    if len(needs) < 200:
        check_lineage(lineage)
    return lineage


def only(*there: int) -> Callable[[int], bool]:
    return lambda id: id in there


def planned(lineage: Lineage, id: int, is_there: Callable[[int], bool] | None = None) -> list[int]:
    plan = lineage.plan(id, is_there or only())
    assert not isinstance(plan, Broken), plan
    return [recipe.id for recipe in plan]


def test_what_was_freed_is_made_first() -> None:
    lineage = lineage_of({1: (), 2: (1,), 3: (2,)}, live={3})
    assert planned(lineage, 3) == [1, 2, 3]
    assert planned(lineage, 3, only(2)) == [3]
    assert planned(lineage, 3, only(1)) == [2, 3]


def test_a_diamond_runs_each_task_once() -> None:
    lineage = lineage_of({1: (), 2: (1,), 3: (1,), 4: (2, 3, 1)}, live={4})
    order = planned(lineage, 4)
    assert sorted(order) == [1, 2, 3, 4]
    assert order[0] == 1
    assert order[-1] == 4


def test_a_recipe_goes_with_the_last_that_needs_it() -> None:
    lineage = lineage_of({1: (), 2: (1,), 3: (1,)}, live={2, 3})
    assert set(lineage.recipes) == {1, 2, 3}
    lineage.freed(2)
    assert set(lineage.recipes) == {1, 3}
    check_lineage(lineage)
    lineage.freed(3)
    assert not lineage.recipes
    assert lineage.num_bytes == 0


def test_freeing_twice_or_a_stranger_changes_nothing() -> None:
    lineage = lineage_of({1: (), 2: (1,)}, live={2})
    lineage.freed(1)
    lineage.freed(99)
    check_lineage(lineage)
    assert planned(lineage, 2) == [1, 2]


def test_all_results_of_a_task_keep_its_recipe() -> None:
    lineage = Lineage()
    lineage.add((1, 2, 3), "f", (), None, 0, 3, {1, 3})
    lineage.freed(1)
    assert planned(lineage, 2) == planned(lineage, 3) == [1]
    lineage.freed(3)
    assert not lineage.recipes


def test_a_task_that_ran_again_keeps_its_recipe() -> None:
    lineage = lineage_of({1: (), 2: (1,)}, live={2})
    (recipe, _) = lineage.recipes.values()
    recipe.retries_left -= 1
    lineage.add((1,), "f1", (), None, 100, 3, {1})
    check_lineage(lineage)
    assert lineage.recipes[1].retries_left == 2
    assert lineage.recipes[1].live == {1}
    lineage.freed(2)
    assert set(lineage.recipes) == {1}


def test_what_has_no_recipe_is_named() -> None:
    lineage = lineage_of({2: (1,), 3: (2,)}, live={3})
    plan = lineage.plan(3, only())
    assert isinstance(plan, Broken)
    assert plan.id == 1
    assert "values of put" in plan.reason
    assert planned(lineage, 3, only(1)) == [2, 3]


def test_retries_bound_how_often_a_task_runs_again() -> None:
    lineage = lineage_of({1: (), 2: (1,)}, live={2})
    lineage.recipes[1].retries_left = 0
    plan = lineage.plan(2, only())
    assert isinstance(plan, Broken)
    assert (plan.id, "f1 may not run again" in plan.reason) == (1, True)
    lineage.recipes[1].retries_left = -1
    assert planned(lineage, 2) == [1, 2]


def test_the_oldest_is_forgotten_when_there_is_too_much() -> None:
    lineage = lineage_of({id: (id - 1,) for id in range(1, 101)}, live={100}, max_bytes=7_000)
    assert set(lineage.recipes) == set(range(91, 101))
    plan = lineage.plan(100, only())
    assert isinstance(plan, Broken)
    assert plan.id == 90
    assert "forgotten" in plan.reason
    assert planned(lineage, 100, only(95)) == [96, 97, 98, 99, 100]


def test_a_chain_beyond_the_depth_is_refused_and_no_recursion_limit_is_met() -> None:
    lineage = lineage_of({id: (id - 1,) for id in range(1, 5_001)}, live={5_000}, max_depth=3_000)
    plan = lineage.plan(5_000, only())
    assert isinstance(plan, Broken)
    assert "more than 3000 tasks in a row" in plan.reason
    assert len(planned(lineage, 5_000, only(2_100))) == 2_900
    lineage.freed(5_000)
    assert not lineage.recipes


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_the_order_of_freeing_does_not_matter(order: tuple[int, ...]) -> None:
    lineage = lineage_of({1: (), 2: (1,), 3: (2, 1)}, live={1, 2, 3})
    for id in order:
        lineage.freed(id)
        check_lineage(lineage)
    assert not lineage.recipes
