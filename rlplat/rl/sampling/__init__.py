"""From environments to batches: rollout workers, what they bring home, and what is made of it."""
