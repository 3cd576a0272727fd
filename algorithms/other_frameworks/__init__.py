"""The parts of algorithms that compute with TensorFlow or numpy: the numbers of those that compute with torch."""
