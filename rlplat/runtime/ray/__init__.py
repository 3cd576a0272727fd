"""The verbs on a Ray cluster: `rlplat.init(backend="ray")`. What differs there: docs/on-ray.md."""
