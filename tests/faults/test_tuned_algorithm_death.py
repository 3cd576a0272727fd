"""kill -9 within the trials of an algorithm: a rollout worker, the trial's host; and more than the cluster has."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat import state, tune
from rlplat.errors import InfeasibleResources
from rlplat.metrics import read_records
from tests.patience import soon
from tests.tune.trials.test_rl_program import SMALL, Host, living, without_times

ENV = '''
import time
from pathlib import Path
import gymnasium as gym

class GatedCartPole(gym.Wrapper):
    """Its 200th step waits for a file."""

    def __init__(self, gate):
        super().__init__(gym.make("CartPole-v1"))
        self.gate, self.steps = Path(gate), 0

    def step(self, action):
        self.steps += 1
        while self.steps == 200 and not self.gate.exists():
            time.sleep(0.01)
        return self.env.step(action)
'''


def pid_of(actor_class: str) -> int:
    """Of the youngest living actor of that class."""
    worker = [actor["worker"] for actor in living() if actor["class"] == actor_class][-1]
    return next(row["pid"] for row in state.list_workers() if row["worker"] == worker)  # type: ignore[no-any-return]


def test_a_trial_goes_on_when_one_of_its_rollout_workers_is_killed(torch_cluster: None, tmp_path: Path) -> None:
    group = rlplat.placement_group([{"CPU": 1}])
    strategy = rlplat.PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
    )
    host = Host.options(scheduling_strategy=strategy).remote()
    config = SMALL | {"num_rollout_workers": 1}
    before = rlplat.get(host.begin.remote(str(tmp_path / "00003"), config), timeout=60)
    os.kill(pid_of("RolloutWorker"), signal.SIGKILL)
    after = rlplat.get(host.step.remote(), timeout=60)
    assert before["rollout/worker_restarts"] == 0 and after["rollout/worker_restarts"] == 1
    assert after["env_steps"] > before["env_steps"]
    rlplat.remove_placement_group(group)
    assert soon(lambda: not living()), "its replacement was in the group as well"


def test_a_trial_whose_host_is_killed_goes_on_from_its_checkpoint(torch_cluster: None, tmp_path: Path) -> None:
    found: list[Any] = []
    (tmp_path / "gated.py").write_text(ENV)
    gate = tmp_path / "gate"
    env = {"env": f"{tmp_path}/gated.py:GatedCartPole", "env_kwargs": {"gate": str(gate)}}

    def run(name: str) -> None:
        space = SMALL | env | {"num_rollout_workers": 1, "stop": {}}
        analysis = tune.run(
            "ppo",
            space,
            stop={"env_steps": 3000},
            checkpoint_period=2,
            out=tmp_path / name,
            seed=4,
            progress=False,
        )
        found.append(analysis.trials[0])

    gate.touch()
    run("whole")
    gate.unlink()
    thread = threading.Thread(target=run, args=("killed",))
    thread.start()
    trial = tmp_path / "killed" / "trials" / "00000"
    assert soon(lambda: any((trial / "checkpoints").glob("step_*")) if trial.exists() else False)
    os.kill(pid_of("TrialHost"), signal.SIGKILL)
    gate.touch()
    thread.join(100)
    assert not thread.is_alive()
    assert soon(lambda: not living()), "the actors of a host end with it"
    whole, killed = found
    assert killed.state.value == "complete" and killed.failures == 1
    assert killed.values == whole.values and killed.step == whole.step
    assert "SIGKILL" in killed.error
    lines = [
        [without_times(record) for record in read_records(tmp_path / name / "trials" / "00000" / "metrics.jsonl")]
        for name in ("whole", "killed")
    ]
    assert lines[0] == lines[1], "bit for bit what it would have been"


def test_an_experiment_that_needs_more_than_the_cluster_has_leaves_nothing(cluster: None, tmp_path: Path) -> None:
    space = SMALL | {"num_rollout_workers": 8}
    with pytest.raises(InfeasibleResources, match=r"one trial needs cpu 8.*CPU 2.*num_rollout_workers"):
        tune.run("ppo", space, out=tmp_path / "exp", progress=False)
    assert not (tmp_path / "exp").exists()
