"""A trained policy behind a port."""
