"""Who waits for whom: the node finds cycles, which would wait for ever, and says so. Pure: events in, actions out.

Rules
1. A worker whose task or actor call waits tells for which objects (`Blocked`); for how long does not matter at first.
2. Every `ROUND_S` while somebody has waited that long, the owners of those objects are asked who makes them, and of
   what those in turn wait for. An answer is true of one moment only: each round starts from nothing.
3. A worker goes on when all its objects are there; an object comes when its worker goes on and all its arguments are
   there. A cycle in this relation never ends. It is reported when two rounds in a row have found it, and once.
4. An actor that runs several calls at once is blocked while all of them wait. It goes on when one of them does, and the
   graph knows "waits for all of these" only: so it names no objects, and no cycle through it is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rlplat.runtime.wire.values import Key

ROUND_S = 4.0


@dataclass(frozen=True)
class Ask:
    """Ask the owner which worker will make these objects (`WhoMakes`)."""

    owner: str
    ids: list[int]


@dataclass(frozen=True)
class Warn:
    """Print this where the user looks."""

    text: str


Action = Ask | Warn


@dataclass
class _Maker:
    worker: str
    name: str
    waits: list[Key] = field(default_factory=list)


class WaitGraph:
    def __init__(self, who: Callable[[str], str]) -> None:
        self._who = who
        """The name of a worker, for people."""
        self._waits: dict[str, tuple[float, list[Key]]] = {}
        """Of blocked workers: since when, for what."""
        self._makers: dict[Key, _Maker] = {}
        """What this round has found out so far."""
        self._asked: set[Key] = set()
        self._next_round: float | None = None
        self._suspected: set[frozenset[str]] = set()
        """Cycles (their workers) that the last round found."""
        self._reported: set[frozenset[str]] = set()

    # -- events

    def blocked(self, worker: str, on: list[Key], now: float) -> None:
        self._waits[worker] = (now, on)
        if self._next_round is None and on:
            self._next_round = now + ROUND_S

    def unblocked(self, worker: str) -> None:
        """It goes on, or is dead."""
        if self._waits.pop(worker, None) is not None:
            self._reported = {cycle for cycle in self._reported if worker not in cycle}
            self._suspected = {cycle for cycle in self._suspected if worker not in cycle}

    def found(self, key: Key, worker: str, name: str, waits: list[Key]) -> list[Action]:
        """An owner's answer (`Makes`)."""
        if key not in self._asked:
            return []
        self._makers[key] = _Maker(worker, name, waits)
        return self._ask(waits)

    def ticked(self, now: float) -> list[Action]:
        """Time has passed; `deadline` says when this is worth calling."""
        if self._next_round is None or now < self._next_round:
            return []
        actions: list[Action] = []
        cycles = self._cycles()
        for workers, text in cycles.items():
            if workers in self._suspected and workers not in self._reported:
                self._reported.add(workers)
                actions.append(Warn(text))
        self._suspected = set(cycles)
        self._makers, self._asked = {}, set()
        if self._waits:
            self._next_round = now + ROUND_S
            since = min((since for since, on in self._waits.values() if on), default=now)
            if now - since >= ROUND_S:
                actions += self._ask([key for _, on in self._waits.values() for key in on])
        else:
            self._next_round = None
        return actions

    def deadline(self) -> float | None:
        return self._next_round

    # -- the graph

    def _ask(self, keys: list[Key]) -> list[Action]:
        by_owner: dict[str, list[int]] = {}
        for key in keys:
            if key not in self._asked:
                self._asked.add(key)
                by_owner.setdefault(key[0], []).append(key[1])
        return [Ask(owner, ids) for owner, ids in by_owner.items()]

    def _cycles(self) -> dict[frozenset[str], str]:
        """Workers of each cycle, and its story."""
        found: dict[frozenset[str], str] = {}
        done: set[str] = set()
        for start in self._waits:
            path: dict[str, str] = {}
            """Workers from `start` on, each with what it waits for (in order)."""
            branches = [(start, iter(self._needs(start)))] if start not in done else []
            while branches:
                worker, needs = branches[-1]
                maker, path[worker] = next(needs, ("", ""))
                if not maker:
                    branches.pop()
                    del path[worker]
                    done.add(worker)
                elif maker in path:
                    names = list(path)
                    cycle = [(each, path[each]) for each in names[names.index(maker) :]]
                    found.setdefault(frozenset(each for each, _ in cycle), self._story(cycle))
                elif maker not in done:
                    branches.append((maker, iter(self._needs(maker))))
        return found

    def _needs(self, worker: str) -> list[tuple[str, str]]:
        """Workers that must go on before this one can, with the name of what they are to run."""
        _, on = self._waits.get(worker, (0.0, []))
        return [need for key in on for need in self._makers_of(key)]

    def _makers_of(self, key: Key) -> list[tuple[str, str]]:
        """Workers without which the object cannot come, with the name of what they are to run."""
        out: list[tuple[str, str]] = []
        seen, open_keys = {key}, [key]
        while open_keys:
            maker = self._makers.get(open_keys.pop())
            if maker is None:
                continue
            if maker.worker:
                out.append((maker.worker, maker.name))
            for other in maker.waits:
                if other not in seen:
                    seen.add(other)
                    open_keys.append(other)
        return out

    def _story(self, cycle: list[tuple[str, str]]) -> str:
        parts = []
        for index, (worker, name) in enumerate(cycle):
            maker = cycle[(index + 1) % len(cycle)][0]
            parts.append(
                f"  {self._who(worker)} ({worker}) waits for {name}, which {self._who(maker)} ({maker}) is to run"
            )
        return (
            "warning: these wait for each other and will never go on:\n"
            + "\n".join(parts)
            + "\nBreak the circle: return the ref instead of its value, use async methods or max_concurrency, or kill "
            "one of them."
        )

    def check_valid(self) -> None:
        """Assert the invariants (for tests)."""
        assert set(self._makers) <= self._asked
        assert self._next_round is not None or not any(on for _, on in self._waits.values())
        for cycle in self._reported | self._suspected:
            assert all(worker in self._waits for worker in cycle)
