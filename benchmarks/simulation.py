"""What a decision of the head costs, with ten virtual nodes or ten thousand, with ten thousand tasks or a million.

    python -m benchmarks.simulation --nodes 10 100 1000 10000 --tasks 10000 100000 1000000

The real `Scheduler` is driven in virtual time by virtual nodes, workers and drivers: each task is a lease that is asked
for, granted, held for a random time and returned; some workers die in their task, some nodes are lost and come back,
some demands are actors. Only the time inside `Scheduler.handle` counts; the virtual world around it does not.

A decision is a lease granted or an actor placed. Cost per decision must not grow with nodes or tasks: the total then
grows linearly with the tasks, and not at all with the nodes. Time is CPU time, so a shared machine disturbs little;
function calls per decision, counted in a run of their own for each number of nodes, are the same on every machine.
`--profile` shows where the time goes with most nodes.
"""

from __future__ import annotations

import argparse
import cProfile
import heapq
import json
import math
import pstats
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime

from benchmarks.measure import _command_line, hardware
from rlplat.paths import expanded
from rlplat.runtime.core.scheduler import events
from rlplat.runtime.core.scheduler.scheduler import Scheduler
from rlplat.runtime.wire.values import ActorInfo, Shape

NUM_DRIVERS = 16
CPUS = 4.0
SHAPES = (
    Shape((("CPU", 1.0),)),
    Shape((("CPU", 2.0),)),
    Shape((("CPU", 0.5),)),
    Shape((("CPU", 1.0), ("disk", 1.0))),
)
WEIGHTS = (70, 10, 10, 10)
_INFO = ActorInfo("Simulated", {})
_TASK_S = 0.1
_FORK_S = 0.005
_CHUNK = 100
"""Leases of one request: what an owner with many tasks asks for at once."""


@dataclass(frozen=True)
class Figures:
    """Of one run."""

    nodes: int
    tasks: int
    decisions: int
    events: int
    actions: int
    deaths: int
    lost_nodes: int
    seconds: float
    """CPU time inside the scheduler, from the first task on."""
    join_seconds: float
    """Inside the scheduler, while the nodes joined and their first workers started."""
    virtual_seconds: float
    memory_mib: float
    """Peak resident memory of this process so far."""

    def decisions_per_s(self) -> float:
        return self.decisions / self.seconds

    def us_per_decision(self) -> float:
        return self.seconds / self.decisions * 1e6


