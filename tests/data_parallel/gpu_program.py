"""A program of ranks that have GPUs by the cluster's books, on a machine that may have none."""

from __future__ import annotations

from dataclasses import replace

from rlplat.data_parallel import TorchTrainer
from rlplat.data_parallel.rank import RankSettings
from rlplat.data_parallel.torch.program import TorchProgram


class BookedProgram(TorchProgram):
    def __init__(self, settings: RankSettings) -> None:
        assert settings.use_gpu
        super().__init__(replace(settings, use_gpu=False))


class BookedTrainer(TorchTrainer):
    program = f"{__name__}:BookedProgram"
