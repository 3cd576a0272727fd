"""Learning from recorded episodes: the data set, who records it, and the ring that turns without rollout workers."""
