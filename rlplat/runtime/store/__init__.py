"""Shared memory: segments, the account of who holds how much, and room when it is full."""
