"""What off-policy algorithms share beyond the replay itself: the rings that are turned around it; for continuous
actions also settings and a learner."""
