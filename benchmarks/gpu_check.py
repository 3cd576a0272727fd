"""What a GPU gives here, in one command and under ten minutes: its tests, gradient steps beside plain torch, training.

    ./scripts/gpu-check --json gpu.json                       on the machine with the GPU
    ./scripts/gpu-check --leanrl ~/LeanRL                     beside LeanRL's own scripts of that folder
    ./scripts/gpu-check --device cpu --quick                  the same program without a GPU, at toy size

Rows: gradient steps/s of the image learners of PPO and DQN, beside the same step in plain torch (`bare`) and that
step replayed as a CUDA graph (`captured`), and with `torch.compile` around the learners' losses; env steps/s of
training with the learner on the device, beside LeanRL's script of the same task; env steps/s of a tensor environment
on the device, sampled and with learning; steps/s of a data-parallel training with one rank, beside the plain loop.
Each row is a process of its own; one that fails is a `-` and a note, and the others go on. LeanRL's settings: one
environment and its defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Report, Sample, add_output_options, hardware, summarize
from rlplat.paths import expanded

ROW_LIMIT_S = 100
SECONDS = 6.0
"""How long a row is timed; --quick: a thirtieth of it."""
IMAGES = {"ppo": 256, "dqn": 32}
"""Rows of a minibatch."""
TRAINING: dict[str, tuple[str, dict[str, Any], str]] = {
    "PPO Pong": (
        "ppo",
        {"env": "Pong", "num_rollout_workers": 0, "num_envs_per_worker": 8, "rollout_length": 128,
         "minibatch_size": 256, "num_epochs": 4, "policy": {"encoder": "nature_cnn", "share_encoder": True}},
        "ppo_atari_envpool_torchcompile.py",
    ),
    "PPO HalfCheetah": (
        "ppo",
        {"env": "HalfCheetah-v5", "num_rollout_workers": 0, "num_envs_per_worker": 1, "rollout_length": 2048,
         "minibatch_size": 64, "num_epochs": 10, "policy": {"hidden_sizes": [64, 64]}},
        "ppo_continuous_action_torchcompile.py",
    ),
    "SAC HalfCheetah": (
        "sac", {"env": "HalfCheetah-v5", "learning_starts": 40}, "sac_continuous_action_torchcompile.py",
    ),
    "TD3 HalfCheetah": (
        "td3", {"env": "HalfCheetah-v5", "learning_starts": 40}, "td3_continuous_action_torchcompile.py",
    ),
}  # fmt: skip
"""Row -> algorithm, settings, LeanRL's script of the same task and settings."""


def main() -> int:
    options = build_parser().parse_args()
    if options.row:
        print(json.dumps(ROWS[options.row](options)))
        return 0
    info = hardware(["rlplat", "torch", "numpy", "gymnasium", "ale-py", "mujoco"]) | device_of(options.device)
    notes, failed = [], False
    if not options.no_tests:
        failed, said = run_tests()
        notes.append(f"tests of GPUs: {said}")
    samples: list[Sample] = []
    for row in ROWS:
        for repeat in range(options.repeats):
            print(f"{row}, repeat {repeat + 1} of {options.repeats}", file=sys.stderr, flush=True)
            found, why = measured(row, options)
            samples += [Sample(peer, f"{row}, {unit}", "", unit, value) for peer, unit, value in found]
            if why:
                notes.append(f"{row}: {why}")
                failed = failed or not why.startswith("needs ")
                break
    rows = summarize(samples)
    peers = ["rlplat", *dict.fromkeys(sample.peer for sample in samples if sample.peer != "rlplat")]
    report = Report("A GPU check", peers, rows, {row.row for row in rows}, info, notes)
    report.publish(options.json, options.markdown)
    return 1 if failed else 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./scripts/gpu-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_output_options(parser, [])
    parser.set_defaults(repeats=1)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--leanrl", type=expanded, metavar="DIR", help="a clone of LeanRL, run by this Python")
    parser.add_argument("--no-tests", action="store_true", help="rows only")
    parser.add_argument("--row", choices=list(ROWS), help=argparse.SUPPRESS)
    return parser


def device_of(device: str) -> dict[str, str]:
    import torch

    if device == "cpu":
        return {"device": "cpu"}
    if not torch.cuda.is_available():
        sys.exit(f"gpu-check: torch {torch.__version__} finds no GPU; --device cpu runs the same program without one")
    name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
    return {"device": f"{name}, {memory / 2**30:.0f} GiB", "cuda": f"{torch.version.cuda}"}


def run_tests() -> tuple[bool, str]:
    """(whether one failed, pytest's last line)"""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        "tests/rl/torch/test_gpu.py",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    lines = done.stdout.strip().splitlines()
    if done.returncode not in (0, 5):
        print(done.stdout[-3000:], file=sys.stderr)
    return done.returncode not in (0, 5), lines[-1] if lines else done.stderr.strip()[-200:]


