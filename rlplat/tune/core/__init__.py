"""The judgement of an experiment: which trial runs when, from where, and what becomes of it. Pure."""
