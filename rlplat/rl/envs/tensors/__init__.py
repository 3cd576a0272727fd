"""Environments whose observations, rewards and ends are torch tensors on one device."""
