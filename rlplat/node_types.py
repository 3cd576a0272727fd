"""Which nodes a cluster may have: the launcher says it to the programs that run there, in one variable.

Without the variable the cluster has the nodes that it has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

VARIABLE = "RLPLAT_NODE_TYPES"
MOST_OWN_NODES = 32
"""Of one cluster of the own runtime (decision 0023)."""


@dataclass(frozen=True)
class NodeType:
    """Nodes that are alike. The head is the one node of its type: min_nodes and max_nodes are 1."""

    resources: Mapping[str, float]
    min_nodes: int = 0
    max_nodes: int = 1

    def __str__(self) -> str:
        return f"{amounts(self.resources)}; at most {self.max_nodes}"


def amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items()) or "nothing"


def as_text(types: Mapping[str, NodeType]) -> str:
    """For the variable."""
    return json.dumps({name: asdict(kind) for name, kind in types.items()})


def node_types() -> dict[str, NodeType]:
    """Of the cluster that this program runs on, the head's first; {} where nodes do not come and go."""
    found = json.loads(os.environ.get(VARIABLE) or "{}")
    return {name: NodeType(**values) for name, values in found.items()}
