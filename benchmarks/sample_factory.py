"""Sample Factory's APPO on Pong, with the rounds and the network of configs/impala/Pong-published.yaml: env steps/s.

Advantages are GAE's: its V-trace (2.1.1) ends with "no attribute 'advantages'" in its learner.

It needs a gymnasium older than rlplat's, so it runs in a Python of its own, which $SAMPLE_FACTORY_PYTHON names:

    python -m venv sf
    sf/bin/pip install torch==2.13.0 sample-factory==2.1.1 'numpy<2' ale-py==0.8.1 'shimmy[atari]==1.3.0'
    sf/bin/ale-import-roms $(dirname $(python -c "import ale_py; print(ale_py.__file__)"))/roms
    SAMPLE_FACTORY_PYTHON=sf/bin/python python -m benchmarks.train --rows impala-pong --peer sample-factory
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time

PYTHON = "SAMPLE_FACTORY_PYTHON"
FRAMES_PER_ENV_STEP = 4
SETTINGS = {
    "env": "atari_pong",
    "algo": "APPO",
    "seed": 1,
    "device": "cpu",
    "num_workers": 2,
    "num_envs_per_worker": 16,
    "worker_num_splits": 2,  # one half of the games acts while the other waits for actions
    "rollout": 20,
    "batch_size": 640,
    "num_batches_per_epoch": 1,
    "num_epochs": 1,
    "async_rl": True,
    "with_vtrace": False,
    "normalize_input": False,
    "normalize_returns": False,
    "decorrelate_envs_on_one_worker": False,  # it would begin with a minute of random play
    "train_for_env_steps": 1_000_000_000,
    "restart_behavior": "overwrite",
    "experiment": "rate",
}
_FRAMES = re.compile(r"Total num frames: (\d+)")


def appo_rate(warm_up: int, env_steps: int) -> float:
    """Of what its learner has taken, between two of the lines that it logs every 5 s."""
    with tempfile.TemporaryDirectory() as directory:
        options = [f"--{name}={value}" for name, value in {**SETTINGS, "train_dir": directory}.items()]
        process = subprocess.Popen(
            [os.environ[PYTHON], "-m", "sf_examples.atari.train_atari", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            start: tuple[float, int] | None = None
            line = ""
            for line in process.stdout:
                if "Unhandled exception" in line:  # of a process of its: the others would wait for good
                    break
                if (found := _FRAMES.search(line)) is None:
                    continue
                now, taken = time.perf_counter(), int(found[1]) // FRAMES_PER_ENV_STEP
                if start is None and taken >= warm_up:
                    start = now, taken
                elif start is not None and taken >= start[1] + env_steps:
                    return (taken - start[1]) / (now - start[0])
            raise RuntimeError(f"Sample Factory ended: {line}")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
