"""What the training waits for most, from its own clocks, and what to try about it.

seconds: dict[str, float] = {}
for result in training_loop(...): add_seconds(seconds, result.metrics)
bottleneck(seconds, config, num_cpus=4)    # "73 % of the time is env stepping: try --num-rollout-workers 4"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlplat.rl.envs.names import EXTERNAL

STANDS_OUT = 0.6
"""Share of the time from which something is worth a word."""
MIN_S = 5.0
"""Of runs shorter than this nothing is said: they are all start-up."""
MAX_ENVS_PER_WORKER = 64


def add_seconds(seconds: dict[str, float], metrics: Mapping[str, float]) -> None:
    """Add one iteration's `time/..._s` and `rollout/..._s` to the sums."""
    for name, value in metrics.items():
        if name.startswith(("time/", "rollout/")) and name.endswith("_s"):
            seconds[name] = seconds.get(name, 0.0) + value


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Of the time of all iterations: env stepping, acting, learning; empty where it was not (or too briefly) measured.

    Rounds (PPO, DQN, ES): an iteration waits for the rollouts (`time/sample_s`) and for the update (`time/update_s`);
    what the rollouts do in their own time (`rollout/env_s`, `rollout/act_s` of `rollout/sample_s`) divides the wait.
    Asynchronous DQN: of `time/round_s`, what a worker and the learner were busy, side by side. A3C: a worker's turns,
    which it makes alone: rollout, gradient, exchange with the parameter server.
    """
    if "time/gradient_s" in seconds:
        return _shares_of_turns(seconds)
    is_asynchronous = "time/round_s" in seconds
    sample, update = (
        ("time/worker_busy_s", "time/learner_busy_s") if is_asynchronous else ("time/sample_s", "time/update_s")
    )
    needed = (sample, update, "rollout/sample_s", "rollout/env_s", "rollout/act_s")
    if any(name not in seconds for name in needed):
        return {}
    total = seconds["time/round_s"] if is_asynchronous else seconds[sample] + seconds[update]
    rollout = seconds["rollout/sample_s"]
    if total < MIN_S or rollout <= 0.0:
        return {}
    sampling = seconds[sample] / total
    return {
        "env stepping": sampling * seconds["rollout/env_s"] / rollout,
        "acting": sampling * seconds["rollout/act_s"] / rollout,
        "the learner's update": seconds[update] / total,
    }


def _shares_of_turns(seconds: Mapping[str, float]) -> dict[str, float]:
    parts = {
        "env stepping": seconds.get("rollout/env_s", 0.0),
        "acting": seconds.get("rollout/act_s", 0.0),
        "the gradient": seconds["time/gradient_s"],
        "the exchange with the parameter server": seconds.get("time/exchange_s", 0.0),
    }
    total = sum(parts.values())
    if seconds.get("time/step_s", 0.0) < MIN_S or total <= 0.0:
        return {}
    return {what: part / total for what, part in parts.items()}


def bottleneck(seconds: Mapping[str, float], config: Any, num_cpus: int, *, is_tuned: bool = False) -> str:
    """One line where something takes at least 60 % of the time and there is something to try, else the empty string.

    seconds: sums of `add_seconds`; config: the algorithm's; num_cpus: of all machines;
    is_tuned: the network and what is learnt from were chosen by measuring, so that no other ones are proposed.
    """
    what, share = max(shares(seconds).items(), key=lambda item: item[1], default=("", 0.0))
    if share < STANDS_OUT:
        return ""
    head = f"{share:.0%} of the time is {what}".replace("%", " %")
    workers, envs = config.num_rollout_workers, config.num_envs_per_worker
    more_workers = min(num_cpus, max(2, 2 * workers))
    if is_tuned and what != "env stepping":
        return ""
    if what == "the learner's update":
        return f"{head}: a smaller network or (for images) a GPU would help, more rollout workers would not"
    if what == "the exchange with the parameter server" and envs < MAX_ENVS_PER_WORKER:
        return f"{head}: try --num-envs-per-worker {min(2 * envs, MAX_ENVS_PER_WORKER)}, which makes fewer gradients"
    if what == "acting" and envs < MAX_ENVS_PER_WORKER:
        return f"{head}: try --num-envs-per-worker {min(2 * envs, MAX_ENVS_PER_WORKER)}, which changes what is learnt"
    if what == "env stepping" and config.env == EXTERNAL:  # one process listens
        return f"{head}: simulators that step faster would help"
    if more_workers > workers:
        return f"{head}: try --num-rollout-workers {more_workers}"
    if what == "env stepping":
        return f"{head}, on all {num_cpus} CPUs: only a faster environment or more CPUs would help"
    return ""
