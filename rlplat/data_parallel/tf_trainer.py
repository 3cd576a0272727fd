"""`TFTrainer`: data-parallel training on TensorFlow from the driver's side, in two forms. No TensorFlow here.

The same engine as `TorchTrainer` (`both_forms`); in the ranks: `tf.program`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

from rlplat.data_parallel.both_forms import Trainer
from rlplat.data_parallel.settings import TrainerSettings
from rlplat.errors import ConfigError, MissingExtra


class TFTrainer(Trainer):
    name = "TFTrainer"
    program = "rlplat.data_parallel.tf.program:TFProgram"

    def __init__(
        self,
        model_creator: Callable[..., Any] | None = None,
        data_creator: Callable[..., Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        train_loop: Callable[..., Any] | None = None,
        out: str | os.PathLike[str] | None = None,
        resume: bool = False,
        keep: int = 3,
        num_workers: int | tuple[int, int] = 1,
        use_gpu: bool = False,
        resources: Mapping[str, float] | None = None,
        seed: int = 0,
        max_failures: int = 3,
        hang_timeout_s: float = 120.0,
        place_timeout_s: float = 60.0,
    ) -> None:
        """model_creator(config): a compiled Keras model; data_creator(config): a batched `tf.data.Dataset` for
        training, or (training, validation). A batch is what all ranks together take in a step. Or
        train_loop(ctx, config): runs on every rank (`tf.context.TFContext`), by `fit`.

        The other settings are `TorchTrainer`'s.
        """
        if importlib.util.find_spec("tensorflow") is None:
            raise MissingExtra("tensorflow", "tf", "TFTrainer")
        given = locals()
        settings = TrainerSettings(**{name: given[name] for name in TrainerSettings.model_fields})
        if 0 < settings.demand.get("GPU", 0) < 1:
            raise ConfigError("TensorFlow takes no part of a GPU: a whole one for each rank, use_gpu=True")
        super().__init__(settings, {}, config, train_loop, out=out, resume=resume, keep=keep)
        if train_loop is not None:
            if model_creator is not None or data_creator is not None:
                raise ConfigError("TFTrainer takes model_creator and data_creator, or train_loop; not both")
            return
        if model_creator is None or data_creator is None:
            raise ConfigError("TFTrainer needs model_creator and data_creator, or train_loop=")
        self._creators = {"model": model_creator, "data": data_creator}
        self._begin()

    def state_dict(self) -> dict[str, Any]:
        """All that a training continues from: arrays of the `model`, of its `optimizer`, and the epoch."""
        return self.current_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.load_encoded(dict(state))

    def get_model(self) -> Any:
        """The trained model, made by `model_creator` in this process."""
        from rlplat.data_parallel.tf.variables import load_variables

        weights = self.current_state()["model"]
        model = self._creators["model"](self.config)
        if not model.built:
            raise ConfigError(
                "get_model() needs a model that knows the shape of its input: begin it with tf.keras.Input(shape), or "
                "take state_dict()['model']"
            )
        load_variables(model.variables, weights, "model")
        return model

    def _parts(self) -> tuple[Any, ...]:
        return (self._creators,)
