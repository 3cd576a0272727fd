"""`./scripts/gpu-check` as far as it goes without a GPU: every kind of row, at toy size, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from benchmarks.gpu_check import ROWS, build_parser, lean_rate, measured  # noqa: E402


@pytest.mark.process
@pytest.mark.parametrize(
    ("row", "peers"),
    [
        ("DQN images, minibatch 32, float32", ["rlplat", "bare"]),
        ("TD3 HalfCheetah", ["rlplat"]),
        ("PPO TensorCartPole, 4,096 x 24", ["rlplat", "rlplat"]),
        ("data-parallel, one rank, ResNet 128 x 32 x 32", ["rlplat", "bare"]),
    ],
)
def test_a_row_has_a_figure_of_each_peer(row: str, peers: list[str]) -> None:
    if "HalfCheetah" in row:
        pytest.importorskip("mujoco")
    found, why = measured(row, build_parser().parse_args(["--device", "cpu", "--quick"]))
    assert why == "" and [peer for peer, _, _ in found] == peers
    assert all(value > 0 for _, _, value in found)


@pytest.mark.process
def test_without_a_gpu_it_says_what_to_do() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--no-tests"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "finds no GPU; --device cpu runs" in done.stderr


@pytest.mark.process
def test_the_speed_of_leanrl_is_the_last_that_its_script_prints(tmp_path) -> None:  # type: ignore[no-untyped-def]
    script = tmp_path / "ppo.py"
    script.write_text("print('speed: 12.5 sps, x'); print('speed:  725.25 sps')")
    assert lean_rate(script, 5.0) == 725.25
    script.write_text("raise SystemExit('no envpool')")
    with pytest.raises(RuntimeError, match="printed no speed"):
        lean_rate(script, 5.0)


def test_a_wrong_row_is_refused() -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--row", "nothing"])
    assert {"PPO Pong", "SAC HalfCheetah"} <= ROWS.keys()
