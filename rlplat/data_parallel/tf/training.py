"""`KerasTraining`: a compiled Keras model and its data in one rank, epoch by epoch.

Keras 3 cannot `fit` under a `MultiWorkerMirroredStrategy` of several workers (keras-team/keras, issue 20585), so that
the step is written out here:

    own part of the batch -> loss -> gradients -> strategy: sum over the ranks -> model.optimizer, alike on every rank

The model's variables are ordinary ones of this process. They are equal on all ranks: rank 0's at the beginning, and
then changed by the same gradients. A batch of the data set is what all ranks take in a step, as with tf.distribute:
rank r takes every n-th sample of it, from the r-th on, so that the losses do not depend on the number of ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from rlplat.errors import CheckpointError, ConfigError, NonFiniteError


class KerasTraining:
    def __init__(
        self,
        strategy: Any,
        rank: int,
        world_size: int,
        creators: dict[str, Callable[..., Any]],
        config: dict[str, Any],
        state: dict[str, Any] | None,
    ) -> None:
        """creators: `model` -> a compiled model; `data` -> batched data for training, or (training, validation).
        state: what `state` returned."""
        self._strategy, self._rank, self._world_size = strategy, rank, world_size
        self.epoch = 0
        """Epochs trained so far."""
        self.num_steps = 0
        """Batches so far, in this process."""
        self.model = self._made(creators, "model", config)
        if not getattr(self.model, "compiled", False) or self.model.optimizer is None:
            raise ConfigError(
                f"rank {rank}: model_creator must return a compiled Keras model: model.compile(optimizer=..., loss=...)"
            )
        made = self._made(creators, "data", config)
        train, validation = made if isinstance(made, (tuple, list)) else (made, None)
        self._train = self._own(train, "training")
        self._validation = None if validation is None else self._own(validation, "validation")
        if not self.model.built:
            self.model(next(iter(self._train))[0][0], training=False)
        self.model.optimizer.build(self.model.trainable_variables)
        self._step = tf.function(self._step_of_all, reduce_retracing=True)
        self._predict = tf.function(self._predict_own, reduce_retracing=True)
        if state is not None:
            self._load(state)
        elif world_size > 1:
            self._take_weights_of_rank_0()

    @property
    def has_validation(self) -> bool:
        return self._validation is not None

    # ---------------------------------------------------------------- epochs

    def run_epoch(self, num_steps: int | None) -> dict[str, Any]:
        """A pass, or its first `num_steps` batches; -> means over this rank's samples, under train_..."""
        total, num_samples, num_batches = 0.0, 0, 0
        self.model.reset_metrics()
        for (x, y, weights), num_own, share in self._batches(self._train, num_steps):
            loss, predicted = self._step(x, y, weights, share)
            if not math.isfinite(loss := float(loss)):
                raise NonFiniteError(
                    f"rank {self._rank}: the loss of step {self.num_steps + 1} is {loss}: a lower learning rate, "
                    "clipnorm=1.0 in the optimizer, or look for NaN in the data"
                )
            if num_own:
                self.model.compute_metrics(x, y, predicted, weights)
            total, num_samples = total + loss * int(num_own), num_samples + int(num_own)
            num_batches += 1
            self.num_steps += 1
        if not num_batches:
            raise ConfigError(f"rank {self._rank}: the training data has no batch")
        self.epoch += 1
        stats = {"epoch": self.epoch, "batch_count": num_batches}
        return stats | self._means("train", total, num_samples)

    def run_validation(self, num_steps: int | None) -> dict[str, Any]:
        """-> means over this rank's samples, under val_..."""
        if self._validation is None:
            raise ConfigError(
                f"rank {self._rank}: there is no validation data: return (training, validation) from data_creator"
            )
        total, num_samples = 0.0, 0
        self.model.reset_metrics()
        for (x, y, weights), num_own, _ in self._batches(self._validation, num_steps):
            if num_own:
                loss, predicted = self._predict(x, y, weights)
                self.model.compute_metrics(x, y, predicted, weights)
                total, num_samples = total + float(loss) * int(num_own), num_samples + int(num_own)
        return self._means("val", total, num_samples)

    def _means(self, kind: str, total: float, num_samples: int) -> dict[str, Any]:
        means = {name: float(value) for name, value in self.model.get_metrics_result().items()}
        means |= {"loss": total / max(1, num_samples)}
        return {"num_samples": num_samples, **{f"{kind}_{name}": value for name, value in means.items()}}

    # ---------------------------------------------------------------- one step

    def _step_of_all(self, x: Any, y: Any, weights: Any, share: Any) -> tuple[Any, Any]:
        loss, predicted, gradients = self._strategy.run(self._gradients, args=(x, y, weights, share))
        self.model.optimizer.apply(gradients, self.model.trainable_variables)
        return loss, predicted

    def _gradients(self, x: Any, y: Any, weights: Any, share: Any) -> tuple[Any, Any, list[Any]]:
        """(mean loss of the own samples, outputs, gradients of the mean loss over all ranks' samples)."""
        variables = [variable.value for variable in self.model.trainable_variables]
        with tf.GradientTape() as tape:
            predicted = self.model(x, training=True)
            # Within `strategy.run` Keras divides a loss by the number of ranks, for the sum that follows.
            loss = self.model.compute_loss(x, y, predicted, weights, training=True)
            scaled = self.model.optimizer.scale_loss(loss * share)
        gradients = tape.gradient(scaled, variables)
        used = [gradient for gradient in gradients if gradient is not None]
        if self._world_size > 1:
            used = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, used)
        summed = iter(used)
        return (
            loss * self._world_size,
            predicted,
            [None if gradient is None else next(summed) for gradient in gradients],
        )

    def _predict_own(self, x: Any, y: Any, weights: Any) -> tuple[Any, Any]:
        predicted = self.model(x, training=False)
        return self.model.compute_loss(x, y, predicted, weights, training=False), predicted

    def _take_weights_of_rank_0(self) -> None:
        def sums() -> list[Any]:
            own = [tf.identity(one.value) for one in floats]  # on the device of `run`
            own = [one if self._rank == 0 else tf.zeros_like(one) for one in own]
            summed: list[Any] = tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, own
            )
            return summed

        floats = [one for one in self.model.variables if np.issubdtype(one.numpy().dtype, np.floating)]
        for variable, value in zip(floats, tf.function(lambda: self._strategy.run(sums))(), strict=True):
            variable.assign(value)

    # ---------------------------------------------------------------- data

    def _own(self, data: Any, kind: str) -> Any:
        """The data set, of whose batches only the own samples remain: ((x, y, weights), their number, their share)."""
        if not isinstance(data, tf.data.Dataset):
            raise ConfigError(
                f"rank {self._rank}: data_creator must return tf.data.Datasets, not {type(data).__name__} for {kind}"
            )
        shapes = [spec.shape for spec in tf.nest.flatten(data.element_spec)]
        if any(shape.rank == 0 for shape in shapes):
            raise ConfigError(f"rank {self._rank}: the {kind} data has single samples: dataset.batch(64)")
        rank, ranks = self._rank, self._world_size

        def own(*batch: Any) -> Any:
            size = tf.shape(tf.nest.flatten(batch)[0])[0]
            mine = tf.range(rank, size, ranks)
            num_own = tf.size(mine)
            # Every rank takes part in every step: with weight 0 where no sample is left for it.
            mine = tf.cond(num_own > 0, lambda: mine, lambda: tf.zeros([1], tf.int32))
            x, y, weights = tf.keras.utils.unpack_x_y_sample_weight(
                tf.nest.map_structure(lambda part: tf.gather(part, mine), batch)
            )
            return (x, y, weights), num_own, tf.cast(num_own, tf.float32) * ranks / tf.cast(size, tf.float32)

        return data.map(own).prefetch(1)

    def _batches(self, data: Any, num_steps: int | None) -> Iterator[Any]:
        if num_steps is None and int(data.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise ConfigError(
                f"rank {self._rank}: the data set has no end: omit .repeat(), or say how many batches make an epoch: "
                "train(num_steps=...), validate(num_steps=...)"
            )
        return itertools.islice(iter(data), num_steps)

    def _made(self, creators: dict[str, Callable[..., Any]], kind: str, config: dict[str, Any]) -> Any:
        made = creators[kind](config)
        if made is None:
            name = getattr(creators[kind], "__name__", "?")
            raise ConfigError(
                f"rank {self._rank}: {kind}_creator ({name}) returned None: end it with `return`"
            )
        return made

    # ---------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        return {
            "model": [variable.numpy() for variable in self.model.variables],
            "optimizer": [variable.numpy() for variable in self.model.optimizer.variables],
            "user": {"epoch": self.epoch},
        }

    def _load(self, state: dict[str, Any]) -> None:
        load_variables(self.model.variables, state["model"], "model")
        load_variables(self.model.optimizer.variables, state["optimizer"], "optimizer")
        self.epoch = int(state["user"]["epoch"])
        for _ in range(self.epoch):  # `shuffle` draws another order for each iterator: those that are past
            iter(self._train)


def load_variables(variables: list[Any], arrays: list[np.ndarray], kind: str) -> None:
    """CheckpointError where they are of something else."""
    there, saved = [tuple(one.shape) for one in variables], [tuple(one.shape) for one in arrays]
    if there != saved:
        raise CheckpointError(
            f"the checkpoint is of another {kind}: it has variables of the shapes {saved}, and this one {there}: "
            "build the same model, or begin again in another directory"
        )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
