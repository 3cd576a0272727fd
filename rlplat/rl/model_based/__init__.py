"""What model-based algorithms share beside the networks: short rollouts in a model, and a replay of what they gave."""
