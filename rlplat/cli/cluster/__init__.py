"""The commands that take a CLUSTER.yaml."""
