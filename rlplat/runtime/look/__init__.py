"""Looking at a cluster from outside: questions to its processes, traces, logs."""
