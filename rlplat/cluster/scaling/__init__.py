"""Nodes that come and go with what waits for room: the decision, the process that performs it, what it asks of Ray."""
