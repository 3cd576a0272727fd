"""Many agents in one environment, policies mapped to them (docs/multi-agent.md)."""