def measured(row: str, options: argparse.Namespace) -> tuple[list[tuple[str, str, float]], str]:
    """([(peer, unit, figure)], why there is none)"""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--row", row, "--device", options.device]
    command += ["--quick"] if options.quick else []
    command += ["--leanrl", str(options.leanrl)] if options.leanrl else []
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
            timeout=ROW_LIMIT_S * (2 if options.leanrl else 1),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [], f"not over after {ROW_LIMIT_S} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        missing = re.search(r"No module named '(ale_py|mujoco)'|needs (ale-py|mujoco)", done.stderr)
        return [], f"needs {missing[1] or missing[2]}" if missing else f"failed: {last[:200]}"
    return [tuple(each) for each in json.loads(done.stdout.strip().splitlines()[-1])], ""


def rate(step: Callable[[], object], device: str, seconds: float) -> float:
    """Calls/s, the device waited for; after a second of warming up (kernels are chosen, clocks rise)."""
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    until = time.perf_counter() + min(1.0, seconds)
    step()
    while time.perf_counter() < until:
        step()
    wait()
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        step()
        count += 1
    wait()
    return count / (time.perf_counter() - started)


# ---------------------------------------------------------------- gradient steps on images


def image_steps(algo: str, precision: str) -> Callable[[argparse.Namespace], list[tuple[str, str, float]]]:
    def measure(options: argparse.Namespace) -> list[tuple[str, str, float]]:
        from benchmarks import image_learner

        settings = {"learner": {"precision": precision, "device": options.device}}
        ours = (image_learner.ppo_steps if algo == "ppo" else image_learner.dqn_steps)(settings)[0]
        seconds = SECONDS / (30 if options.quick else 1)
        found = [("rlplat", rate(ours, options.device, seconds))]
        bare = bare_step(algo, precision, options.device)
        found.append(("bare", rate(bare, options.device, seconds)))
        if options.device == "cuda":
            found.append(("captured", rate(captured(bare), options.device, seconds)))
        return [(peer, "gradient steps/s", value) for peer, value in found]

    return measure


def compiled_steps(algo: str, mode: str) -> Callable[[argparse.Namespace], list[tuple[str, str, float]]]:
    """mode: of `torch.compile`; compiling is over when the clock starts."""

    def measure(options: argparse.Namespace) -> list[tuple[str, str, float]]:
        from benchmarks import image_learner

        settings = {"learner": {"precision": "bfloat16", "device": options.device}}
        step = (image_learner.ppo_steps if algo == "ppo" else image_learner.dqn_steps)(settings, mode)[0]
        for _ in range(3):
            step()
        return [("rlplat", "gradient steps/s", rate(step, options.device, SECONDS / (30 if options.quick else 1)))]

    return measure


