"""The parts of algorithms that compute with TensorFlow or numpy: the numbers of those that compute with torch."""

WRITTEN_FOR = {
    "rlplat.algorithms.ppo": "54fe8f4f",
    "rlplat.algorithms.a3c": "6afe6d01",
    "rlplat.algorithms.dqn": "edd80a86",
    "rlplat.algorithms.r2d2": "b079bec8",
}
"""The torch class of each algorithm that these are the twins of, by its `rlplat.rl.learning.backend.fingerprint`. Where
a file's class or losses read otherwise, its twins are not used: torch computes what is written."""
