"""`TFProgram`: what the process of a rank does, as the driver tells it (see `rank.Rank`): Keras on tf.distribute.

The ranks meet as the workers of one `tf.distribute.MultiWorkerMirroredStrategy`, by a TF_CONFIG with the port of each.
A collective call of it cannot be tried again after a loss: as with torch, all processes are replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rlplat.data_parallel.failures import RanksLost
from rlplat.data_parallel.rank import RankProgram, RankSettings, Reporting
from rlplat.data_parallel.tf.context import TFContext
from rlplat.data_parallel.tf.training import KerasTraining
from rlplat.errors import ConfigError
from rlplat.listening import in_url

_LOST = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError)
"""Of a collective call in which another rank does not take part; others are known by their text."""


class TFProgram(RankProgram):
    equal_data = (
        "Each rank takes its part of every batch of a data set that is the same on all: data_creator must not look at "
        "the rank; a training function gives the data set to ctx.prepare, and calls ctx.report on every rank"
    )
    _training: KerasTraining
    """From `set_up` on."""

    def __init__(self, settings: RankSettings) -> None:
        super().__init__(settings)
        gpus = tf.config.list_physical_devices("GPU") if settings.use_gpu else []
        if settings.use_gpu and not gpus:
            raise RuntimeError(f"rank {settings.rank} was given a GPU, and TensorFlow sees none ({tf.__version__})")
        with contextlib.suppress(RuntimeError):  # in a process that has used TensorFlow: backend="inproc"
            tf.config.set_visible_devices(gpus, "GPU")
            for gpu in gpus:
                tf.config.experimental.set_memory_growth(gpu, True)
            if settings.num_cpus >= 1:
                tf.config.threading.set_intra_op_parallelism_threads(int(settings.num_cpus))
        self._strategy = tf.distribute.get_strategy()
        self._counts: KerasTraining | TFContext | None = None
        """What knows how many steps there were."""

    def open_door(self, hosts: Sequence[str]) -> tuple[str, int]:
        """The address for this rank's server: its node's, and a port that is free now."""
        with socket.socket() as probe:
            probe.bind(("", 0))  # at all addresses, as TensorFlow's server will
            return hosts[self.settings.rank], int(probe.getsockname()[1])

    def join(self, doors: Sequence[tuple[str, int]]) -> None:
        os.environ["TF_CONFIG"] = tf_config(doors, self.settings.rank)
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=self.settings.hang_timeout_s)
        try:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        except tf.errors.UnknownError as error:
            if "gRPC server" not in str(error):
                raise
            host, port = doors[self.settings.rank]
            raise RanksLost(
                f"TensorFlow's server did not start at {host}:{port}: another process may have taken the port"
            ) from None

    def context_of(self, report: Reporting, checkpoint: dict[str, Any] | None) -> TFContext:
        tf.keras.utils.set_random_seed(self.settings.seed)  # alike on all ranks: so is the order of the data
        context = self._counts = TFContext(self.settings, self._strategy, report, checkpoint)
        return context

    def set_up(
        self, creators: dict[str, Callable[..., Any]], config: dict[str, Any], state: dict[str, Any] | None
    ) -> None:
        tf.keras.utils.set_random_seed(self.settings.seed)  # as above
        settings = self.settings
        self._counts = self._training = KerasTraining(
            self._strategy, settings.rank, settings.world_size, creators, config, state
        )

    def train_epoch(
        self, num_steps: int | None, info: dict[str, Any], with_state: bool
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """(stats, state after it)."""
        if info:
            raise ConfigError("info= is for a TrainingOperator of TorchTrainer; TFTrainer has none")
        stats = self._training.run_epoch(num_steps)
        return stats, self.state() if with_state else None

    def validate(self, num_steps: int | None, info: dict[str, Any]) -> dict[str, Any]:
        return self._training.run_validation(num_steps)

    def state(self) -> dict[str, Any] | None:
        """Of rank 0; the others have the same."""
        return self._training.state() if self.settings.rank == 0 else None

    def has_validation(self) -> bool:
        return self._training.has_validation

    def broken_exchange(self, error: BaseException) -> str | None:
        if not isinstance(error, tf.errors.OpError):
            return None
        if not isinstance(error, _LOST) and "ollective" not in str(error):
            return None
        lines = [line for line in str(error).splitlines() if "ollective" in line]
        return lines[-1] if lines else type(error).__name__

    @property
    def num_steps(self) -> int:
        return self._counts.num_steps if self._counts else 0


def tf_config(doors: Sequence[tuple[str, int]], rank: int) -> str:
    """The value of TF_CONFIG for a rank. doors: (host, port) of all."""
    workers = [in_url(host, port) for host, port in doors]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
