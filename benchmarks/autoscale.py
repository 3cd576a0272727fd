"""How long one decision of the autoscaler takes: `python -m benchmarks.autoscale`. CPU seconds of this process."""

from __future__ import annotations

import time

from rlplat.cluster.scaling.decision import Decision, Demand, NodeSeen, decide
from rlplat.node_types import NodeType

TYPES = {"cpu": NodeType({"CPU": 64}, 0, 20_000), "gpu": NodeType({"CPU": 64, "GPU": 8}, 0, 20_000)}


def nodes_of(count: int, idle_every: int) -> list[NodeSeen]:
    """Half of each type; every `idle_every`-th is idle for two minutes, the others have 0 to 3 CPUs left."""
    made = []
    for number in range(count):
        name = "gpu" if number % 2 else "cpu"
        total = TYPES[name].resources
        is_idle = number % idle_every == 0
        free = total if is_idle else {kind: float(number % 4) for kind in total}
        made.append(NodeSeen(f"{name}-{number}", name, "running", free, 120.0 if is_idle else 0.0))
    return made


def timed(nodes: list[NodeSeen], demands: list[Demand]) -> tuple[float, Decision]:
    taken = []
    for _ in range(5):
        began = time.process_time()
        decision = decide(nodes, demands, TYPES, 60)
        taken.append(time.process_time() - began)
    return min(taken), decision


def main() -> None:
    print("| nodes | what waits | CPU ms, best of 5 | started | drained |\n|---|---|---|---|---|")
    shapes = [Demand(({"CPU": cpus},), count=2_000) for cpus in (1.0, 2.0, 4.0, 8.0, 16.0)]
    group = Demand(({"CPU": 8.0, "GPU": 1.0},) * 8, is_apart=True, count=200)
    cases = {
        "nothing": [],
        "10,000 tasks of 5 sizes": shapes,
        "200 groups of 8 GPUs, apart": [group],
        "500 different sizes, one each": [Demand(({"CPU": 1 + number / 100},)) for number in range(500)],
    }
    for count in (100, 1_000, 10_000):
        nodes = nodes_of(count, idle_every=10)
        for name, demands in cases.items():
            seconds, decision = timed(nodes, demands)
            started = sum(decision.start.values())
            print(f"| {count:,} | {name} | {1000 * seconds:.1f} | {started:,} | {len(decision.drain):,} |")
    seconds, decision = timed([], [Demand(({"CPU": 64.0},), count=10_000)])
    print(f"| 0 | 10,000 tasks of a whole node | {1000 * seconds:.1f} | {sum(decision.start.values()):,} | 0 |")


if __name__ == "__main__":
    main()
