"""ES as a whole: it learns, repeats itself, resumes, outlives its workers, and never imports a framework."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.algorithms.es import ES, ESConfig
from rlplat.checkpoint_state import pack, unpack
from rlplat.errors import ActorDied, ConfigError, EnvError, UsageError
from rlplat.rl.interfaces import Result
from rlplat.rl.run.evaluation import Evaluator
from rlplat.rl.run.training_loop import train
from rlplat.rl.sampling import perturbed_episodes

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden" / "es_updates.json"
QUICK: dict[str, Any] = {
    "env": "CartPole-v1",
    "seed": 3,
    "num_rollout_workers": 0,
    "num_envs_per_worker": 16,
    "population_size": 8,
    "noise_table_size": 100_000,
    "noise_std": 0.1,
    "learning_rate": 0.1,
    "policy": {"hidden_sizes": [16]},
}


class Unshaped(ES):
    """Follows the returns themselves, not their ranks."""

    @staticmethod
    def shape_returns(returns: Any) -> Any:
        return returns.astype(np.float32)


def make(**settings: Any) -> ES:
    return ES(ESConfig(**(QUICK | settings)))


def untimed(result: Result) -> dict[str, Any]:
    """A metric line but for times, and for how often workers died."""
    metrics = {name: value for name, value in result.metrics.items() if not name.endswith(("_s", "_restarts"))}
    return {**vars(result), "metrics": metrics}


def assert_equal_states(one: ES, other: ES) -> None:
    first, second = (pack(es.get_state()).files for es in (one, other))
    assert first.keys() == second.keys()
    for name in first:
        assert first[name] == second[name], name


def test_learns_cartpole() -> None:
    """From 20 of chance; every part of the ring has to be right for it."""
    with make(population_size=32, learning_rate=0.05) as es:
        results = [es.step() for _ in range(15)]
        assert results[0].episode_return_mean < 60
        assert max(result.episode_return_mean for result in results) > 120
        evaluated = es.evaluate(5)
        assert len(evaluated) == 5 and np.mean([episode.episode_return for episode in evaluated]) > 300
        assert results[-1].episodes == len(results) * 64
    assert not rlplat.is_initialized()


def test_learns_continuous_control() -> None:
    """-(action - 2)^2 thrice: from a linear policy of zeros, -12, to nearly 0."""
    settings = {"env": "tests.algorithms.es_envs:TargetEnv", "linear_policy": True, "learning_rate": 0.003}
    settings |= {"optimizer": "sgd", "normalize_observations": False}
    with Unshaped(ESConfig(**(QUICK | settings))) as es:
        first = es.evaluate(1)[0].episode_return
        for _ in range(40):
            es.step()
        assert first == -12.0 and es.evaluate(1)[0].episode_return > -0.1


@pytest.mark.process
def test_golden_updates() -> None:
    """What the first updates were when this was written: a change here is a change of the computation."""
    golden = json.loads(GOLDEN.read_text())
    names = ["learner/gradient_norm", "learner/weights_norm", "es/return_std", "es/return_max"]
    for case, settings in golden["settings"].items():
        with make(**settings) as es:
            for expected in golden["updates"][case]:
                result = es.step()
                got = {name: result.metrics[name] for name in names}
                got |= {"env_steps": result.env_steps, "episode_return_mean": result.episode_return_mean}
                assert got == pytest.approx(expected, rel=1e-4), case


def test_same_seed_same_run_another_seed_another(runtime: None) -> None:
    one, other, third = make(), make(), make(seed=4)
    for _ in range(3):
        assert untimed(one.step()) == untimed(other.step()) != untimed(third.step())
    assert_equal_states(one, other)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(runtime: None, optimizer: str) -> None:
    """Bit for bit, metric lines included; what was saved goes through the files of a checkpoint."""
    settings = {
        "optimizer": optimizer,
        "weight_decay": 0.01,
    }
    with make(**settings) as whole:
        lines = [untimed(whole.step()) for _ in range(6)]
        with make(**settings) as first:
            assert [untimed(first.step()) for _ in range(3)] == lines[:3]
            files = pack(first.get_state()).files
        with make(**settings) as second:
            second.step()  # it may have been anywhere
            second.set_state(unpack(files))
            assert [untimed(second.step()) for _ in range(3)] == lines[3:]
            assert_equal_states(second, whole)


@pytest.mark.process
def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Through the command: kill -9 after some checkpoint, resume, and the lines are those of a run without."""
    settings = QUICK | {"deterministic": True, "checkpoint_period": 1, "stop": {"env_steps": 16_000}}
    settings |= {"evaluation": {"episodes": 2, "num_envs": 2}}
    train("es", out=tmp_path / "whole", **settings)
    program = (
        "import os, signal, sys, json; from rlplat.rl.run import run_directory as r; record = r.RunDirectory.record\n"
        "def dying(self, result, *rest):\n"
        "    record(self, result, *rest)\n"
        "    if result.iteration == 4: os.kill(os.getpid(), signal.SIGKILL)\n"
        "r.RunDirectory.record = dying\n"
        "import rlplat; rlplat.train('es', out=sys.argv[1], **json.loads(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "cut"), json.dumps(settings)]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    assert lines_of(tmp_path / "cut")[-1]["iteration"] == 4
    train(resume=tmp_path / "cut")
    whole, cut = lines_of(tmp_path / "whole"), lines_of(tmp_path / "cut")
    assert len(whole) > 5 and cut == whole


def lines_of(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.endswith("_s")} for line in lines]


