"""Networks of off-policy algorithms with continuous actions: actors, twin critics, their optimizers."""
