"""A tuner that is killed at a chosen moment: python tuner_program.py DIRECTORY '{"kill_after_s": 0.3}'.

Every trial writes down what it does in DIRECTORY/story, one line with one `write`, so that the story survives it all:
`begin <trial> <process> <from step>`, `step <trial> <process> <step>`, `end <trial>`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rlplat
from rlplat import tune

DIRECTORY = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
NUM_STEPS = 9
HELD_AT = 4
"""As long as there is a file DIRECTORY/hold, no trial makes more steps; with "3 7" in it, trials from number 3 on make
no more than 7. So what a test does to an experiment, it does before its end, however long that takes."""


def tell(story: str, text: str) -> None:
    descriptor = os.open(story, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def is_held(hold: Path, number: int, steps: int) -> bool:
    try:
        words = hold.read_text().split()
    except FileNotFoundError:
        return False
    first, most = map(int, words) if words else (0, HELD_AT)
    return number >= first and steps >= most


class Climb:
    """Its score grows with alpha and with the steps; what it returns depends on nothing else."""

    def __init__(self, config: dict[str, Any], context: Any) -> None:
        self.config, self.number, self.steps, self.has_begun = config, context.number, 0, False

    def step(self) -> dict[str, float] | None:
        if not self.has_begun:
            self.has_begun = True
            tell(self.config["story"], f"begin {self.number} {os.getpid()} {self.steps}")
        time.sleep(self.config["step_s"])
        while is_held(Path(self.config["story"]).with_name("hold"), self.number, self.steps):
            time.sleep(0.01)
        while self.steps == 4 and self.config["gate"] and not os.path.exists(self.config["gate"]):
            time.sleep(0.01)
        self.steps += 1
        tell(self.config["story"], f"step {self.number} {os.getpid()} {self.steps}")
        if self.steps == NUM_STEPS:
            tell(self.config["story"], f"end {self.number}")
        return {"score": self.config["alpha"] * self.steps, "steps": self.steps}

    def save(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(place: str, count: int) -> None:
    """At the count-th call of `module:Class.method`, before or after it: `after rlplat.tune.tuner:Tuner.run`."""
    when, _, name = place.partition(" ")
    module, _, path = name.partition(":")
    owner: Any = __import__(module, fromlist=["_"])
    *parents, last = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    function: Callable[..., Any] = getattr(owner, last)
    calls = 0

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and when == "before":
            die()
        result = function(*args, **kwargs)
        if calls == count:
            die()
        return result

    setattr(owner, last, deadly)


def main(directory: Path, orders: dict[str, Any]) -> None:
    rlplat.init(num_cpus=2, num_gpus=0, backend=orders.get("backend", "zmq"))
    if "kill_at" in orders:
        die_at(*orders["kill_at"])
    if "kill_after_s" in orders:
        from rlplat.tune.tuner import Tuner

        run = Tuner.run

        def run_with_a_fuse(self: Tuner, *, resume: bool) -> Any:
            threading.Timer(orders["kill_after_s"], die).start()
            return run(self, resume=resume)

        Tuner.run = run_with_a_fuse  # type: ignore[method-assign]
    if "largest_file" in orders:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (orders["largest_file"], resource.RLIM_INFINITY))
    space = {
        "alpha": tune.uniform(0, 1),
        "story": str(directory / "story"),
        "step_s": orders.get("step_s", 0.01),
        "gate": orders.get("gate", ""),
    }
    out = directory / "experiment"
    analysis = tune.run(
        Climb,
        space,
        metric="score",
        stop={"step": NUM_STEPS},
        out=out,
        resume=out.exists(),
        progress=False,
        checkpoint_period=orders.get("checkpoint_period", 2),
        **{"num_samples": 8, "max_concurrent": 2, "seed": 3} | orders.get("settings", {}),
    )
    rlplat.shutdown()
    told = [[t.number, t.state, t.step, t.config["alpha"], t.values] for t in analysis.trials]
    print(json.dumps(told))


if __name__ == "__main__":
    main(DIRECTORY, json.loads(sys.argv[2]))
