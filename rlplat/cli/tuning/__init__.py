"""`rlplat tune`, `rlplat tune show`, and the page of an experiment."""
