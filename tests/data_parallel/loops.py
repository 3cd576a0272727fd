"""Training functions for the tests; imported in the processes of the ranks."""

from __future__ import annotations

import atexit
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NUM_SAMPLES = 37


class Numbered(Dataset):
    """Sample i is (x_i, y_i, i)."""

    def __init__(self, num_samples: int = NUM_SAMPLES) -> None:
        self.x = torch.randn(num_samples, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.x[index].sum(0, keepdim=True), index


def regression(ctx: Any, config: dict[str, Any]) -> None:
    """A small net on numbered samples. config: batch_size (of a rank), epochs, dropout, every (batches per report),
    fault: (step, what) for rank 1, once: `marker` is the file that says that it has happened ("": always);
    log: a folder for what each process has seen of an epoch, a file `<pid>_<step>` each."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(config.get("dropout", 0.0)), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Numbered(), batch_size=config["batch_size"], shuffle=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    model, optimizer, scheduler, loader = ctx.prepare(model, optimizer, scheduler, loader)
    every, seen = config.get("every", 0), []
    for epoch in ctx.epochs(config["epochs"]):
        total, begun = 0.0, len(seen)
        for x, y, indices in loader:
            fault(ctx, config)
            loss = nn.functional.mse_loss(model(x), y)
            ctx.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item() * ctx.batch_weight
            seen += indices.tolist() if ctx.batch_weight else []
            if "log" in config:
                (Path(config["log"]) / f"{os.getpid()}_{ctx.num_steps}").write_text(
                    f"{[epoch, ctx.world_size, seen[begun:]]}"
                )
            if every and ctx.sync_gradients and ctx.num_steps % every == 0:
                ctx.report(seen=str(seen), epoch=epoch, size=ctx.world_size, checkpoint={"note": "within"})
        scheduler.step()
        ctx.report(
            loss=total,
            size=ctx.world_size,
            epoch=epoch,
            seen=str(seen),
            checkpoint=config.get("checkpoint", True),
        )


def fault(ctx: Any, config: dict[str, Any]) -> None:
    if "fault" not in config or ctx.rank != 1:
        return
    step, what = config["fault"]
    marker = Path(config["marker"]) if config["marker"] else None
    if ctx.num_steps != step or (marker and marker.exists()):
        return
    if marker:
        marker.touch()
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(1000)
    if what == "kill the driver":
        while not Path(config["checkpoint_of_driver"]).exists():
            time.sleep(0.01)
        os.kill(config["driver"], signal.SIGKILL)
        time.sleep(1000)
    if what == "raise":
        raise ValueError("a bad sample")


def unequal(ctx: Any, config: dict[str, Any]) -> None:
    model = ctx.prepare(nn.Linear(2, 1))
    for _ in range(2 + (ctx.rank == 0)):
        ctx.backward(model(torch.ones(1, 2)).sum())


def unused(ctx: Any, config: dict[str, Any]) -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "idle": nn.Linear(2, 1)})
    model.forward = lambda x: model["used"](x)  # type: ignore[method-assign]
    ctx.backward(ctx.prepare(model)(torch.ones(1, 2)).sum())


def not_a_number(ctx: Any, config: dict[str, Any]) -> None:
    model = ctx.prepare(nn.Linear(2, 1))
    ctx.backward(model(torch.full((1, 2), float("nan") if ctx.rank == 1 else 1.0)).sum())


def another_model(ctx: Any, config: dict[str, Any]) -> None:
    ctx.prepare(nn.Linear(3, 1))


def prepares_nothing(ctx: Any, config: dict[str, Any]) -> None:
    ctx.prepare(None)


def too_little_data(ctx: Any, config: dict[str, Any]) -> None:
    ctx.prepare(DataLoader(Numbered(1), batch_size=4))


def registers(ctx: Any, config: dict[str, Any]) -> None:
    atexit.register((Path(config["folder"]) / str(ctx.rank)).touch)
