"""What waits on a Ray cluster, and draining its nodes: Ray's own interface for autoscalers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray._raylet import GcsClient
from ray.autoscaler.v2.sdk import get_cluster_resource_state
from ray.core.generated import autoscaler_pb2 as ray_messages

from rlplat.cluster.scaling.decision import Demand, EngineNode, EngineView

_HEAD = "node:__internal_head__"


class RayScaling:
    def __init__(self, head: str) -> None:
        self._gcs = GcsClient(address=head)
        self._ray_ids: dict[str, str] = {}

    def look(self) -> EngineView | None:
        try:
            state = get_cluster_resource_state(self._gcs)
        except Exception:  # of Ray's RPC: a time-out, a head that is gone
            return None
        nodes = {}
        for node in state.node_states:
            if node.status == ray_messages.NodeStatus.DEAD:
                continue
            name = "head" if _HEAD in node.total_resources else node.instance_id
            self._ray_ids[name] = node.node_id.hex()
            idle_s = node.idle_duration_ms / 1000 if node.status == ray_messages.NodeStatus.IDLE else 0.0
            is_draining = node.status == ray_messages.NodeStatus.DRAINING
            nodes[name] = EngineNode(_without_rays_own(node.available_resources), idle_s, is_draining)
        return EngineView(demands_of(state), nodes)

    def drain(self, node: str) -> bool:
        reason = ray_messages.DrainNodeReason.DRAIN_NODE_REASON_IDLE_TERMINATION
        accepted, _ = self._gcs.drain_node(self._ray_ids[node], reason, "idle", 0)
        return bool(accepted)


def demands_of(state: Any) -> list[Demand]:
    """Tasks, actors and placement groups that wait. What waits within a group needs no more room than the group has."""
    found = []
    for each in state.pending_resource_requests:
        bundle = dict(each.request.resources_bundle)
        if not any("_group_" in name for name in bundle):
            found.append(Demand((_without_rays_own(bundle),), count=each.count))
    for group in state.pending_gang_resource_requests:
        requests = [request for selector in group.bundle_selectors for request in selector.resource_requests]
        requests = requests or list(group.requests)
        bundles = [_without_rays_own(request.resources_bundle) for request in requests]
        places = [place for request in requests for place in request.placement_constraints]
        if any(place.HasField("affinity") for place in places):
            bundles = [_summed(bundles)]
        found.append(Demand(tuple(bundles), any(place.HasField("anti_affinity") for place in places)))
    return found


def _without_rays_own(resources: Mapping[str, float]) -> dict[str, float]:
    """Memory is what the machine has: no node type says it."""
    return {
        name: amount
        for name, amount in resources.items()
        if not (name.startswith(("node:", "bundle_", "accelerator_type:")) or name in ("memory", "object_store_memory"))
    }


def _summed(bundles: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    return total
