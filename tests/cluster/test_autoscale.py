"""Which nodes are started and drained: by example, and as properties of any cluster and any demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rlplat.cluster.scaling.decision import Decision, Demand, NodeSeen, decide, why_never
from rlplat.node_types import NodeType

TYPES = {
    "head": NodeType({"CPU": 1}, 1, 1),
    "cpu": NodeType({"CPU": 4}, 0, 3),
    "gpu": NodeType({"CPU": 4, "GPU": 1}, 0, 2),
}
HEAD = NodeSeen("head", "head", "running", {})


def cpu(number: int, state: Any = "running", free: float = 4, idle_s: float = 0.0) -> NodeSeen:
    return NodeSeen(f"cpu-{number}", "cpu", state, {"CPU": free}, idle_s)


def decided(nodes: Sequence[NodeSeen], demands: Sequence[Demand], **more: Any) -> Decision:
    return decide([HEAD, *nodes], demands, TYPES, 60, **more)


def test_what_waits_starts_as_many_nodes_as_hold_it_and_none_above_the_maximum() -> None:
    assert decided([], [Demand(({"CPU": 1},), count=5)]).start == {"cpu": 2}
    assert decided([], [Demand(({"CPU": 1},), count=1000)]).start == {"cpu": 3, "gpu": 2}


def test_room_that_is_there_or_comes_is_used_first() -> None:
    assert decided([cpu(1, free=1)], [Demand(({"CPU": 1},))]).start == {}
    assert decided([cpu(1, "starting")], [Demand(({"CPU": 1},), count=5)]).start == {"cpu": 1}


def test_gpus_are_for_what_asks_for_them() -> None:
    assert decided([], [Demand(({"CPU": 4},))]).start == {"cpu": 1}
    assert decided([], [Demand(({"GPU": 1},))]).start == {"gpu": 1}


def test_a_group_is_placed_whole_or_not_at_all() -> None:
    pair = Demand(({"CPU": 4}, {"CPU": 4}))
    assert decided([cpu(1, free=0), cpu(2, free=0)], [pair]).start == {"cpu": 1, "gpu": 1}
    blocked = decided([cpu(1, free=0), cpu(2, free=0)], [pair, Demand(({"CPU": 2},))], blocked={"gpu"})
    assert blocked.start == {"cpu": 1} and blocked.infeasible == []  # for the single one; the pair waits


def test_bundles_that_are_kept_apart_need_a_node_each() -> None:
    assert decided([cpu(1)], [Demand(({"CPU": 1},) * 3, is_apart=True)]).start == {"cpu": 2}
    assert decided([cpu(1)], [Demand(({"CPU": 1},) * 3)]).start == {}


def test_idle_nodes_are_drained_the_longest_idle_first_unless_something_waits_for_them() -> None:
    nodes = [cpu(1, idle_s=70), cpu(2, idle_s=90), cpu(3, idle_s=10)]
    assert decided(nodes, []).drain == ["cpu-2", "cpu-1"]
    assert decided(nodes, [Demand(({"CPU": 4},), count=2)]).drain == ["cpu-2"]


def test_the_minimum_is_started_and_kept_and_the_head_is_never_drained() -> None:
    types = TYPES | {"cpu": NodeType({"CPU": 4}, 2, 3)}
    assert decide([HEAD], [], types, 60).start == {"cpu": 2}
    idle_head = NodeSeen("head", "head", "running", {"CPU": 1}, 1e6)
    assert decide([idle_head, cpu(1, idle_s=70), cpu(2, idle_s=80), cpu(3, idle_s=90)], [], types, 60).drain == [
        "cpu-3"
    ]


def test_unknown_is_not_gone() -> None:
    three = [cpu(number, "unknown") for number in (1, 2, 3)]
    assert decided(three, [Demand(({"CPU": 1},))]) == Decision({"gpu": 1}, [], [])
    assert decided(three, [Demand(({"CPU": 1},))], blocked={"gpu"}) == Decision({}, [], [])


def test_what_no_type_could_hold_is_named_with_the_types_there_are() -> None:
    large = Demand(({"CPU": 8},))
    decision = decided([], [large, Demand(({"CPU": 1},))])
    assert (decision.infeasible, decision.start) == ([large], {"cpu": 1})
    assert why_never(large, TYPES) == (
        "no node type has CPU 8: there are head (CPU 1; at most 1), cpu (CPU 4; at most 3), "
        "gpu (CPU 4, GPU 1; at most 2)"
    )
    assert why_never(Demand(({"CPU": 2},) * 6, is_apart=True), TYPES).startswith(
        "CPU 2 and CPU 2 and CPU 2 and CPU 2 and CPU 2 and CPU 2 on different nodes need more nodes than there may be"
    )
    assert why_never(Demand(({"CPU": 2},) * 5, is_apart=True), TYPES) == ""


AMOUNTS = st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
BUNDLES = st.fixed_dictionaries({"CPU": AMOUNTS}, optional={"GPU": st.sampled_from([0.0, 0.5, 1.0])})
DEMANDS = st.lists(
    st.builds(Demand, st.lists(BUNDLES, min_size=1, max_size=4).map(tuple), st.booleans(), st.integers(1, 6)),
    max_size=5,
)
KINDS = st.builds(
    lambda resources, low, more: NodeType(resources, low, low + more),
    st.fixed_dictionaries({"CPU": st.sampled_from([1.0, 4.0])}, optional={"GPU": st.sampled_from([1.0, 2.0])}),
    st.integers(0, 2),
    st.integers(0, 4),
)


@st.composite
def clusters(draw: st.DrawFn, max_types: int = 2) -> tuple[list[NodeSeen], dict[str, NodeType]]:
    types = {name: draw(KINDS) for name in ("a", "b")[: draw(st.integers(1, max_types))]}
    nodes = []
    for name, kind in types.items():
        for number in range(draw(st.integers(0, kind.max_nodes))):
            state = draw(st.sampled_from(["starting", "running", "draining", "unknown"]))
            is_used = state == "running" and draw(st.booleans())
            free = {
                key: amount * (draw(st.sampled_from([0, 0.5])) if is_used else 1)
                for key, amount in kind.resources.items()
            }
            idle_s = 0.0 if is_used or state != "running" else draw(st.sampled_from([0.0, 59.0, 60.0, 99.0]))
            nodes.append(NodeSeen(f"{name}-{number}", name, state, free, idle_s))
    return nodes, types


@given(clusters(), DEMANDS)
def test_any_decision_stays_within_its_limits(
    cluster: tuple[list[NodeSeen], dict[str, NodeType]], demands: list[Demand]
) -> None:
    nodes, types = cluster
    decision = decide(nodes, demands, types, 60)
    by_name = {node.name: node for node in nodes}
    there, drained = (
        Counter(node.type for node in nodes),
        Counter(by_name[name].type for name in decision.drain),
    )
    certain = Counter(node.type for node in nodes if node.state in ("running", "starting"))
    for name, kind in types.items():
        now = there[name] + decision.start.get(name, 0)
        assert kind.min_nodes <= now <= kind.max_nodes
        assert drained[name] == 0 or certain[name] - drained[name] >= kind.min_nodes
    assert all(by_name[name].state == "running" and by_name[name].idle_s >= 60 for name in decision.drain)
    assert [demand for demand in demands if why_never(demand, types)] == decision.infeasible


@given(clusters(max_types=1), DEMANDS)
def test_a_cluster_that_does_what_is_decided_comes_to_rest(
    cluster: tuple[list[NodeSeen], dict[str, NodeType]], demands: list[Demand]
) -> None:
    """What is drained is not missed: the next decision starts nothing in its place. (With several types first fit may
    need one node more once the new ones are among the others.)"""
    nodes, types = cluster
    nodes = [node for node in nodes if node.state in ("running", "starting")]
    decision = decide(nodes, demands, types, 60)
    left = [node for node in nodes if node.name not in decision.drain]
    for name, count in decision.start.items():
        room = types[name].resources
        left += [NodeSeen(f"new-{name}-{number}", name, "starting", room) for number in range(count)]
    assert decide(left, demands, types, 60) == Decision({}, [], decision.infeasible)


@given(clusters(), DEMANDS)
def test_after_every_node_was_removed_new_ones_start(
    cluster: tuple[list[NodeSeen], dict[str, NodeType]], demands: list[Demand]
) -> None:
    _, types = cluster
    for demand in demands:
        decision = decide([], [demand], types, 60)
        asks_for_nothing = not any(amount for bundle in demand.bundles for amount in bundle.values())
        assert decision.start or decision.infeasible or asks_for_nothing
