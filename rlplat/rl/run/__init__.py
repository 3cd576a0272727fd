"""A run: its algorithm found, its settings, the loop, its directory, evaluation, and the agent that it trained."""
