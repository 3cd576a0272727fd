"""Data-parallel training on TensorFlow: what runs in the processes of the ranks."""
