"""`TFContext`: what a training function on TensorFlow is given in each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from rlplat.data_parallel.loop_context import LoopContext
from rlplat.data_parallel.rank import RankSettings, Reporting
from rlplat.data_parallel.tf.data import DividedData
from rlplat.data_parallel.tf.variables import (
    arrays_of,
    learning_rate_of,
    load_optimizer,
    load_variables,
    sum_over_ranks,
    take_values_of_rank_0,
)
from rlplat.errors import ConfigError, NonFiniteError


class TFContext(LoopContext):
    def __init__(
        self, settings: RankSettings, strategy: Any, report: Reporting, checkpoint: dict[str, Any] | None
    ) -> None:
        super().__init__(settings, report, checkpoint)
        self.strategy = strategy
        self._models: list[Any] = []
        self._optimizers: list[Any] = []
        self._made_with: list[float | None] = []
        """Of each optimizer: the learning rate that the function gave it."""
        self._data: list[LoopData] = []
        self._sum = sum_over_ranks(strategy)
        # Variables: what a tf.function of the user's reads and writes on each call.
        self._share = tf.Variable(1.0 / self.world_size, trainable=False)
        self._steps = tf.Variable(0, trainable=False)
        self._finite = tf.Variable(True, trainable=False)

    # ---------------------------------------------------------------- what the function calls

    def prepare(self, *things: Any) -> Any:
        """Keras models, their optimizers and batched data sets, in the same order; one of them alone comes back alone.

        What a checkpoint knows of them is restored here; models begin with the weights of rank 0. An optimizer belongs
        in the same call as its model, or in a later one.
        """
        for thing in things:
            if isinstance(thing, tf.keras.Model):
                self._prepare_model(thing)
        done = tuple(self._prepared(thing) for thing in things)
        return done[0] if len(done) == 1 else done

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def average_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Means over all samples of the step, the same on every rank; None stays None.

        gradients: of the mean loss over the samples of this rank. In a `tf.function` or outside.
        """
        used = [tf.convert_to_tensor(one) for one in gradients if one is not None]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(one)) for one in used])
        self._finite.assign(tf.logical_and(self._finite, finite))
        summed = self._sum([one * tf.cast(self._share, one.dtype) for one in used])
        with tf.control_dependencies(summed):
            self._steps.assign_add(1)
        means = iter(summed)
        return [None if one is None else next(means) for one in gradients]

    @property
    def batch_weight(self) -> float:
        """The share of this rank's batch in its step, times the number of ranks: 1 where all have as many samples."""
        return float(self._share) * self.world_size

    @property
    def num_steps(self) -> int:
        """Steps so far, in this process."""
        return int(self._steps)

    # ---------------------------------------------------------------- state

    def state(self, user: dict[str, Any]) -> dict[str, Any] | None:
        if self.rank:
            return None
        return {
            "models": [arrays_of(model.variables) for model in self._models],
            "optimizers": [arrays_of(optimizer.variables) for optimizer in self._optimizers],
            "made_with": self._made_with,
            "data": [data.get_state() for data in self._data],
            "epoch": self._epoch,
            "is_within_pass": any(data.position for data in self._data),
            "user": user,
        }

    # ---------------------------------------------------------------- preparing

    def _prepare_model(self, model: Any) -> None:
        if not model.built:
            raise ConfigError(
                f"rank {self.rank}: ctx.prepare needs a model that has its weights: begin it with "
                "tf.keras.Input(shape), or call it once"
            )
        if (saved := self._saved("models", len(self._models))) is not None:
            load_variables(model.variables, saved, "model")
        elif self.world_size > 1:
            take_values_of_rank_0(self.strategy, self.rank, model.variables)
        self._models.append(model)

    def _prepared(self, thing: Any) -> Any:
        if isinstance(thing, tf.keras.Model):
            return thing
        if isinstance(thing, tf.keras.optimizers.Optimizer):
            if not self._models:
                raise ConfigError(f"rank {self.rank}: ctx.prepare(model) comes before its optimizer, or with it")
            thing.build(self._models[-1].trainable_variables)
            self._made_with.append(learning_rate_of(thing))
            if (saved := self._saved("optimizers", len(self._optimizers))) is not None:
                load_optimizer(thing, saved, self._saved("made_with", len(self._optimizers)))
            self._optimizers.append(thing)
            return thing
        if isinstance(thing, tf.data.Dataset):
            data = LoopData(DividedData(thing, "prepared", self.rank, self.world_size), self._begin_batch)
            if (saved := self._saved("data", len(self._data))) is not None:
                data.set_state(saved)
            self._data.append(data)
            return data
        what = "None: what made it returned nothing" if thing is None else f"a {type(thing).__name__}"
        raise ConfigError(
            f"rank {self.rank}: ctx.prepare takes Keras models, optimizers and tf.data.Datasets, and was given {what}"
        )

    def _begin_batch(self, share: float | None) -> None:
        """share: of this rank in the batch; None: the pass has ended."""
        self._check_all_finite()
        self._share.assign(1.0 / self.world_size if share is None else share)

    def _check_all_finite(self) -> None:
        if not bool(self._finite):
            raise NonFiniteError(
                f"rank {self.rank}: the gradients of step {self.num_steps} are NaN or infinite: a lower learning rate, "
                "clipnorm=1.0 in the optimizer, or look for NaN in the data"
            )


class LoopData:
    """What `ctx.prepare(dataset)` returns: iterate it once per epoch. Its place in the epoch can be saved."""

    def __init__(self, data: DividedData, begin_batch: Any) -> None:
        self._data, self._begin_batch = data, begin_batch
        self.epoch = 0
        """Passes so far."""
        self.position = 0
        """Batches of this pass so far."""

    def __iter__(self) -> Iterator[Any]:
        skipped = self.position
        try:
            for number, (batch, num_own, size) in enumerate(self._data.batches()):
                if number < skipped:
                    continue
                self._begin_batch(num_own / size)
                self.position += 1
                yield batch
            self._begin_batch(None)
        finally:  # also of a pass that is left by `break`
            self.epoch, self.position = self.epoch + 1, 0

    def get_state(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def set_state(self, state: dict[str, int]) -> None:
        self._data.skip_passes(state["epoch"])
        self.epoch, self.position = state["epoch"], state["position"]
