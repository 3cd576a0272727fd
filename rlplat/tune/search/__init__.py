"""Searchers: what the next trial tries."""