def bare_step(algo: str, precision: str, device: str) -> Callable[[], object]:
    """The same network, loss and optimizer in plain torch, on a minibatch that is on the device."""
    import torch
    from torch import nn

    size, num_actions = IMAGES[algo], 6
    torch.manual_seed(0)
    trunk = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
    )  # fmt: skip
    network = nn.ModuleDict({"trunk": trunk, "actor": nn.Linear(512, num_actions), "critic": nn.Linear(512, 1)})
    network = network.to(device, memory_format=torch.channels_last)
    images = torch.randint(0, 256, (2, size, 4, 84, 84), dtype=torch.uint8, device=device)
    actions = torch.randint(num_actions, (size, 1), device=device)
    numbers = torch.randn(size, device=device)
    on_cuda = device == "cuda"
    adam = torch.optim.Adam(network.parameters(), 2.5e-4, fused=True, capturable=on_cuda)
    cast = torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16")

    def features(obs: Any) -> Any:
        return network["trunk"](obs.float().to(memory_format=torch.channels_last) / 255.0).float()

    def step() -> object:
        with cast:
            hidden = features(images[0])
            outputs = network["actor"](hidden).float()
            if algo == "ppo":
                values = network["critic"](hidden).float()[:, 0]
                log_probs = outputs.log_softmax(-1)
                ratios = (log_probs.gather(1, actions)[:, 0] + 1.8).exp()
                policy = -torch.min(ratios * numbers, ratios.clamp(0.9, 1.1) * numbers).mean()
                entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
                loss = policy + 0.25 * (values - numbers).square().mean() - 0.01 * entropy
            else:
                with torch.no_grad():
                    targets = numbers + 0.99 * network["actor"](features(images[1])).float().amax(-1)
                loss = nn.functional.smooth_l1_loss(outputs.gather(1, actions)[:, 0], targets)
        adam.zero_grad(set_to_none=not on_cuda)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        adam.step()
        return loss

    return step


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """The step as one CUDA graph."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


# ---------------------------------------------------------------- training


def training(name: str) -> Callable[[argparse.Namespace], list[tuple[str, str, float]]]:
    algo, settings, script = TRAINING[name]

    def measure(options: argparse.Namespace) -> list[tuple[str, str, float]]:
        from rlplat.rl.run.registry import load_algorithm

        seconds = 2 * SECONDS / (30 if options.quick else 1)
        algorithm_class = load_algorithm(algo)
        small: dict[str, Any] = {"rollout_length": 32, "num_epochs": 1, "minibatch_size": 32}
        small = small if options.quick and algo == "ppo" else {}
        learner = {"device": options.device} | ({"backend": "torch"} if algo == "ppo" else {})
        config = algorithm_class.config_class(**(settings | small), learner=learner, seed=1)
        with algorithm_class(config) as algorithm:
            while algorithm.step().env_steps < (50 if options.quick else 500):
                pass
            before = algorithm.step().env_steps
            started = time.perf_counter()
            while time.perf_counter() - started < seconds:
                after = algorithm.step().env_steps
            elapsed_s = time.perf_counter() - started
        found = [("rlplat", "env steps/s", (after - before) / elapsed_s)]
        if options.leanrl:
            found.append(("leanrl", "env steps/s", lean_rate(options.leanrl / "leanrl" / script, 6 * seconds)))
        return found

    return measure


def tensors(options: argparse.Namespace) -> list[tuple[str, str, float]]:
    """4,096 copies on the device, 24 steps, 5 epochs of 4 minibatches (rsl_rl's round)."""
    from rlplat.algorithms.ppo import PPO, PPOConfig
    from rlplat.rl.run.algorithm import why_on_host

    copies, steps = (256, 8) if options.quick else (4096, 24)
    config = PPOConfig(
        env="TensorCartPole", env_kwargs={"device": options.device}, num_rollout_workers=0, num_envs_per_worker=copies,
        rollout_length=steps, num_epochs=5, minibatch_size=copies * steps // 4, seed=1,
    )  # fmt: skip
    seconds, sample_s, rounds = 2 * SECONDS / (30 if options.quick else 1), 0.0, 0
    with PPO(config) as ppo:
        assert ppo.samples_in_learner, why_on_host(ppo)
        for _ in range(3):
            ppo.step()
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            sample_s += ppo.step().metrics["time/sample_s"]
            rounds += 1
        elapsed_s = time.perf_counter() - started
    num_steps = rounds * copies * steps
    return [("rlplat", "sampled env steps/s", num_steps / sample_s), ("rlplat", "env steps/s", num_steps / elapsed_s)]


def lean_rate(script: Path, seconds: float) -> float:
    """The last `speed: N sps` that LeanRL's script prints within that time, CUDA graphs and compilation on."""
    command = [sys.executable, str(script), "--cudagraphs", "--compile"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=script.parent) as process:
        try:
            said = process.communicate(timeout=max(seconds, 60.0))[0]
        except subprocess.TimeoutExpired:
            process.terminate()
            said = process.communicate()[0]
    speeds = re.findall(rb"speed: *([\d.]+)", said)
    if not speeds:
        raise RuntimeError(f"{script} printed no speed: {said[-300:].decode(errors='replace')}")
    return float(speeds[-1])


def one_rank(options: argparse.Namespace) -> list[tuple[str, str, float]]:
    """A data-parallel training of one rank (NCCL on a GPU) beside the plain loop, the same network and data."""
    import torch
    from torch import nn

    from benchmarks.data_parallel_programs import resnet
    from rlplat.data_parallel import TorchTrainer

    seconds, device = SECONDS / (30 if options.quick else 1), options.device

    def steps(config: dict[str, Any], prepare: Callable[[Any], Any], where: Any) -> float:
        model = prepare(resnet())
        sgd = torch.optim.SGD(model.parameters(), 0.01)
        x, y = torch.randn(128, 3, 32, 32, device=where), torch.randint(10, (128,), device=where)

        def step() -> None:
            sgd.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            sgd.step()

        return rate(step, config["device"], config["seconds"])

    def loop(ctx: Any, config: dict[str, Any]) -> None:
        ctx.report({"rate": steps(config, ctx.prepare, ctx.device)})

    config = {"seconds": seconds, "device": device}
    with TorchTrainer(train_loop=loop, config=config, num_workers=1, use_gpu=device == "cuda") as trainer:
        ours = trainer.fit().metrics["rate"]
    plain = steps(config, lambda model: model.to(device), device)
    return [("rlplat", "steps/s", float(ours)), ("bare", "steps/s", plain)]


ROWS: dict[str, Callable[[argparse.Namespace], list[tuple[str, str, float]]]] = {
    **{
        f"{algo.upper()} images, minibatch {size}, {precision}": image_steps(algo, precision)
        for algo, size in IMAGES.items()
        for precision in ("float32", "bfloat16")
    },
    **{
        f"{algo.upper()} images, minibatch {size}, bfloat16, {name}": compiled_steps(algo, mode)
        for algo, size in IMAGES.items()
        for name, mode in (("compiled", "default"), ("compiled, CUDA graphs", "reduce-overhead"))
    },
    **{name: training(name) for name in TRAINING},
    "PPO TensorCartPole, 4,096 x 24": tensors,
    "data-parallel, one rank, ResNet 128 x 32 x 32": one_rank,
}


if __name__ == "__main__":
    sys.exit(main())
