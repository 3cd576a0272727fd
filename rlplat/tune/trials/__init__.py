"""Trials: what a trainable is, and the process in which it runs."""
