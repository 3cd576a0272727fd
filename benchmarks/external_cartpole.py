"""Does PPO learn CartPole from external simulators in as many env steps as in process?

    .venv/bin/python benchmarks/external_cartpole.py --seeds 1 2 3 --markdown benchmarks/results/external.md

For each seed the same training (config ppo/CartPole-v1) twice, until the mean return of 100 episodes is 475: with the
environments in the process (`--vectorization sync`), and with `--env external`, where `--clients` simulator processes
share the environments. They take the seeds that the training gives them. Also: env steps per second of either.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlplat.paths import expanded
from rlplat.rl.envs.external.client import Ended, Simulators

NUM_ENVS = 8
SPACES = """\
observation: {box: {low: -.inf, high: .inf, shape: [4]}}
action: {discrete: {n: 2}}
"""


def simulate(address: str, num_envs: int) -> None:
    """A simulator's program: `num_envs` CartPoles that step by themselves."""
    envs = [gym.make("CartPole-v1") for _ in range(num_envs)]
    try:
        with Simulators(address, num_envs, patience_s=150.0) as training:
            obs = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, training.seeds, strict=True)])
            actions = training.reset(obs)
            while True:
                steps = [env.step(int(action)) for env, action in zip(envs, actions, strict=True)]
                final_obs, rewards, terminated, truncated = (np.stack([s[i] for s in steps]) for i in range(4))
                obs = final_obs.copy()
                for i in np.flatnonzero(terminated | truncated):
                    obs[i] = envs[i].reset()[0]
                actions = training.step(obs, rewards, terminated, truncated, final_obs)
    except Ended:
        pass


def train(env: list[str], seed: int, out: Path) -> dict[str, Any]:
    """The last line of the run's metrics."""
    settings = f"--num-rollout-workers 0 --num-envs-per-worker {NUM_ENVS} --stop.episode-return-mean 475 "
    settings += f"--stop.env-steps 300000 --evaluation.episodes 0 --seed {seed} --out {out}"
    command = [sys.executable, "-m", "rlplat.cli", "train", "ppo/CartPole-v1", *env, *settings.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    return found


def measure(seed: int, num_clients: int, port: int, folder: Path) -> dict[str, Any]:
    inside = train(["--env", "CartPole-v1", "--vectorization", "sync"], seed, folder / f"inside{seed}")
    spaces = folder / "spaces.yaml"
    spaces.write_text(SPACES)
    program = [sys.executable, __file__, "--simulate", f"ws://127.0.0.1:{port}", str(NUM_ENVS // num_clients)]
    clients = [subprocess.Popen(program) for _ in range(num_clients)]
    try:
        outside = train(
            ["--env", "external", "--spaces", str(spaces), "--listen", f":{port}"],
            seed,
            folder / f"outside{seed}",
        )
    finally:
        for client in clients:
            client.terminate()
            client.wait()
    steps = [each["env_steps"] for each in (inside, outside)]
    return {
        "seed": seed,
        "env steps in process": steps[0],
        "env steps external": steps[1],
        "ratio": round(steps[1] / steps[0], 3),
        "return in process": round(inside["episode_return_mean"], 1),
        "return external": round(outside["episode_return_mean"], 1),
        "env steps/s in process": round(inside["env_steps_per_s"]),
        "env steps/s external": round(outside["env_steps_per_s"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--clients", type=int, default=2, help="simulator processes, which share 8 environments")
    parser.add_argument("--port", type=int, default=9917)
    parser.add_argument("--markdown", type=expanded)
    parser.add_argument("--simulate", nargs=2, metavar=("ADDRESS", "N"), help="be one of the simulators")
    options = parser.parse_args()
    if options.simulate:
        return simulate(options.simulate[0], int(options.simulate[1]))
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(seed, options.clients, options.port, Path(folder)) for seed in options.seeds]
    lines = ["| " + " | ".join(results[0]) + " |", "|" + "---|" * len(results[0])]
    lines += ["| " + " | ".join(f"{v:,}" if isinstance(v, int) else str(v) for v in r.values()) + " |" for r in results]
    text = "\n".join(lines)
    print(text)
    if options.markdown:
        command = " ".join(["benchmarks/external_cartpole.py", *sys.argv[1:]])
        where = f"Python {platform.python_version()}, {platform.machine()}, 2 cores; {options.clients} simulators"
        options.markdown.write_text(f"# PPO on CartPole from external simulators\n\n`{command}`\n\n{where}\n\n{text}\n")


if __name__ == "__main__":
    main()
