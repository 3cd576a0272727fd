"""Is an exported policy the policy of its run? Outputs over many rows, and whole episodes with equal seeds.

    .venv/bin/python benchmarks/export_equality.py runs/demo runs/lander --markdown benchmarks/results/export.md

For each run: it is exported; its rows are observations of episodes with random actions, and the same ten times as far
from their mean; the largest difference of logits (or Q-values) from torch's; the greedy actions that are equal where
the best two choices are 1e-4 or more apart; then episodes through `rlplat.load(RUN).act` and through
`rlplat.export.load(FILE).act`, and how many have equal returns. Where one has not, both act on the same observations
until their actions differ, and the gap between the two largest outputs there is said. Also: bytes, seconds,
microseconds of one `act`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import rlplat
from rlplat.paths import expanded


def observations(env: gym.Env, num_rows: int) -> np.ndarray:
    rows, (obs, _) = [], env.reset(seed=0)
    env.action_space.seed(0)
    while len(rows) < num_rows // 2:
        rows.append(obs)
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, _ = env.reset()
    seen = np.stack(rows)
    return np.concatenate([seen, (seen.mean(0) + 10 * (seen - seen.mean(0))).astype(seen.dtype)])


def differences(agent: Any, policy: Any, obs: np.ndarray) -> dict[str, Any]:
    """Against torch's float32; of a recurrent policy each row begins an episode."""
    name = "q_values" if "q_values" in policy.output_names else "params"
    with torch.no_grad():
        found = agent.torch_module()(torch.from_numpy(obs))
    expected = (found[0] if agent.state_size else found).numpy()
    feeds, _ = policy.read(obs)
    feeds["noise"] = np.zeros((len(obs), policy.contract.noise_size), np.float32)
    if agent.state_size:
        feeds |= {"state_in": policy.initial_state(len(obs)), "starts": np.ones(len(obs), bool)}
    got = policy.run(feeds)[name]
    ordered = np.sort(expected, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 1e-4
    equal = expected.argmax(1)[clear] == got.argmax(1)[clear]
    return {
        "rows": len(obs),
        "largest difference": float(np.abs(expected - got).max()),
        "largest output": float(np.abs(expected).max()),
        "equal greedy actions": f"{int(equal.sum()):,} of {len(equal):,}",
    }


def play(act: Any, env: gym.Env, episodes: int) -> list[float]:
    returns = []
    for seed in range(episodes):
        act.reset()
        (obs, _), done, total = env.reset(seed=seed), False, 0.0
        while not done:
            obs, reward, terminated, truncated, _ = env.step(act.act(obs))
            done, total = terminated or truncated, total + float(reward)
        returns.append(total)
    return returns


def gap_where_actions_differ(agent: Any, policy: Any, env: gym.Env, seed: int) -> str:
    """Of discrete actions: the step at which the first differs, and how far apart the best two choices are there."""
    name = "q_values" if "q_values" in policy.output_names else "params"
    obs, _ = env.reset(seed=seed)
    is_over, step = False, 0
    while not is_over:
        action = agent.act(obs)
        if action != policy.act(obs):
            feeds, _ = policy.read(obs)
            feeds["noise"] = np.zeros((1, policy.contract.noise_size), np.float32)
            best = np.sort(policy.run(feeds)[name][0])
            return f"seed {seed}, step {step}: {best[-1] - best[-2]:.1e} of {best[-1]:.4g}"
        obs, _, terminated, truncated, _ = env.step(action)
        is_over, step = terminated or truncated, step + 1
    return f"seed {seed}: none"


def measure(run: Path, num_rows: int, episodes: int, folder: Path) -> dict[str, Any]:
    start = time.perf_counter()
    file = rlplat.export.to_onnx(run, folder / f"{run.name}.onnx")
    seconds = time.perf_counter() - start
    agent, policy = rlplat.load(run), rlplat.export.load(file)
    env = gym.make(str(agent.plan.config.env))
    result: dict[str, Any] = {
        "run": run.name,
        "algorithm": agent.plan.algo,
        "env": str(agent.plan.config.env),
    }
    result |= {"bytes": file.stat().st_size, "seconds to export": round(seconds, 1)}
    result |= differences(agent, policy, observations(env, num_rows))
    ours, theirs = play(agent, env, episodes), play(policy, env, episodes)
    equal = sum(one == other for one, other in zip(ours, theirs, strict=True))
    result |= {"equal returns": f"{equal} of {episodes}", "mean return": round(float(np.mean(theirs)), 1)}
    if isinstance(env.action_space, gym.spaces.Discrete) and not agent.state_size:
        unequal = [seed for seed, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
        gaps = [gap_where_actions_differ(agent, policy, env, seed) for seed in unequal]
        result["gap where the first action differs"] = "; ".join(gaps) or "-"
    obs, _ = env.reset(seed=0)
    for name, each in (("agent.act us", agent), ("file.act us", policy)):
        each.reset()
        times = []
        for _ in range(2_000):
            start = time.perf_counter()
            each.act(obs)
            times.append(time.perf_counter() - start)
        result[name] = round(1e6 * float(np.median(times)), 1)
    return result


def table(results: list[dict[str, Any]]) -> str:
    names = list(results[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for result in results:
        cells = [
            f"{v:.2g}" if isinstance(v, float) and abs(v) < 0.01 else f"{v:,}" if isinstance(v, int) else str(v)
            for v in result.values()
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=expanded)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--json", type=expanded)
    parser.add_argument("--markdown", type=expanded)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(run, options.rows, options.episodes, Path(folder)) for run in options.runs]
    text = table(results)
    print(text)
    if options.json:
        options.json.write_text("".join(json.dumps(result) + "\n" for result in results))
    if options.markdown:
        command = " ".join(["benchmarks/export_equality.py", *sys.argv[1:]])
        versions = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"
        options.markdown.write_text(f"# Exported policies beside their runs\n\n`{command}`\n\n{versions}\n\n{text}\n")


if __name__ == "__main__":
    main()
