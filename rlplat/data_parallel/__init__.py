"""Data-parallel training: what it needs of torch."""
