"""What Ray says of waiting work, as demands; where Ray is installed."""

from __future__ import annotations

import pytest

from rlplat.cluster.scaling.decision import Demand

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own modules


def test_tasks_groups_and_what_waits_within_a_group() -> None:
    pytest.importorskip("ray")
    from ray.core.generated import autoscaler_pb2 as ray_messages

    from rlplat.cluster.scaling.ray_demand import demands_of

    state = ray_messages.ClusterResourceState()
    for bundle, count in (
        ({"CPU": 1.0, "memory": 5.0}, 3),
        ({"CPU_group_0_ab": 1.0, "bundle_group_ab": 0.001}, 1),
    ):
        waiting = state.pending_resource_requests.add(count=count)
        waiting.request.resources_bundle.update(bundle)
    for constraint in ("anti_affinity", "affinity", ""):
        group = state.pending_gang_resource_requests.add()
        for cpus in (1.0, 2.0):
            request = group.requests.add()
            request.resources_bundle.update({"CPU": cpus})
            if constraint:
                getattr(request.placement_constraints.add(), constraint).label_name = "group"
    both = ({"CPU": 1.0}, {"CPU": 2.0})
    assert demands_of(state) == [
        Demand(({"CPU": 1.0},), count=3),
        Demand(both, is_apart=True),
        Demand(({"CPU": 3.0},)),
        Demand(both),
    ]
