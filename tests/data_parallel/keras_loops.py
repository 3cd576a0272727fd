"""What ranks on TensorFlow run in the tests; imported in their processes."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from rlplat.data_parallel.tf.program import TFProgram
from tests.data_parallel.keras_creators import data_creator, model_creator


class PortTaken(TFProgram):
    """Another program takes rank 1's port after it was chosen."""

    def open_door(self, hosts: Sequence[str]) -> tuple[str, int]:
        host, port = super().open_door(hosts)
        if self.settings.rank == 1:
            self._taker = socket.create_server((host, port))
        return host, port


def classifier(ctx: Any, config: dict[str, Any]) -> None:
    """Two epochs of four batches, of which the last has one sample; a report after the second batch of each and at its
    end. marker: a file that rank 1 removes, to kill itself in the third batch of the second epoch."""
    model, data = model_creator(config), data_creator({})[0]
    model, optimizer, data = ctx.prepare(model, tf.keras.optimizers.Adam(config["lr"]), data)
    criterion = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(reduce_retracing=True)
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = criterion(y, model(x, training=True))
        gradients = ctx.average_gradients(tape.gradient(loss, model.trainable_variables))
        optimizer.apply(gradients, model.trainable_variables)

    for epoch in ctx.epochs(2):
        for x, y in data:
            if ctx.rank == 1 and (epoch, data.position) == (1, 3) and Path(config["marker"]).exists():
                Path(config["marker"]).unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            step(x, y)
            if data.position == 2:
                ctx.report(norm=norm(model), place="within", checkpoint={"note": epoch})
        ctx.report(norm=norm(model), place="end", note=(ctx.checkpoint or {}).get("note", "fresh"))


def norm(model: Any) -> Any:
    return tf.linalg.global_norm(model.trainable_variables)


def unequal(ctx: Any, config: dict[str, Any]) -> None:
    for _ in range(2 + (ctx.rank == 0)):
        ctx.average_gradients([tf.ones(2)])
