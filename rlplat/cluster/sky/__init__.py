"""Programs on machines of any cloud: a task file for SkyPilot, and its command that takes it."""
