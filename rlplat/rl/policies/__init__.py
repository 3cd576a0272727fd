"""Policies without a framework: what they are (specs), who makes them, how they explore, and those in plain numpy."""
