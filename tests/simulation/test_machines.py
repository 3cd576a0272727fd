"""Faults of a simulated machine at chosen moments, where random ones do not come by."""

from __future__ import annotations

from tests.simulation.cluster import Cluster, simulated
from tests.simulation.run import session_folders
from tests.simulation.world import World


def test_a_node_that_hangs_before_its_first_lease_is_fenced_by_its_zygote() -> None:
    world = World(1)
    with simulated(world), session_folders(world):
        cluster = Cluster(world, [{"CPU": 1.0}, {"CPU": 1.0}], num_spares=1)
        (machine,) = cluster.machines
        cluster.begin()
        try:
            world.run(lambda: bool(cluster.workers("n2")))  # a violation: declared dead, and they live
            assert machine.node is not None
            machine.node.hang(60.0)
            world.run(lambda: cluster.num_lost_nodes > 0)
            assert not cluster.workers("n2")
        finally:
            world.close()
