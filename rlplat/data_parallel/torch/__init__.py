"""Data-parallel training on torch: what runs in the processes of the ranks."""
