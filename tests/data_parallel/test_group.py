"""Where ranks open their ports, and how many of them find room."""

from __future__ import annotations

from rlplat.data_parallel.group import fitting_ranks, meeting_hosts


def test_ranks_on_several_nodes_meet_at_the_addresses_of_their_nodes() -> None:
    homes = [("node-b", "10.0.0.2"), ("node-a", "10.0.0.1"), ("node-b", "10.0.0.2")]
    assert meeting_hosts(homes) == ["10.0.0.2", "10.0.0.1", "10.0.0.2"]


def test_ranks_of_one_node_open_nothing_to_the_network() -> None:
    assert meeting_hosts([("node-a", "10.0.0.1")] * 2) == ["127.0.0.1"] * 2


def test_the_scarcest_resource_says_how_many_ranks_there_are() -> None:
    assert fitting_ranks({"CPU": 5.0, "GPU": 0.3}, {"CPU": 1.0, "GPU": 0.1}) == 3
    assert fitting_ranks({"CPU": 5.0}, {"CPU": 1.0, "GPU": 1.0}) == 0
