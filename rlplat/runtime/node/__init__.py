"""The node process: the scheduler's hands, and the keeper of the workers."""