class Run:
    """One cluster of `num_nodes` nodes that works off `num_tasks` tasks."""

    def __init__(self, num_nodes: int, num_tasks: int, seed: int = 1, profile: cProfile.Profile | None = None) -> None:
        self._profile = profile
        self._random = random.Random(seed)
        self._scheduler = Scheduler()
        self._num_nodes, self._num_tasks = num_nodes, num_tasks
        self._now = 0.0
        self._later: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._num_later = 0
        self._left = num_tasks
        self._num_asked = 0
        """Leases asked for and not granted."""
        self._most_asked = max(2 * NUM_DRIVERS * _CHUNK, int(1.5 * CPUS * num_nodes))
        self._node_of: dict[str, str] = {}
        self._leases: dict[str, str] = {}
        """Worker -> driver."""
        self._next_actor = 0
        self._driver = 0
        self.seconds = 0.0
        self.num_events = self.num_actions = self.num_decisions = self.num_deaths = self.num_lost = 0
        self._perform: dict[type, Callable[..., None]] = {
            events.StartWorker: self._on_start,
            events.StopWorker: self._on_stop,
            events.GrantLease: self._on_grant,
            events.TellPlaced: self._on_placed,
            events.TellDied: self._on_died,
            events.TellGone: self._on_gone,
        }

    def run(self) -> Figures:
        for number in range(self._num_nodes):
            self._join(f"node{number}")
        self._pass_time()
        join_seconds, self.seconds = self.seconds, 0.0
        self.num_events = self.num_actions = self.num_decisions = 0
        began = self._now
        self._after(0.5, self._lose_a_node)
        self._ask()
        self._pass_time()
        lost = [amount for amount in (self._left, self._num_asked, len(self._leases)) if amount]
        if lost:
            raise RuntimeError(f"tasks, requests or leases are left over: {lost}")
        self._scheduler.check_valid()
        return Figures(
            self._num_nodes, self._num_tasks, self.num_decisions, self.num_events, self.num_actions, self.num_deaths,
            self.num_lost, self.seconds, join_seconds, self._now - began,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )  # fmt: skip

    # -- the virtual world

    def _after(self, delay_s: float, act: Callable[..., None], *about: object) -> None:
        self._num_later += 1
        heapq.heappush(self._later, (self._now + delay_s, self._num_later, act, about))

    def _pass_time(self) -> None:
        while self._later:
            self._now, _, act, about = heapq.heappop(self._later)
            act(*about)

    def _tell(self, event: events.Event) -> None:
        if self._profile is not None:
            self._profile.enable()
        began = time.thread_time()
        actions = self._scheduler.handle(event, self._now)
        self.seconds += time.thread_time() - began
        if self._profile is not None:
            self._profile.disable()
        self.num_events += 1
        self.num_actions += len(actions)
        for action in actions:
            perform = self._perform.get(type(action))
            if perform is not None:
                perform(action)

    # -- drivers

    def _ask(self) -> None:
        """Drivers ask for leases, in turn, as long as they have tasks and little is on order."""
        random_ = self._random
        while self._left and self._num_asked < self._most_asked:
            self._driver = (self._driver + 1) % NUM_DRIVERS
            client = f"driver{self._driver}"
            if random_.random() < 0.02:
                self._next_actor += 1
                self._left -= 1
                self._num_asked += 1
                actor = f"{client}:{self._next_actor}"
                shape = Shape() if self._next_actor % 2 else SHAPES[0]
                self._tell(events.ActorRequested(client, actor, _INFO, shape))
            else:
                count = min(self._left, random_.randint(1, _CHUNK))
                self._left -= count
                self._num_asked += count
                self._tell(events.LeasesRequested(client, random_.choices(SHAPES, WEIGHTS)[0], count))

    def _on_grant(self, action: events.GrantLease) -> None:
        self.num_decisions += 1
        self._num_asked -= 1
        self._leases[action.worker] = action.client
        is_deadly = self._random.random() < 0.001
        task_s = self._random.expovariate(1 / _TASK_S)
        self._after(task_s, self._lose if is_deadly else self._return, action.worker)

    def _return(self, worker: str) -> None:
        client = self._leases.pop(worker, None)
        if client is not None and worker in self._node_of:
            self._tell(events.LeaseReturned(client, worker))
        self._ask()

    def _on_placed(self, action: events.TellPlaced) -> None:
        self.num_decisions += 1
        self._num_asked -= 1
        self._after(self._random.expovariate(1 / _TASK_S), self._end_actor, action.actor)

    def _end_actor(self, actor: str) -> None:
        self._tell(events.ActorEnded(actor, "its last handle is gone", at_once=False))
        self._ask()

    def _on_gone(self, action: events.TellGone) -> None:
        pass

    # -- nodes and workers

    def _join(self, node: str) -> None:
        self._tell(events.NodeJoined(node, {"CPU": CPUS, "disk": 2.0}, num_spares=2))

    def _on_start(self, action: events.StartWorker) -> None:
        self._node_of[action.worker] = action.node
        self._after(_FORK_S, self._ready, action.worker)

    def _ready(self, worker: str) -> None:
        if worker in self._node_of:
            self._tell(events.WorkerReady(worker))

    def _on_stop(self, action: events.StopWorker) -> None:
        self._after(_FORK_S, self._lose, action.worker)

    def _lose(self, worker: str) -> None:
        if worker in self._node_of:
            self._tell(events.WorkerLost(worker, "it was killed"))
        self._ask()

    def _on_died(self, action: events.TellDied) -> None:
        self.num_deaths += 1
        self._node_of.pop(action.worker, None)
        self._leases.pop(action.worker, None)

    def _lose_a_node(self) -> None:
        """One node of a thousand each 5 s (at least one in all), while there is work."""
        if not self._left:
            return
        for _ in range(max(1, self._num_nodes // 1000)):
            node = f"node{self._random.randrange(self._num_nodes)}"
            self.num_lost += 1
            self._tell(events.NodeLost(node, "it was not heard of"))
            self._after(1.0, self._join, node)
        self._after(5.0, self._lose_a_node)


# ---------------------------------------------------------------- the report


def slope(points: list[tuple[float, float]]) -> float:
    """The exponent k of y ~ x**k, by least squares on logarithms: 0 is constant, 1 is linear."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread if spread else 0.0


def count_calls(nodes: int, seed: int, show: bool) -> float:
    """Function calls per decision (with ten tasks per node): a cost that no other load on the machine changes."""
    profile = cProfile.Profile()
    figures = Run(nodes, max(20_000, 10 * nodes), seed, profile).run()
    stats = pstats.Stats(profile)
    if show:
        stats.sort_stats("tottime").print_stats(25)
    return float(stats.total_calls) / figures.decisions  # type: ignore[attr-defined]


def growth(runs: list[Figures], calls: dict[int, float]) -> list[str]:
    """How the cost of a decision grows with tasks, per number of nodes, and with nodes, per number of tasks."""
    lines = []
    for nodes in dict.fromkeys(run.nodes for run in runs):
        points = [(float(run.tasks), run.us_per_decision()) for run in runs if run.nodes == nodes]
        if len(points) > 1:
            lines.append(f"{nodes:,} nodes: cost per decision ~ tasks^{slope(points):.2f}")
    for tasks in dict.fromkeys(run.tasks for run in runs):
        points = [(float(run.nodes), run.us_per_decision()) for run in runs if run.tasks == tasks]
        if len(points) > 1:
            lines.append(f"{tasks:,} tasks: cost per decision ~ nodes^{slope(points):.2f}")
    counted = ", ".join(f"{number:.1f} with {nodes:,} nodes" for nodes, number in calls.items())
    return [*lines, f"function calls per decision: {counted}"]


def table(runs: list[Figures]) -> list[str]:
    columns = (
        "nodes",
        "tasks",
        "decisions/s",
        "µs per decision",
        "events",
        "deaths",
        "lost nodes",
        "s in all",
        "s to join",
    )
    lines = [f"| {' | '.join(columns)} | peak MiB |", "|" + "---:|" * 10]
    for run in runs:
        lines.append(
            f"| {run.nodes:,} | {run.tasks:,} | {run.decisions_per_s():,.0f} | {run.us_per_decision():.1f} "
            f"| {run.events:,} | {run.deaths:,} | {run.lost_nodes:,} | {run.seconds:.1f} | {run.join_seconds:.2f} "
            f"| {run.memory_mib:,.0f} |"
        )
    return lines


def plot(runs: list[Figures]) -> list[str]:
    """µs per decision as bars: they should be of one length."""
    most = max(run.us_per_decision() for run in runs)
    return [
        f"{run.nodes:>7,} nodes {run.tasks:>10,} tasks {'#' * max(1, round(50 * run.us_per_decision() / most))} "
        f"{run.us_per_decision():.1f} µs"
        for run in runs
    ]


def markdown(runs: list[Figures], calls: dict[int, float]) -> str:
    facts = hardware(["msgspec"])
    lines = [
        "# The head's scheduler with up to ten thousand virtual nodes",
        "",
        f"`{_command_line()}`, {datetime.now():%Y-%m-%d}. One run each; nodes of {CPUS:g} CPUs, {NUM_DRIVERS} drivers, "
        f"tasks of {_TASK_S:g} s (virtual), one lease per task, 2 % actors, one task in 1,000 kills its worker, "
        "nodes are lost and come back. Seconds are CPU time inside the scheduler.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts.items()),
        "",
        *table(runs),
        "",
        "Cost per decision:",
        "",
        "```",
        *plot(runs),
        "```",
        "",
        *(f"- {line}" for line in growth(runs, calls)),
        "",
    ]
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--tasks", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="where the time of the last run goes")
    parser.add_argument("--json", type=expanded, metavar="FILE")
    parser.add_argument("--markdown", type=expanded, metavar="FILE")
    return parser


def main() -> int:
    args = build_parser().parse_args()
    runs: list[Figures] = []
    for nodes, tasks in [(nodes, tasks) for nodes in args.nodes for tasks in args.tasks]:
        runs.append(Run(nodes, tasks, args.seed).run())
        last = runs[-1]
        print(
            f"{nodes:>7,} nodes {tasks:>10,} tasks: {last.decisions_per_s():>9,.0f} decisions/s, "
            f"{last.us_per_decision():6.1f} µs each, {last.seconds:6.2f} s in the scheduler",
            flush=True,
        )
    calls = {nodes: count_calls(nodes, args.seed, args.profile and nodes == args.nodes[-1]) for nodes in args.nodes}
    print("\n".join(["", *plot(runs), "", *growth(runs, calls)]))
    if args.json is not None:
        args.json.write_text("".join(json.dumps(asdict(run)) + "\n" for run in runs))
    if args.markdown is not None:
        args.markdown.write_text(markdown(runs, calls))
    return 0


if __name__ == "__main__":
    sys.exit(main())
