"""A cluster on machines that are there, and programs on it: `rlplat up CLUSTER.yaml`. docs/clusters.md."""
