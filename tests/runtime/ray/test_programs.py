"""Programs on Ray beside our own runtime: equal seeds, equal returns. Where $RLPLAT_TEST_RAY is set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.on_ray, pytest.mark.timeout(400)]
if "RLPLAT_TEST_RAY" not in os.environ:
    pytest.skip("$RLPLAT_TEST_RAY is not set", allow_module_level=True)


@pytest.fixture(scope="module")
def ray_address(on_ray: object) -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


def rlplat(*arguments: str, address: str | None = None) -> str:
    where = {} if address is None else {"RLPLAT_BACKEND": "ray", "RLPLAT_ADDRESS": address}
    done = subprocess.run(
        [sys.executable, "-m", "rlplat.cli", *arguments],
        cwd=ROOT,
        env=os.environ | where,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def outcome(out: Path) -> tuple[Any, ...]:
    record = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    return tuple(record[name] for name in ("env_steps", "episodes", "episode_return_mean", "eval/return_mean"))


@pytest.mark.parametrize(
    ("algo", "steps", "settings"),
    [
        ("ppo", 4_000, ()),
        ("ppo", 4_000, ("learner.num_learners=2",)),
        ("dqn", 2_000, ()),
        ("es", 20_000, ()),
    ],
    ids=["ppo", "ppo-two-learners", "dqn", "es"],
)
def test_equal_seeds_have_equal_returns(
    algo: str, steps: int, settings: tuple[str, ...], ray_address: str, tmp_path: Path
) -> None:
    command = ["train", "--algo", algo, "--env", "CartPole-v1", "--seed", "1", "--deterministic"]
    command += ["--set", "num_rollout_workers=2", *settings] if algo != "es" else []
    command += ["--stop.env-steps", str(steps), "--evaluation.episodes", "5"]
    rlplat(*command, "--out", str(tmp_path / "ours"))
    rlplat(*command, "--out", str(tmp_path / "ray"), address=ray_address)
    assert outcome(tmp_path / "ray") == outcome(tmp_path / "ours")


def test_an_algorithm_of_the_users_own_file_trains(ray_address: str, tmp_path: Path) -> None:
    """No process of Ray's can import that file by the name that it has here."""
    file = tmp_path / "my_ppo.py"
    file.write_text((ROOT / "algorithms" / "ppo.py").read_text())
    command = ["train", "--algo", f"{file}:PPO", "--env", "CartPole-v1", "--stop.env-steps", "1000"]
    rlplat(*command, "--out", str(tmp_path / "run"), address=ray_address)
    assert outcome(tmp_path / "run")[0] >= 1000


def test_an_experiment_runs_and_is_resumed(ray_address: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nimport rlplat\nfrom rlplat import tune\n\n\n"
        "def score(config, report):\n    for step in range(3):\n        report(score=config['x'] + step)\n\n\n"
        "rlplat.init(log_to_driver=False)\n"
        "result = tune.run(score, {'x': tune.uniform(0, 1)}, metric='score', mode='max', seed=1,\n"
        "                  num_samples=int(sys.argv[1]), out=sys.argv[2], resume=sys.argv[3] == 'resume')\n"
        "print('trials', len(result.dataframe()), result.best_config)\n"
    )
    printed = {}
    for name, address in (("ours", None), ("ray", ray_address)):
        where = {} if address is None else {"RLPLAT_BACKEND": "ray", "RLPLAT_ADDRESS": address}
        for samples, manner in (("2", "new"), ("4", "resume")):
            done = subprocess.run(
                [sys.executable, str(program), samples, str(tmp_path / name), manner],
                cwd=ROOT,
                env=os.environ | where | {"PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            printed[name, samples] = done.stdout.splitlines()[-1]
    assert printed["ray", "4"].startswith("trials 4 ")
    assert [printed["ray", samples] for samples in "24"] == [printed["ours", samples] for samples in "24"]
