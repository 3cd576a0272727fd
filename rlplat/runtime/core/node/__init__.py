"""What a node judges beside scheduling: deaths, deadlocks, hangs, memory. Pure."""
