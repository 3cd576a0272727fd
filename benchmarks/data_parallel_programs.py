"""What `benchmarks.data_parallel` measures, a fresh process each: `... data_parallel_programs PEER ROW RANKS full`.

Prints one line `figure <number>`. The same network, data and loop for every peer; torchrun's is plain
DistributedDataParallel, as in torch's own example.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STARTED = "RLPLAT_BENCH_STARTED"
"""When the process was started: set by the process that started it."""
ONE_STEP = ("start", "construct", "restart")
"""Rows whose figure is a time up to a first step."""


def resnet() -> Any:
    """ResNet-18's shape for 32x32 images, with 8 to 64 channels instead of 64 to 512, so that a CPU trains it."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, channels: int, out: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
            self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
            self.short = nn.Conv2d(channels, out, 1, stride, bias=False) if stride > 1 else nn.Identity()

        def forward(self, x: Any) -> Any:
            y = self.norms[0](self.first(x)).relu()
            return (self.norms[1](self.second(y)) + self.short(x)).relu()

    layers = [nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    channels = 8
    for out in (8, 16, 32, 64):
        layers += [Block(channels, out, 1 if out == channels else 2), Block(out, out, 1)]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def images(config: dict[str, Any]) -> Any:
    import torch
    from torch.utils.data import TensorDataset

    torch.manual_seed(0)
    return TensorDataset(torch.randn(config["samples"], 3, 32, 32), torch.randint(10, (config["samples"],)))


def parts(config: dict[str, Any]) -> tuple[Any, Any]:
    import torch

    model = (
        resnet() if config["model"] == "resnet" else torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(model: Any, optimizer: Any, loader: Any, backward: Any, config: dict[str, Any]) -> float:
    """Samples/s of this rank, without the first fifth."""
    from torch.nn.functional import cross_entropy

    steps, begun = 0, time.perf_counter()
    skipped = config["steps"] // 5
    while True:
        for x, y in loader:
            if steps == skipped:
                begun = time.perf_counter()
            until = time.perf_counter() + config["spin_s"]
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            loss.item()
            while time.perf_counter() < until:
                pass
            steps += 1
            if steps == config["steps"]:
                return (steps - skipped) * config["batch"] / (time.perf_counter() - begun)


def loop(ctx: Any, config: dict[str, Any]) -> None:
    from torch.utils.data import DataLoader

    loader = DataLoader(images(config), config["batch"], shuffle=True, drop_last=True)
    model, optimizer, loader = ctx.prepare(*parts(config), loader)
    if config["row"] == "restart":
        one_after_a_kill(ctx.rank, model, optimizer, loader, ctx.backward, config, ctx.report)
    else:
        ctx.report(rate=train(model, optimizer, loader, ctx.backward, config), at=time.time())


def one_after_a_kill(
    rank: int, model: Any, optimizer: Any, loader: Any, backward: Any, config: dict[str, Any], report: Any
) -> None:
    """A step; rank 1 kills itself the first time; the second time the step is the first one after the loss."""
    killed = Path(config["folder"]) / "killed"
    is_second = killed.exists()  # before a step of all ranks: none of the first ones sees it
    train(model, optimizer, loader, backward, config | {"steps": 1})
    if is_second:
        report(rate=0.0, at=time.time() - float(killed.read_text()))
    elif rank == 1:
        killed.write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        train(model, optimizer, loader, backward, config | {"steps": 1000})


def plain(config: dict[str, Any]) -> None:
    """A rank of torchrun."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = images(config)
    loader = DataLoader(data, config["batch"], sampler=DistributedSampler(data), drop_last=True)
    model, optimizer = parts(config)
    if dist.get_world_size() > 1:
        model = DistributedDataParallel(model)

    def report(**metrics: float) -> None:
        if dist.get_rank() == 0:
            print(f"figure {figure(metrics, config)}", flush=True)

    def backward(loss: Any) -> None:
        loss.backward()

    if config["row"] == "restart":
        one_after_a_kill(dist.get_rank(), model, optimizer, loader, backward, config, report)
    else:
        report(rate=train(model, optimizer, loader, backward, config), at=time.time())
    dist.destroy_process_group()


def with_fabric(config: dict[str, Any]) -> None:
    """A rank of torchrun, prepared by lightning's Fabric."""
    import torch
    from lightning_fabric import Fabric
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    strategy = "ddp" if config["ranks"] > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=config["ranks"], strategy=strategy)
    fabric.launch()
    loader = DataLoader(images(config), config["batch"], shuffle=True, drop_last=True)
    model, optimizer = fabric.setup(*parts(config))
    rate = train(model, optimizer, fabric.setup_dataloaders(loader), fabric.backward, config)
    if fabric.global_rank == 0:
        print(f"figure {figure({'rate': rate, 'at': time.time()}, config)}", flush=True)


def figure(metrics: dict[str, Any], config: dict[str, Any]) -> float:
    if config["row"] == "restart":
        return metrics["at"]
    if config["row"] == "start":
        return metrics["at"] - float(os.environ[STARTED])
    if config["row"] == "construct":
        return metrics["at"] - config["constructed"]
    return metrics["rate"] * config["ranks"]


def config_of(row: str, ranks: int, is_quick: bool) -> dict[str, Any]:
    steps = 1 if row in ONE_STEP else 10 if is_quick else 100
    spin_s = 0.01 if row == "spin" else 0.0
    is_small = row != "rate"
    sizes = {"batch": 4 if is_small else 16, "samples": 64 if is_small else 512, "steps": steps}
    folder = os.environ.get("RLPLAT_BENCH_FOLDER") or tempfile.mkdtemp()
    model = "linear" if is_small else "resnet"
    return {"row": row, "ranks": ranks, "model": model, "spin_s": spin_s, "folder": folder, **sizes}


def with_rlplat(config: dict[str, Any]) -> None:
    import rlplat
    from rlplat.data_parallel import TorchTrainer

    if config["row"] == "construct":
        rlplat.init(num_cpus=2, preload=[TorchTrainer.program.partition(":")[0]])
    config["constructed"] = time.time()
    result = TorchTrainer(loop, config, num_workers=config["ranks"]).fit()
    print(f"figure {figure(result.metrics, config)}")
    rlplat.shutdown()


def with_ray(config: dict[str, Any]) -> None:
    """Ray Train with its `prepare_model` and `prepare_data_loader`, from a cluster of its own."""
    import ray
    from ray import train as ray_train
    from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
    from torch.utils.data import DataLoader

    folder = Path(config["folder"])

    def ray_loop(config: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(1)
        rank = ray_train.get_context().get_world_rank()

        def report(**metrics: float) -> None:
            if rank == 0:  # a Result has the metrics of checkpoints alone
                (folder / "figure").write_text(str(figure(metrics, config)))

        def backward(loss: Any) -> None:
            loss.backward()

        model, optimizer = parts(config)
        model = prepare_model(model)
        loader = prepare_data_loader(DataLoader(images(config), config["batch"], shuffle=True, drop_last=True))
        if config["row"] == "restart":
            one_after_a_kill(rank, model, optimizer, loader, backward, config, report)
        else:
            report(rate=train(model, optimizer, loader, backward, config), at=time.time())

    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    config["constructed"] = time.time()
    trainer = TorchTrainer(
        ray_loop,
        train_loop_config=config,
        scaling_config=ray_train.ScalingConfig(num_workers=config["ranks"]),
        run_config=ray_train.RunConfig(
            storage_path=config["folder"],
            failure_config=ray_train.FailureConfig(max_failures=int(config["row"] == "restart")),
        ),
    )
    trainer.fit()
    print(f"figure {(folder / 'figure').read_text()}")
    ray.shutdown()


if __name__ == "__main__":
    peer, row, ranks, size = sys.argv[1:5]
    settings = config_of(row, int(ranks), size == "quick")
    programs = {"rlplat": with_rlplat, "torchrun": plain, "ray": with_ray, "fabric": with_fabric}
    programs[peer](settings)
