"""A worker process: a client that runs what others submit."""
