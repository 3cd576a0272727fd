"""Gradient steps as they are, and with `torch.compile` around what they compute: CPU time of each, and of compiling.

    OMP_NUM_THREADS=1 python -m benchmarks.compiled_updates --markdown compiled.md

Compiled is the loss of PPO and DQN with all that it calls (DQN: the network beside it), of SAC and TD3 the networks.
Beside PPO's MLP the numpy learner, which computes it by default. Each figure is from a process of its own; the peers
take turns. CPU time, of compiling with all processes that do: other work on the machine counts little. A row's first
process compiles with an empty cache, the others find what it left there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ROOT, Report, Sample, add_output_options, hardware, summarize

Step = Callable[[], object]
ROWS = {
    "PPO CartPole-v1, 64x64, minibatch 256": ("ppo-mlp", "float32", 400),
    "PPO Pong, Nature CNN, minibatch 256, float32": ("ppo", "float32", 8),
    "PPO Pong, Nature CNN, minibatch 256, bfloat16": ("ppo", "bfloat16", 16),
    "DQN Pong, Nature CNN, minibatch 32, float32": ("dqn", "float32", 40),
    "DQN Pong, Nature CNN, minibatch 32, bfloat16": ("dqn", "bfloat16", 60),
    "SAC HalfCheetah, 256x256, minibatch 256": ("sac", "float32", 150),
    "TD3 HalfCheetah, 256x256, minibatch 256": ("td3", "float32", 150),
}
"""Row -> what steps, its precision, how many of them are timed."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compiled_updates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_output_options(parser, [])
    kinds = list(dict.fromkeys(kind for kind, _, _ in ROWS.values()))
    parser.add_argument("--rows", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--row", nargs=2, metavar=("ROW", "PEER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measured(*options.row, options.quick)))
        return
    info = hardware(["rlplat", "torch", "numpy"])
    samples: list[Sample] = []
    caches = tempfile.TemporaryDirectory()
    for row, (kind, precision, _) in ROWS.items():
        if kind not in options.rows:
            continue
        peers = ["eager", "compiled", *(["numpy"] if kind == "ppo-mlp" else [])]
        for repeat in range(options.repeats):
            for peer in peers if repeat % 2 == 0 else peers[::-1]:
                print(f"{row}, repeat {repeat + 1} of {options.repeats}: {peer}", file=sys.stderr, flush=True)
                step_s, first_s = in_a_process(row, peer, Path(caches.name) / kind / precision, options.quick)
                print(f"  {1000 * step_s:.2f} ms, first three {first_s:.1f} s", file=sys.stderr, flush=True)
                samples.append(Sample(peer, f"{row}: CPU ms of a step", "", "ms", 1000 * step_s))
                if peer == "compiled":
                    name = f"{row}: CPU s of the first three steps, cache empty / filled"
                    samples.append(Sample(peer, name, "filled" if repeat else "empty", "s", first_s))
    caches.cleanup()
    report = Report("Compiled updates", ["eager", "compiled", "numpy"], summarize(samples), set(), info, [])
    report.publish(options.json, options.markdown)


def in_a_process(row: str, peer: str, cache: Path, quick: bool) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.compiled_updates", "--row", row, peer]
    command += ["--quick"] if quick else []
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(row: str, peer: str, quick: bool) -> list[float]:
    """(CPU seconds of a step, of the first three with all processes that compile for them)"""
    kind, precision, num_steps = ROWS[row]
    step = (ppo_mlp_step if kind == "ppo-mlp" else control_step if kind in ("sac", "td3") else image_step)(
        kind, precision, peer
    )
    before = _cpu_s()
    for _ in range(3):
        step()
    first_s = _cpu_s() - before
    num_steps = 1 if quick else num_steps
    started = time.process_time()
    for _ in range(num_steps):
        step()
    return [(time.process_time() - started) / num_steps, first_s]


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def image_step(kind: str, precision: str, peer: str) -> Step:
    from benchmarks import image_learner

    settings = {"learner": {"precision": precision, "device": "cpu", "num_threads": 1}}
    mode = "default" if peer == "compiled" else ""
    return (image_learner.ppo_steps if kind == "ppo" else image_learner.dqn_steps)(settings, mode)[0]


def ppo_mlp_step(kind: str, precision: str, peer: str) -> Step:
    """Of rounds of 8 x 128 steps."""
    from rlplat.algorithms.ppo import PPO, PPOConfig
    from rlplat.rl.learning.backend import computation_of
    from rlplat.rl.policies.spec import policy_spec
    from rlplat.rl.sampling.rollout import Rollout
    from rlplat.rl.sampling.sample_batch import SampleBatch
    from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec

    rng, shape = np.random.default_rng(0), (128, 8)
    backend = "numpy" if peer == "numpy" else "torch"
    config = PPOConfig(env="CartPole-v1", learner={"device": "cpu", "num_threads": 1, "backend": backend})
    spaces = SpaceSpec(ObsSpec("vector", (4,), "float32"), ActionSpec("discrete", 2))
    spec = policy_spec(config.policy.model_dump(), spaces)
    net = computation_of(PPO).net(backend, config, spec, np.random.SeedSequence(0))
    if peer == "compiled":
        import torch

        net.loss = torch.compile(net.loss)
    obs, actions = rng.normal(size=(*shape, 4)).astype(np.float32), rng.integers(2, size=shape)
    batch = SampleBatch.empty(shape[0], obs[0], actions[0])
    batch.obs, batch.actions, batch.valid[:] = obs, actions, True
    batch.log_probs[:], batch.values[:] = -np.log(2), rng.normal(size=shape)
    advantages, returns = rng.normal(size=(2, *shape)).astype(np.float32)
    rollout = Rollout(batch, batch.rewards, obs.reshape(-1, 4), advantages, returns)
    net.load(rollout)

    def steps() -> Any:
        while True:
            yield from rollout.minibatches(256, rng, normalize=True)

    rows = steps()
    return lambda: net.read([net.train(next(rows), config)])


def control_step(kind: str, precision: str, peer: str) -> Step:
    """A learner's whole gradient step: critics, actor, targets."""
    from rlplat.rl.learning.backend import computation_of
    from rlplat.rl.policies.spec import policy_spec
    from rlplat.rl.run.registry import load_algorithm
    from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec

    rng, features, num_actions, num_drawn = np.random.default_rng(0), 17, 6, 64
    algorithm: Any = load_algorithm(kind)
    config = algorithm.config_class(env="HalfCheetah-v5", learner={"device": "cpu", "num_threads": 1})
    box = ActionSpec("box", shape=(num_actions,), dtype="float32", low=(-1.0,) * 6, high=(1.0,) * 6)
    spec = policy_spec(config.policy.model_dump(), SpaceSpec(ObsSpec("vector", (features,), "float32"), box))
    learner = algorithm.learner_class(computation_of(algorithm), config.model_dump(), spec, None, None)
    nets, rows = learner.trainee, num_drawn * config.batch_size

    def numbers(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    columns = numbers(rows), np.full(rows, 0.99, np.float32)
    obs, actions = numbers(rows, features), np.tanh(numbers(rows, num_actions))
    batches = list(nets.minibatches(obs, actions, *columns, numbers(rows, features)))
    if peer == "compiled":
        for network in (nets.actor, nets.critics, nets.critics.first, nets.target_critics):
            network.compile()

    def step() -> object:
        batch = batches[learner.updates % num_drawn]
        return learner.count(batch, learner.train(batch))

    return step


if __name__ == "__main__":
    main()
