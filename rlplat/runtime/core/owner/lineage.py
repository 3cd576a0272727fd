"""How the results of this process's tasks were made, to make them again when their bytes are lost. Pure.

Rules
1. A finished task with large results leaves a recipe: its call, and the objects of this process that it needs.
2. A recipe is kept while one of its results lives, or while another kept recipe needs one of them: the values of an
   intermediate result may go, how to make it stays.
3. Recipes take `MAX_BYTES` in all, the oldest go first; what needed them cannot be made again then.
4. `plan` lists the tasks to run for a lost object, those first whose results others need. It goes `MAX_DEPTH` deep.
5. Running again is charged to the task's retries, like running again after a crash.
6. Values of `put` and large arguments that were passed by value have no recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

MAX_BYTES = 64 << 20
MAX_DEPTH = 1000
_RECIPE_BYTES = 600
"""What a recipe takes besides the bytes of its arguments, roughly."""


class Recipe(msgspec.Struct, eq=False):
    id: int
    """Of the task: that of its first result."""
    ids: tuple[int, ...]
    name: str
    needs: tuple[int, ...]
    """Objects of this process among the arguments, at any depth."""
    call: Any
    num_bytes: int
    retries_left: int
    live: set[int]
    """Results that live, with bytes that could be lost."""
    producers: list[Recipe]
    num_dependents: int = 0


class Broken(msgspec.Struct):
    """A lost object that cannot be made again: `id` is what is missing for it (itself, or deep among the arguments)."""

    id: int
    reason: str


class Lineage:
    def __init__(self, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> None:
        self._max_bytes, self._max_depth = max_bytes, max_depth
        self.recipes: dict[int, Recipe] = {}
        """By task, oldest first."""
        self.num_bytes = 0
        self._by_output: dict[int, Recipe] = {}

    def find(self, id: int) -> Recipe | None:
        """The recipe that makes an object."""
        return self._by_output.get(id)

    def add(
        self,
        ids: tuple[int, ...],
        name: str,
        needs: tuple[int, ...],
        call: Any,
        call_bytes: int,
        retries_left: int,
        live: set[int],
    ) -> None:
        """The task is done, and the results `live` have bytes; it may have been done before."""
        known = self.recipes.get(ids[0])
        if known is not None:
            known.live |= live
            return
        producers = list({id(p): p for need in needs if (p := self._by_output.get(need)) is not None}.values())
        num_bytes = _RECIPE_BYTES + call_bytes
        recipe = Recipe(ids[0], ids, name, needs, call, num_bytes, retries_left, set(live), producers)
        for producer in producers:
            producer.num_dependents += 1
        self.recipes[recipe.id] = recipe
        for output in ids:
            self._by_output[output] = recipe
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes and self.recipes:
            self._drop(next(iter(self.recipes.values())))

    def freed(self, output: int) -> None:
        """Nobody needs this object any more, or it has no bytes that could be lost."""
        recipe = self._by_output.get(output)
        if recipe is not None:
            recipe.live.discard(output)
            if not recipe.live and not recipe.num_dependents:
                self._drop(recipe)

    def _drop(self, recipe: Recipe) -> None:
        """Forget it, and what was kept for its sake."""
        todo = [recipe]
        while todo:
            recipe = todo.pop()
            if self.recipes.pop(recipe.id, None) is None:
                continue
            self.num_bytes -= recipe.num_bytes
            for output in recipe.ids:
                del self._by_output[output]
            for producer in recipe.producers:
                producer.num_dependents -= 1
                if not producer.num_dependents and not producer.live:
                    todo.append(producer)
            recipe.producers = []

    def plan(self, lost: int, is_there: Callable[[int], bool]) -> list[Recipe] | Broken:
        """Tasks to run again, in order, so that `lost` is there again; `is_there` tells of any other object."""
        recipe = self._by_output.get(lost)
        if recipe is None:
            return Broken(lost, self._why(lost))
        order: list[Recipe] = []
        seen = {recipe.id}
        stack = [(recipe, iter(recipe.needs))]
        while stack:
            recipe, needs = stack[-1]
            if not recipe.retries_left:
                return Broken(recipe.id, f"{recipe.name} may not run again: its max_retries are used up")
            for need in needs:
                if is_there(need):
                    continue
                producer = self._by_output.get(need)
                if producer is None:
                    return Broken(need, self._why(need))
                if producer.id not in seen:
                    seen.add(producer.id)
                    stack.append((producer, iter(producer.needs)))
                    break
            else:
                order.append(recipe)
                stack.pop()
            if len(stack) > self._max_depth:
                return Broken(lost, f"more than {self._max_depth} tasks in a row would have to run again")
        return order

    def _why(self, id: int) -> str:
        return (
            "it is not the result of a task that could run again: values of put, large arguments passed by value and "
            "results of actors without max_task_retries have no lineage, and of the oldest tasks it is forgotten "
            f"beyond {self._max_bytes >> 20} MiB"
        )
