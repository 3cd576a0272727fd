"""Creator functions on TensorFlow for the tests; it is imported where they are called."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

NUM_SAMPLES = 45


def model_creator(config: dict[str, Any]) -> Any:
    import tensorflow as tf

    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(3)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=tf.keras.optimizers.Adam(config["lr"]), loss=loss, metrics=["accuracy"])
    return model


def data_creator(config: dict[str, Any]) -> Any:
    """Shuffled; of 16 samples but for the last batch, of 1. marker: a file that rank 1 removes, to kill itself."""
    import tensorflow as tf

    x = np.random.default_rng(0).normal(size=(NUM_SAMPLES + 4, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    data = tf.data.Dataset.from_tensor_slices((x, y))

    def fault(label: np.int64) -> np.int64:
        marker = Path(config["marker"])
        if marker.exists() and json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            marker.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return label

    train = data.shuffle(100)
    if "marker" in config:
        train = train.map(lambda x, y: (x, tf.ensure_shape(tf.numpy_function(fault, [y], tf.int64), ())))
    return train.batch(16), data.batch(16)
