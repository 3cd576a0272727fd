"""`KerasTraining`: a compiled Keras model and its data in one rank, epoch by epoch.

Keras 3 cannot `fit` under a `MultiWorkerMirroredStrategy` of several workers (keras-team/keras, issue 20585), so that
the step is written out here:

    own part of the batch -> loss -> gradients -> strategy: sum over the ranks -> model.optimizer, alike on every rank

The model's variables are ordinary ones of this process. They are equal on all ranks: rank 0's at the beginning, and
then changed by the same gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from rlplat.data_parallel.tf.data import DividedData
from rlplat.data_parallel.tf.variables import (
    arrays_of,
    learning_rate_of,
    load_optimizer,
    load_variables,
    take_values_of_rank_0,
)
from rlplat.errors import ConfigError, NonFiniteError


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
        self._train = DividedData(train, "training", rank, world_size)
        self._validation = None if validation is None else DividedData(validation, "validation", rank, world_size)
        if not self.model.built:
            for (x, _, _), _, _ in self._batches(self._train, 1):
                self.model(x, training=False)
        self.model.optimizer.build(self.model.trainable_variables)
        self._made_with = learning_rate_of(self.model.optimizer)
        # Without autograph, as Keras's own: it leaves a file in the temp folder of a process that is killed.
        self._step = tf.function(self._step_of_all, reduce_retracing=True, autograph=False)
        self._predict = tf.function(self._predict_own, reduce_retracing=True, autograph=False)
        if state is not None:
            self._load(state)
        elif world_size > 1:
            take_values_of_rank_0(strategy, rank, self.model.variables)

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
            total, num_samples = total + loss * num_own, num_samples + num_own
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
                total, num_samples = total + float(loss) * num_own, num_samples + num_own
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

    def _batches(self, data: DividedData, num_steps: int | None) -> Iterator[Any]:
        """((x, y, weights), samples that count, their share of the batch times the number of ranks)."""
        for batch, num_own, size in data.batches(num_steps):
            share = tf.constant(num_own * self._world_size / size, tf.float32)
            yield tf.keras.utils.unpack_x_y_sample_weight(batch), num_own, share

    def _made(self, creators: dict[str, Callable[..., Any]], kind: str, config: dict[str, Any]) -> Any:
        made = creators[kind](config)
        if made is None:
            name = getattr(creators[kind], "__name__", "?")
            raise ConfigError(f"rank {self._rank}: {kind}_creator ({name}) returned None: end it with `return`")
        return made

    # ---------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        return {
            "model": arrays_of(self.model.variables),
            "optimizer": arrays_of(self.model.optimizer.variables),
            "made_with": self._made_with,
            "user": {"epoch": self.epoch},
        }

    def _load(self, state: dict[str, Any]) -> None:
        load_variables(self.model.variables, state["model"], "model")
        load_optimizer(self.model.optimizer, state["optimizer"], state["made_with"])
        self.epoch = int(state["user"]["epoch"])
        self._train.skip_passes(self.epoch)
