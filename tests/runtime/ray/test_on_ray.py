"""`init(backend="ray")`: what is refused without Ray, and the conformance suite on it where Ray is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rlplat
from rlplat.errors import MissingExtra, OptionError

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("hang_timeout_s", 3.0),
        ("memory_usage_threshold", 0.5),
        ("log_dir", "/tmp"),
        ("spill_dir", ""),
        ("store_full_timeout_s", 1.0),
    ],
)
def test_a_promise_that_ray_cannot_keep_is_refused(argument: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"Ray has no {argument}: leave that out"):
        rlplat.init(backend="ray", **{argument: value})  # type: ignore[arg-type]
    assert not rlplat.is_initialized()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "rlplat.runtime.ray.backend", raising=False)
    with pytest.raises(MissingExtra) as caught:
        rlplat.init(backend="ray")
    assert str(caught.value).startswith("rlplat.init(backend='ray') needs ray: ")
    assert not rlplat.is_initialized()


def test_addresses_are_those_of_the_backend() -> None:
    with pytest.raises(OptionError, match="goes by its join file"):
        rlplat.init(address="auto")
    with pytest.raises(OptionError, match="backend='inproc' has no cluster"):
        rlplat.init(address="auto", backend="inproc")


def test_the_environment_names_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPLAT_BACKEND", "inproc")
    rlplat.init(num_cpus=1)
    assert rlplat.get_runtime_context().client_id == "inproc"
    rlplat.shutdown()
    monkeypatch.setenv("RLPLAT_BACKEND", "spark")
    with pytest.raises(OptionError, match="unknown backend 'spark'"):
        rlplat.init()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_the_basic_contracts_hold_on_ray_and_what_differs_differs() -> None:
    """In one process of its own: the start of a Ray takes seconds, and what Ray keeps running is not this suite's."""
    contracts = ("tasks", "errors", "actors", "named_actors")
    files = [*(f"tests/conformance/test_{name}.py" for name in contracts), "tests/runtime/ray/test_table.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", "-m", "on_ray"]
    done = subprocess.run(
        [*command, *files],
        cwd=ROOT,
        env={**os.environ, "RLPLAT_TEST_RAY": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert "passed" in done.stdout


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_equal_seeds_are_equal_returns_on_both_whatever_the_shell_says_of_threads(tmp_path: Path) -> None:
    """The suite's own environment sets the threads of BLAS; a user's does not."""
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    words = (
        "--algo ppo --env CartPole-v1 --seed 11 --num-rollout-workers 2 --stop.env-steps 9000 --evaluation.episodes 0"
    )

    def returns(name: str, *more: str, **variables: str) -> list[float]:
        command = [
            sys.executable,
            "-m",
            "rlplat.cli",
            "train",
            *words.split(),
            "--out",
            str(tmp_path / name),
            *more,
        ]
        environment = {**bare, "PYTHONPATH": str(ROOT), **variables}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [row["episode_return_mean"] for row in map(json.loads, lines) if "episode_return_mean" in row]

    own = returns("own")
    assert len(own) > 2
    assert returns("ray", "--backend", "ray") == own
    assert returns("one-thread", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1") == own
