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

import rlplat
from rlplat.data_parallel.failures import CollectiveFailed
from rlplat.data_parallel.rank import RankSettings
from rlplat.data_parallel.tf.training import KerasTraining
from rlplat.errors import ConfigError

_LOST = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError)
"""Of a collective call in which another rank does not take part; others are known by their text."""


class TFProgram:
    _training: KerasTraining
    """From `set_up` on."""

    def __init__(self, settings: RankSettings) -> None:
        self._settings = settings
        gpus = tf.config.list_physical_devices("GPU") if settings.use_gpu else []
        if settings.use_gpu and not gpus:
            raise RuntimeError(
                f"rank {settings.rank} was given a GPU, and TensorFlow sees none ({tf.__version__})"
            )
        with contextlib.suppress(RuntimeError):  # in a process that has used TensorFlow: backend="inproc"
            tf.config.set_visible_devices(gpus, "GPU")
            for gpu in gpus:
                tf.config.experimental.set_memory_growth(gpu, True)
            if settings.num_cpus >= 1:
                tf.config.threading.set_intra_op_parallelism_threads(int(settings.num_cpus))
        self._strategy = tf.distribute.get_strategy()

    def home(self) -> tuple[str, str]:
        """(node, its address for other machines)."""
        context = rlplat.get_runtime_context()
        return context.get_node_id(), context.node_address

    def open_door(self, hosts: Sequence[str]) -> tuple[str, int]:
        """The address for this rank's server: its node's, and a port that is free now."""
        host = hosts[self._settings.rank]
        with socket.socket() as probe:
            probe.bind((host, 0))
            return host, int(probe.getsockname()[1])

    def join(self, doors: Sequence[tuple[str, int]]) -> None:
        os.environ["TF_CONFIG"] = tf_config(doors, self._settings.rank)
        options = tf.distribute.experimental.CommunicationOptions(
            timeout_seconds=self._settings.hang_timeout_s
        )
        self._watched(lambda: self._meet(options))

    def _meet(self, options: Any) -> None:
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def set_up(
        self,
        creators: dict[str, Callable[..., Any]],
        config: dict[str, Any],
        state: dict[str, Any] | None,
    ) -> None:
        tf.keras.utils.set_random_seed(self._settings.seed)  # alike on all ranks: so is the order of the data
        settings = self._settings
        self._watched(lambda: self._make(settings, creators, config, state))

    def _make(
        self,
        settings: RankSettings,
        creators: dict[str, Callable[..., Any]],
        config: dict[str, Any],
        state: dict[str, Any] | None,
    ) -> None:
        self._training = KerasTraining(
            self._strategy, settings.rank, settings.world_size, creators, config, state
        )

    def train_epoch(
        self, num_steps: int | None, info: dict[str, Any], with_state: bool
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """(stats, state after it)."""
        if info:
            raise ConfigError("info= is for a TrainingOperator of TorchTrainer; TFTrainer has none")
        stats = self._watched(lambda: self._training.run_epoch(num_steps))
        return stats, self.state() if with_state else None

    def validate(self, num_steps: int | None, info: dict[str, Any]) -> dict[str, Any]:
        return self._watched(lambda: self._training.run_validation(num_steps))

    def state(self) -> dict[str, Any] | None:
        """Of rank 0; the others have the same."""
        return self._training.state() if self._settings.rank == 0 else None

    def has_validation(self) -> bool:
        return self._training.has_validation

    def ready(self) -> None:
        """The training is set up."""

    def apply(self, function: Callable[[], Any]) -> Any:
        return self._watched(function)

    def _watched(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except tf.errors.OpError as error:
            if not isinstance(error, _LOST) and "ollective" not in str(error):
                raise
            reason = next(
                line for line in [*str(error).splitlines()[::-1], ""] if "ollective" in line or not line
            )
            failed = CollectiveFailed(reason or type(error).__name__, self._num_steps)
        except BaseException as error:
            rank, ranks = self._settings.rank, self._settings.world_size
            error.add_note(f"(in rank {rank} of {ranks}, step {self._num_steps + 1})")
            raise
        raise failed

    @property
    def _num_steps(self) -> int:
        return self._training.num_steps if hasattr(self, "_training") else 0


def tf_config(doors: Sequence[tuple[str, int]], rank: int) -> str:
    """The value of TF_CONFIG for a rank. doors: (host, port) of all."""
    workers = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in doors]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