def test_a_dead_worker_changes_nothing_but_the_count(runtime: None) -> None:
    with make(num_rollout_workers=3) as one, make(num_rollout_workers=3) as other:
        for dead in (None, 1, 2, None):
            if dead is not None:
                rlplat.kill(one.workers.handles[dead])
            result = one.step()
            assert untimed(result) == untimed(other.step())
        assert result.metrics["rollout/worker_restarts"] == 2
        assert_equal_states(one, other)


def test_workers_that_keep_dying_end_the_run(runtime: None) -> None:
    with make(num_rollout_workers=2, max_worker_restarts=1) as es:
        rlplat.kill(es.workers.handles[1])
        es.step()
        rlplat.kill(es.workers.handles[1])
        with pytest.raises(ActorDied, match="rollout worker 1 was lost more than 1 times"):
            es.step()


def test_tens_of_workers_in_a_tree_are_the_same_as_without(runtime: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 workers: 24 -> 6 -> 2 answers reach the learner; then one of them dies."""
    settings = {"num_rollout_workers": 24, "population_size": 30}
    settings |= {"learning_rate": 0.01}  # so that episodes stay short
    with make(**settings) as tree, make(**settings) as flat:
        for update in range(2):
            if update == 1:
                rlplat.kill(tree.workers.handles[17])
            results = []
            for es, fan_in in ((tree, 4), (flat, 64)):
                monkeypatch.setattr(perturbed_episodes, "FAN_IN", fan_in)
                results.append(untimed(es.step()))
            # The same numbers come in fewer answers.
            wire = [result["metrics"].pop("es/wire_bytes") for result in results]
            assert wire[0] < wire[1]
            for result in results:
                del result["metrics"]["es/answer_bytes"]
            assert results[0] == results[1]
        assert_equal_states(tree, flat)
        assert results[0]["episodes"] == 2 * 60


@pytest.mark.process
def test_processes_give_what_one_process_gives(runtime: None) -> None:
    """Two workers in this process; then two of their own, one of which is killed while it plays."""
    with make(num_rollout_workers=2) as es:
        expected = [untimed(es.step()) for _ in range(3)]
    rlplat.shutdown()
    with make(num_rollout_workers=2) as es:
        results = [untimed(es.step())]
        handle = es.workers.handles[0]
        handle.sample.remote(es.weights())
        rlplat.kill(handle)
        results += [untimed(es.step()) for _ in range(2)]
        assert results == expected
    rlplat.init(backend="inproc")  # for the fixture to end


@pytest.mark.process
def test_no_process_of_a_run_loads_a_framework() -> None:
    """Neither the driver's modules nor the libraries mapped by any process of its cluster, while they live."""
    program = f"""
import os, sys
from pathlib import Path
from rlplat.algorithms.es import ES, ESConfig
with ES(ESConfig(**{QUICK | {"num_rollout_workers": 2, "framework": "tf"}})) as es:
    es.step()
    es.evaluate(1)
    marks = {{name for name in os.listdir("/proc") if name.isdigit()}}
    session = [p for p in os.listdir("/dev/shm") if p.startswith(f"rlplat-{{os.getpid()}}-")][0].encode()
    def read(pid, what):
        try:
            return Path(f"/proc/{{pid}}/{{what}}").read_bytes()
        except OSError:
            return b""
    ours = [pid for pid in marks if b"RLPLAT_SESSION=" + session in read(pid, "environ").split(b"\\0")]
    maps = [read(pid, "maps") for pid in [*ours, "self"]]
    loaded = [name for name in (b"libtorch", b"libtensorflow") if any(name in one for one in maps)]
    modules = sorted({{"torch", "tensorflow", "jax"}} & set(sys.modules))
    print(len(ours), loaded, modules, any(b"numpy" in one for one in maps))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    number, rest = done.stdout.strip().split(" ", 1)
    assert int(number) >= 6  # node, zygote, parameter server, learner, two workers, evaluator
    assert rest == "[] [] True"


def test_what_is_saved_acts_without_actors(runtime: None) -> None:
    with make(evaluation={"num_envs": 4}) as es:
        for _ in range(3):
            es.step()
        expected = es.evaluate(6)
        weights = ES.policy_weights(unpack(pack(es.get_state()).files))
        settings = es.config.model_dump()
    with Evaluator(settings, ES.make_policy) as evaluator:
        assert evaluator.run((0, weights), 6).episodes == expected


def test_an_environment_that_fails_ends_the_run_with_its_name(runtime: None) -> None:
    with make(env="tests.algorithms.es_envs:NanRewardEnv") as es:
        with pytest.raises(EnvError, match="NanRewardEnv"):
            es.step()


@pytest.mark.process
@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"policy": {"core": "lstm"}}, "policy.core=lstm has no effect: es has MLPs only"),
        ({"policy": {"encoder": "nature_cnn"}}, "encoder=nature_cnn"),
        (
            {"env": "FrozenLake-v1"},
            r"es acts on vectors of numbers, but FrozenLake-v1 has observations Discrete",
        ),
        ({"env": "rlplat.rl.envs.diagnostic:MaskedChoice"}, r"has observations Dict\(.*action_mask: mask\("),
        ({"num_rollout_workers": 9}, "num_rollout_workers=9 is more than population_size=8"),
        ({"noise_table_size": 100}, r"noise_table_size=100 is smaller than the policy's 114 parameters"),
    ],
)
def test_preflight_refuses_before_any_actor_starts(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make(**settings)
    assert not rlplat.is_initialized()


def test_a_checkpoint_of_another_network_is_refused(runtime: None) -> None:
    one, other = make(), make(policy={"hidden_sizes": [8]})
    before = pack(one.get_state()).files
    with pytest.raises(UsageError, match=r"layers\.0\.weight is \(8, 4\) there, and \(16, 4\) in this"):
        one.set_state(other.get_state())
    assert pack(one.get_state()).files == before
