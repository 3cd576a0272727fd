"""How near the learner of images comes to the matrix products of the machine: FLOP/s of gradient steps, counted, beside
those of one product in the same process.

    python -m benchmarks.image_learner --repeats 9 --markdown learner.md

A row is one gradient step on stacks of 84x84 with the Nature CNN: all that the learner does for it (rows gathered,
forward, backward, norm, Adam). The peer `product` is the network's largest layer, 256 x 3136 x 512, as many times as it
takes about as long; float32 by torch's library or by oneDNN, whichever is faster here. Both with `--threads` threads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from benchmarks.measure import Report, Sample, add_output_options, hardware, summarize
from rlplat.algorithms.dqn import DQNConfig, TorchDQN
from rlplat.algorithms.ppo import PPOConfig, TorchPPO
from rlplat.rl.policies.spec import PolicySpec, QSpec, policy_spec
from rlplat.rl.replay.buffer import Minibatch
from rlplat.rl.sampling.freed_memory import keep_freed_memory
from rlplat.rl.sampling.rollout import Rollout, Rows
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from rlplat.rl.torch.device import has_fast_bfloat16

IMAGE, NUM_ACTIONS, ROUND = (4, 84, 84), 6, 1024
LAYERS = {
    "conv1": 20 * 20 * 32 * (8 * 8 * 4),
    "conv2": 9 * 9 * 64 * (4 * 4 * 32),
    "conv3": 7 * 7 * 64 * (3 * 3 * 64),
    "linear": 3136 * 512,
}
"""Multiplications of the Nature CNN for one image; the heads have a thousandth of them."""
FORWARD = 2 * sum(LAYERS.values())
BACKWARD = 2 * FORWARD - 2 * LAYERS["conv1"]
"""FLOP for one image: the gradients of weights and inputs, but of the images themselves."""
PRODUCT = (256, 3136, 512)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.image_learner",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_output_options(parser, [])
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    options = parser.parse_args()
    info = hardware(["rlplat", "torch", "numpy"])
    keep_freed_memory()  # as learners do
    precisions = ["float32", *(["bfloat16"] if has_fast_bfloat16(torch.device("cpu")) else [])]
    num_steps = 2 if options.quick else 16
    samples: list[Sample] = []
    for precision in precisions:
        settings = {"learner": {"precision": precision, "device": "cpu", "num_threads": options.threads}}
        rows = {
            "PPO, minibatch of 256": ppo_steps(settings),
            "DQN, minibatch of 32": dqn_steps(settings),
        }
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        for name, (step, flop) in rows.items():
            row = f"{name}, {precision}, GFLOP/s"
            for _ in range(options.repeats):
                samples.append(Sample("learner", row, "", "GFLOP/s", rate(step, flop, num_steps)))
                samples.append(Sample("product", row, "", "GFLOP/s", product_rate(dtype, flop * num_steps)))
    names = {sample.row for sample in samples}
    notes = [f"{options.threads} thread(s); FLOP of DQN: forward, backward, and the target network's forward"]
    report = Report("The image learner", ["learner", "product"], summarize(samples), names, info, notes)
    report.publish(options.json, options.markdown)


def spec_of(config: Any) -> PolicySpec:
    spaces = SpaceSpec(ObsSpec("image", IMAGE, "uint8", "CHW"), ActionSpec("discrete", NUM_ACTIONS))
    return policy_spec(config.policy.model_dump(), spaces)


def ppo_steps(settings: dict[str, Any], compile_mode: str = "") -> tuple[Callable[[], object], float]:
    """(one gradient step on the next minibatch of a round, its FLOP); compile_mode: of `torch.compile` for its loss"""
    rng, size = np.random.default_rng(0), 256
    config = PPOConfig(
        env="Pong",
        policy={"encoder": "nature_cnn"},
        learning_rate=2.5e-4,
        clip_range=0.1,
        entropy_coef=0.01,
        **settings,
    )
    net = TorchPPO(config, spec_of(config), np.random.SeedSequence(0))
    if compile_mode:
        net.loss = torch.compile(net.loss, mode=compile_mode)  # type: ignore[method-assign]
    obs, actions = rng.integers(0, 256, (ROUND, *IMAGE), np.uint8), rng.integers(NUM_ACTIONS, size=ROUND)
    batch = SampleBatch.empty(1, obs, actions)
    batch.actions[:], batch.valid[:] = actions, True
    batch.log_probs[:] = -np.log(NUM_ACTIONS)
    batch.values[:] = rng.normal(size=ROUND)
    advantages, returns = rng.normal(size=(2, 1, ROUND)).astype(np.float32)
    net.load(Rollout(batch, batch.rewards, obs, advantages, returns))

    def step() -> object:
        return net.read([net.train(Rows(rng.permutation(ROUND)[:size]), config)])

    return step, size * (FORWARD + BACKWARD)


def dqn_steps(settings: dict[str, Any], compile_mode: str = "") -> tuple[Callable[[], object], float]:
    """The same of DQN, on minibatches that are there; compiled: the network as well."""
    rng, size = np.random.default_rng(0), 32
    config = DQNConfig(env="Pong", policy={"encoder": "nature_cnn"}, **settings)
    net = TorchDQN(config, spec_of(config), QSpec.of(config.model_dump()), np.random.SeedSequence(0))
    if compile_mode:
        net.network.compile(mode=compile_mode)
        net.loss = torch.compile(net.loss, mode=compile_mode)  # type: ignore[method-assign]
    images = rng.integers(0, 256, (2, size, *IMAGE), np.uint8)
    floats, rows = np.ones(size, np.float32), np.arange(size)
    actions = rng.integers(NUM_ACTIONS, size=size)
    batch = Minibatch(images[0], actions, floats, 0.99 * floats, images[1], floats, rows, rows)
    return lambda: net.read([net.train(batch, 1e-4)]), size * (FORWARD + BACKWARD + FORWARD)


def rate(step: Callable[[], object], flop: float, num_steps: int) -> float:
    """GFLOP/s"""
    step()
    started = time.perf_counter()
    for _ in range(num_steps):
        step()
    return flop * num_steps / (time.perf_counter() - started) / 1e9


def product_rate(dtype: torch.dtype, flop: float) -> float:
    """GFLOP/s of the largest layer, by the faster library; flop: about how many to compute."""
    rows, inputs, outputs = PRODUCT
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    products: list[Callable[[], object]] = [lambda: F.linear(x, weight)]
    if dtype == torch.float32 and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        products.append(lambda: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], ""))
    each = 2.0 * rows * inputs * outputs
    return max(rate(product, each, max(1, round(flop / each))) for product in products)


if __name__ == "__main__":
    main()
