"""The search space: domains, and configs in which some values are domains."""
