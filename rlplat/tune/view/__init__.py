"""What is to be seen of an experiment: live tables and pictures."""
